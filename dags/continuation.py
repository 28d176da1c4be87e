"""The run that continues the training of another run on a new dataset: a run of the same DAG."""

import json
import logging
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dags.form_settings import FORM_SETTINGS

if TYPE_CHECKING:
    from pipeline.config.settings import Settings
    from pipeline.runs.run import Run

MAX_RUN_ID = 200
"""Maximum length of the part of the id of a new run that comes from another run. Airflow limits the whole id to 250."""
_log = logging.getLogger(__name__)


def can_continue(dag_id: str) -> bool:
    """Return whether a run of this DAG can continue a training."""
    return "continues" in FORM_SETTINGS.get(dag_id, ())


def continuing_run(dag_id: str, run_id: str, settings: "Settings") -> dict[str, Any]:
    """Return the run that continues the training of the run `run_id` with these settings, as Airflow's API starts it.

    The same dataset always gives the same id. So Airflow refuses to start it twice.
    """
    from pipeline.runs.changes import dataset_settings

    of_dataset = {name: getattr(settings, name) for name in dataset_settings(settings.example_kind)}
    number = zlib.crc32(json.dumps(of_dataset).encode())
    # Airflow refuses the id of a run that a person starts if it begins with `scheduled__`, for example.
    prefix = "" if run_id.startswith("manual__") else "manual__"
    return {
        "dag_run_id": f"{prefix}{run_id[:MAX_RUN_ID]}__{number:08x}",
        "logical_date": None,
        "conf": {name: getattr(settings, name) for name in FORM_SETTINGS[dag_id]},
    }


def start_from_task(dag_id: str, run_id: str, training: "Run", values: Mapping[str, Any]) -> None:
    """Start the run that continues a training on a dataset with these settings. Only a running task can call this.

    If Airflow refuses, the training goes on as it is, with a warning.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.comms import TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    from pipeline.runs.continuation import continued_settings

    run = continuing_run(dag_id, run_id, continued_settings(training.training, values))
    try:
        # Airflow 3.3.2 sends this request for the exception of a TriggerDagRunOperator, which ends its task.
        answer = SUPERVISOR_COMMS.send(
            TriggerDagRun(dag_id=dag_id, run_id=run["dag_run_id"], logical_date=None, conf=run["conf"])
        )
    except AirflowRuntimeError as error:
        _log.warning("the run that continues this training on a new dataset cannot be started: %s", error)
    else:
        _log.info("the advice: the run %s continues this training on a new dataset (%s)", run["dag_run_id"], answer)
