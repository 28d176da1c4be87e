"""The schedules: when DAGs start by themselves, and for which dates they can be backfilled."""

import os
from typing import Any

from airflow.sdk.timezone import coerce_datetime

from dags.backfill_dates import BackfillDates, Dates
from pipeline.config.data_date import TIME_ZONE, is_dated, moment_in, needs_time, zone_from
from pipeline.config.settings import Settings
from pipeline.errors import SettingsError

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


def require_zone(settings: Settings, timetable: Any, run: Any) -> None:
    """Raise SettingsError if this worker may have another time zone than the scheduler, and would read another day.

    The interval of a run is then not an interval of this worker's timetable. A worker with the right time zone, but
    without the schedule, is refused, too. It knows only the interval, and 07:00 in UTC is midnight in another time
    zone. Intervals of another length are not checked, because the run may be of an earlier schedule. Hours are not
    checked, because they are in UTC in every time zone.
    """
    address = settings.source_uri
    if settings.data_date or not is_dated(address) or needs_time(address) or not isinstance(timetable, Dates):
        return
    if run.data_interval_start is None:  # A run without a logical date has no interval.
        return
    begin, end = coerce_datetime(run.data_interval_start), coerce_datetime(run.data_interval_end)
    own = timetable.infer_manual_data_interval(run_after=end)
    # Differences of times of pendulum are equal only if the times are.
    is_as_long = own.end.timestamp() - own.start.timestamp() == end.timestamp() - begin.timestamp()
    if own.start != begin and is_as_long:
        raise SettingsError(
            f"this run is for {begin} to {end}, which is no interval of the schedule on this worker "
            f"({timetable.summary}), so it may read another day: set {TIME_ZONE} of the worker, and its "
            "TENFOLD_*_SCHEDULE, to those of the dag-processor. If the schedule changed after the run was created, or "
            "if you chose the interval, trigger the DAG with data_date instead"
        )
