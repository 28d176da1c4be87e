"""The outcome of a backfill as a table, with one line for each date."""

from collections.abc import Sequence
from typing import NamedTuple

from scripts.airflow.backfill import Outcome, date_of
from scripts.airflow.client import Client, Json
from scripts.airflow.follow import COMMIT, failure_of, task_result
from scripts.airflow.times import time_of


class Row(NamedTuple):
    """One date."""

    date: str
    examples: str
    version: str
    outcome: str


_HEAD = Row("date", "examples", "version", "outcome")


def report(client: Client, outcome: Outcome) -> list[str]:
    """Return a table of all dates, a summary, and the error of each failed run."""
    rows = [
        row_of(run, task_result(client, run["dag_run_id"], COMMIT), outcome)
        for run in (*outcome.runs, *outcome.skipped)
    ]
    failures = [f"{date_of(run)}: {failure_of(client, run['dag_run_id'])}" for run in outcome.failed]
    return [*aligned([_HEAD, *sorted(rows)]), summary(outcome), *failures]


def row_of(run: Json, made: Json, outcome: Outcome) -> Row:
    """Return one date, by its run and what the task `upload.commit` of it returned."""
    examples = str(sum(made["examples"].values())) if made else ""
    return Row(date_of(run), examples, made.get("version", ""), _word(run, made, outcome))


def _word(run: Json, made: Json, outcome: Outcome) -> str:
    if run in outcome.skipped:
        ended = time_of(run["end_date"])
        return "skipped: already made" if ended and ended < outcome.since else "skipped: already running"
    if run["state"] == "failed":
        return "failed"
    return "already complete" if made.get("already_complete") else "new"


def aligned(rows: Sequence[Row]) -> list[str]:
    """Return rows as lines with columns of equal width; numbers stand on the right."""
    date, examples, version, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [f"{row.date:<{date}}  {row.examples:>{examples}}  {row.version:<{version}}  {row.outcome}" for row in rows]


def summary(outcome: Outcome) -> str:
    """Return how many dates were run, failed and were skipped."""
    run, failed = len(outcome.runs), len(outcome.failed)
    skipped, missing = len(outcome.skipped), len(outcome.missing)
    parts = {
        f"{run} of {run + skipped + missing} dates run": True,
        f"{failed} of them failed (run the same command to repeat the failed dates)": failed,
        f"{skipped} skipped (set REPROCESS=all to run them again)": skipped,
        f"{missing} without a run, because the schedule of the DAG leaves them out": missing,
    }
    return ", ".join(text for text, is_shown in parts.items() if is_shown)
