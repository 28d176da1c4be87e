"""The schedules: when DAGs start by themselves, and for which dates they can be backfilled."""

import os
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import CronDataIntervalTimetable

from dags.backfill_dates import BackfillDates
from pipeline.config.data_date import utc_of

FIRST = datetime(2020, 1, 1, tzinfo=UTC)


def schedule_from(variable: str) -> dict[str, Any]:
    """Return the arguments of a DAG about its schedule.

    A run belongs to an interval and starts at its end: the run of a day starts when the day is over and its images are
    complete. Without a schedule, a DAG can still be backfilled by days.

    Args:
        variable: Environment variable of a cron expression or preset. If it is not set, the schedule is off.
    """
    cron, first = os.environ.get(variable, ""), os.environ.get("TENFOLD_START_DATE", "")
    return {
        "schedule": CronDataIntervalTimetable(cron, timezone="UTC")
        if cron
        else BackfillDates("@daily", timezone="UTC"),
        "start_date": utc_of(first) if first else FIRST,  # In UTC, unless it has an offset.
        # With catchup, a DAG that is switched on runs for every interval since its first date.
        "catchup": bool(cron) and os.environ.get("TENFOLD_CATCHUP", "").lower() in ("1", "true", "yes"),
        # With the latest version, the default, Airflow 3.3.2 maps the tasks of a repeated run by the lengths of the
        # first attempt. A date that was found complete, and then changed, would get no task that writes its shards.
        "rerun_with_latest_version": False,
    }
