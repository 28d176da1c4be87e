"""Which dates to backfill, with which settings: checked before anything starts."""

import os
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from pipeline.data_date import PLACEHOLDERS, is_dated
from scripts.airflow.checks import default_settings
from scripts.airflow.errors import Refused
from scripts.airflow.request import Conf

MAX_DATES = 1000
"""Limit for the dates of one backfill, whose runs Airflow creates in one call."""
_REPROCESS = {"": "failed", "failed": "failed", "all": "completed"}


@dataclass(frozen=True)
class Backfill:
    """One dataset for each date from `first` to `last`, both included."""

    dag_id: str
    first: date
    last: date
    reprocess: str
    """Which dates run again: "failed", or "completed" for all that are not under way."""
    conf: Conf
    max_active_runs: int = 2
    """Runs at the same time. SQLite has one writer: more of them mostly wait for each other's lock."""

    @property
    def days(self) -> list[date]:
        """All dates."""
        return [self.first + timedelta(days=number) for number in range((self.last - self.first).days + 1)]

    def body(self) -> dict[str, Any]:
        """Return the body of the request to Airflow."""
        return {
            "dag_id": self.dag_id,
            "from_date": datetime.combine(self.first, time.min, UTC).isoformat(),
            # Midnight of the last date would leave out the later hours of that day.
            "to_date": datetime.combine(self.last, time.max, UTC).isoformat(),
            "dag_run_conf": self.conf,
            "reprocess_behavior": self.reprocess,
            "max_active_runs": self.max_active_runs,
        }


def read_backfill(dag_id: str, first: str, last: str, reprocess: str, conf: Conf, today: date) -> Backfill:
    """Return the backfill of FROM, TO, REPROCESS and the settings. Raises Refused if it has no run, or too many."""
    begin, end = _date("FROM", first), _date("TO", last)
    if begin > end:
        raise Refused(f"FROM={begin} is after TO={end}: give the earlier date first")
    if end >= today:
        raise Refused(f"TO must be before today ({today} in UTC), because the data of today is not complete, got {end}")
    if reprocess not in _REPROCESS:
        raise Refused(f"REPROCESS must be failed or all, got {reprocess!r}")
    request = Backfill(dag_id, begin, end, _REPROCESS[reprocess], conf)
    if (count := len(request.days)) > MAX_DATES:
        raise Refused(f"FROM={begin} to TO={end} are {count} dates: give at most {MAX_DATES} at a time")
    _require_dated(conf)
    return request


def _date(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Refused(f"{name} must be a date such as 2026-01-31, got {text!r}") from None


def _require_dated(conf: Conf) -> None:
    """Raise Refused if all dates would have the same images or rows."""
    if conf.get("data_date"):
        raise Refused(
            f"PARAMS must not set data_date, got {conf['data_date']!r}: remove it, because each run uses its own date"
        )
    source = conf.get("source_uri") or default_settings(os.environ.get("TENFOLD_SETTINGS", "")).source_uri
    if not source:
        raise Refused(
            "SOURCE is missing: give the images or the table of a date, with {date} for the date, such as "
            "SOURCE=/data/{date}"
        )
    if not is_dated(source):
        raise Refused(
            f"SOURCE={source} is the same for every date: replace the part that depends on the date with one of "
            f"{PLACEHOLDERS}, such as SOURCE={source}/{{date}}"
        )
