from datetime import date, datetime
from typing import Any

import pytest

from scripts.airflow.backfill import Outcome
from scripts.airflow.table import Row, aligned, row_of, summary

SINCE = datetime.fromisoformat("2026-02-01T12:00:00Z")
MADE = {"version": "abc", "examples": {"train": 20, "validation": 4}, "already_complete": False}


def run(state: str, queued: str = "2026-02-01T12:00:01Z", ended: str | None = "2026-02-01T12:00:05Z") -> Any:
    return {"logical_date": "2026-01-01T00:00:00Z", "state": state, "queued_at": queued, "end_date": ended}


@pytest.mark.parametrize(
    ("one", "made", "row"),
    [
        (run("success"), MADE, Row("2026-01-01", "24", "abc", "new")),
        (run("success"), {**MADE, "already_complete": True}, Row("2026-01-01", "24", "abc", "already complete")),
        (run("failed"), {}, Row("2026-01-01", "", "", "failed")),
        (run("success") | {"logical_date": "2026-01-01T07:00:00Z"}, {}, Row("2026-01-01T07:00", "", "", "new")),
    ],
)
def test_the_row_of_a_date_that_was_run(one: Any, made: dict[str, Any], row: Row) -> None:
    assert row_of(one, made, Outcome(SINCE, [one], [], [])) == row


@pytest.mark.parametrize(
    ("ended", "word"),
    [
        ("2026-01-31T00:00:00Z", "skipped: already made"),
        ("2026-02-01T12:00:05Z", "skipped: already running"),
        (None, "skipped: already running"),
    ],
)
def test_the_row_of_a_date_that_was_skipped(ended: str | None, word: str) -> None:
    one = run("success", "2026-01-30T00:00:00Z", ended)
    assert row_of(one, MADE, Outcome(SINCE, [], [one], [])) == Row("2026-01-01", "24", "abc", word)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [Row("date", "examples", "version", "outcome"), Row("2026-01-01", "5", "ab", "new")]
    assert aligned(rows) == ["date        examples  version  outcome", "2026-01-01         5  ab       new"]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome(SINCE, [run("success")], [], []), "1 of 1 dates run"),
        (
            Outcome(SINCE, [run("success"), run("failed")], [run("success")], [date(2026, 1, 9)]),
            "2 of 4 dates run, 1 of them failed (run the same command to repeat the failed dates), 1 skipped (set "
            "REPROCESS=all to run them again), 1 without a run, because the schedule of the DAG leaves them out",
        ),
    ],
)
def test_summary(outcome: Outcome, text: str) -> None:
    assert summary(outcome) == text
