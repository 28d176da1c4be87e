"""The schedules: when DAGs start by themselves, and for which dates they can be backfilled."""

import os
from typing import Any

from dags.backfill_dates import BackfillDates, Dates
from pipeline.config.data_date import moment_in, zone_from

FIRST = "2020-01-01"
EVERY = "@daily"
"""The dates of a backfill of a DAG without a schedule, unless TENFOLD_BACKFILL_SCHEDULE says otherwise."""


def schedule_from(variable: str) -> dict[str, Any]:
    """Return the arguments of a DAG about its schedule.

    A run belongs to an interval and starts at its end: the run of a day starts when the day is over and its images are
    complete. Without a schedule, a DAG can still be backfilled by the dates of TENFOLD_BACKFILL_SCHEDULE.

    Args:
        variable: Environment variable of a cron expression or preset. If it is not set, the schedule is off.
    """
    cron, zone = os.environ.get(variable, ""), zone_from(os.environ)
    return {
        "schedule": Dates(cron, timezone=zone.key)
        if cron
        else BackfillDates(os.environ.get("TENFOLD_BACKFILL_SCHEDULE") or EVERY, timezone=zone.key),
        "start_date": moment_in(zone, os.environ.get("TENFOLD_START_DATE") or FIRST),
        # With catchup, a DAG that is switched on runs for every interval since its first date.
        "catchup": bool(cron) and os.environ.get("TENFOLD_CATCHUP", "").lower() in ("1", "true", "yes"),
        # With the latest version, the default, Airflow 3.3.2 maps the tasks of a repeated run by the lengths of the
        # first attempt. A date that was found complete, and then changed, would get no task that writes its shards.
        "rerun_with_latest_version": False,
    }
