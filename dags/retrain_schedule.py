"""When `retrain` starts: after new datasets, and at the times that an administrator may set."""

import inspect
import os
from typing import Any

from airflow.sdk import AssetOrTimeSchedule
from airflow.sdk.definitions.timetables.assets import AssetTriggeredTimetable

from dags.defaults import DATASETS
from dags.schedule import schedule_from

VARIABLE = "TENFOLD_RETRAIN_SCHEDULE"
"""Environment variable of a cron expression or preset. If it is not set, only new datasets start a run."""
RUN_TYPES = {"allowed_run_types": ["manual", "scheduled", "asset_triggered", "operator_triggered"]}
"""All types except backfills, which Airflow accepts if there is a schedule. Airflow would start several of their runs
at once, whatever `max_active_runs` is, and all of them would train on the same newest partitions in the same folder."""


def retrain_schedule() -> dict[str, Any]:
    """Return the arguments of the DAG about its schedule.

    A scheduled run looks at what is published. So one run makes up for all times that were missed, and for events that
    Airflow lost.
    """
    batches = _batches()
    if not os.environ.get(VARIABLE):
        return {"schedule": AssetTriggeredTimetable(DATASETS, **batches), "catchup": False, **RUN_TYPES}
    times = schedule_from(VARIABLE)
    both = AssetOrTimeSchedule(timetable=times["schedule"], assets=DATASETS, **batches)
    return {"schedule": both, "start_date": times["start_date"], "catchup": False, **RUN_TYPES}


def _batches() -> dict[str, bool]:
    # Airflow 3.4 starts a run for each event by default. All but one would be skipped. Airflow 3.3 always batches, and
    # its timetable does not know the argument.
    is_known = "batch_asset_events" in inspect.signature(AssetTriggeredTimetable).parameters
    return {"batch_asset_events": True} if is_known else {}
