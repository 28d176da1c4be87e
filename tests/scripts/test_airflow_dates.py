from datetime import date
from pathlib import Path

import pytest

from scripts.airflow.dates import read_backfill, require_dated
from scripts.airflow.errors import Refused

TODAY = date(2026, 1, 31)


@pytest.mark.parametrize(
    ("first", "last", "reprocess", "what"),
    [
        ("2026-01-02", "2026-01-01", "", "FROM=2026-01-02 is after TO=2026-01-01"),
        ("", "2026-01-01", "", "FROM must be a date such as 2026-01-31, got ''"),
        ("2026-01-01", "2026-02-30", "", "TO must be a date such as 2026-01-31, got '2026-02-30'"),
        ("2026-01-01", "2026-01-31", "", "TO must be before today .2026-01-31 in UTC.* got 2026-01-31"),
        ("2023-01-01", "2026-01-01", "", "are 1097 dates: give at most 1000"),
        ("2026-01-01", "2026-01-02", "some", "REPROCESS must be failed or all, got 'some'"),
    ],
)
def test_dates_that_cannot_be_backfilled_are_refused(first: str, last: str, reprocess: str, what: str) -> None:
    with pytest.raises(Refused, match=what):
        read_backfill(first, last, reprocess, {}, TODAY)


@pytest.mark.parametrize(("reprocess", "behavior"), [("", "failed"), ("failed", "failed"), ("all", "completed")])
def test_the_request_to_airflow_includes_the_whole_last_day(reprocess: str, behavior: str) -> None:
    wanted = read_backfill("2026-01-29", "2026-01-30", reprocess, {"seed": 1}, TODAY)
    assert wanted.days == [date(2026, 1, 29), date(2026, 1, 30)]
    assert wanted.body("dag") == {
        "dag_id": "dag",
        "from_date": "2026-01-29T00:00:00+00:00",
        "to_date": "2026-01-30T23:59:59.999999+00:00",
        "dag_run_conf": {"seed": 1},
        "reprocess_behavior": behavior,
        "max_active_runs": 2,
    }


@pytest.mark.parametrize(
    ("conf", "what"),
    [
        ({"source_uri": "/data"}, "SOURCE=/data is the same for every date: .* such as SOURCE=/data/{date}"),
        ({}, "SOURCE is missing"),
        ({"source_uri": "/data/{date}", "data_date": "2026-01-01"}, "PARAMS must not set data_date, got '2026-01-01'"),
    ],
)
def test_a_source_with_the_same_images_for_all_dates_is_refused(conf: dict[str, str], what: str) -> None:
    with pytest.raises(Refused, match=what):
        require_dated(conf, {})


def test_the_source_can_come_from_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('source_uri = "/data/{date}"')
    require_dated({}, {"TENFOLD_SETTINGS": str(tmp_path / "s.toml")})
