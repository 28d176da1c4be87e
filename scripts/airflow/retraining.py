"""The one training that follows a backfill: the DAG `retrain` starts on new datasets."""

from collections.abc import Sequence
from datetime import datetime

from scripts.airflow.client import ACTIVE, Client, Json
from scripts.airflow.errors import Interrupted
from scripts.airflow.failure import skip_reason
from scripts.airflow.follow import (
    ANY_TIME,
    GIVE_UP_LIMIT_S,
    PLACES,
    failure_of,
    give_up,
    results,
    training_note,
    wait_until_ready,
)
from scripts.airflow.progress import Display, Stage, stages_of
from scripts.airflow.remote import Running
from scripts.airflow.signals import Signals
from scripts.airflow.watch import RunStatus, watch

MAKER, TABULAR_MAKER = "image_dataset", "tabular_dataset"
"""The DAGs that make a dataset of each date."""
TRAINER, CHOICE = "retrain", "choose"


def trainer_of(airflow: Running, client: Client, signals: Signals) -> Client | None:
    """Return the DAG that trains on what this one makes, ready to run; None if there is none.

    It must be unpaused before the first dataset exists, because Airflow drops events for a paused DAG.
    """
    if client.dag_id not in (MAKER, TABULAR_MAKER) or not (airflow.layout.dags / f"{TRAINER}.py").exists():
        return None
    trainer = client.of(TRAINER)
    wait_until_ready(airflow, trainer, ANY_TIME, signals)
    return trainer


def follow_training(
    airflow: Running, trainer: Client, since: datetime, display: Display, signals: Signals
) -> list[Json]:
    """Show the runs since then until no further one is to come, and return them."""
    try:
        watch(airflow, lambda: _status(trainer, since), display, signals)
    except Interrupted:
        for run in _runs(trainer.hurried(GIVE_UP_LIMIT_S), since):
            if run["state"] in ACTIVE:
                give_up(trainer, run["dag_run_id"])
        raise
    return _runs(trainer, since)


def _runs(trainer: Client, since: datetime) -> list[Json]:
    return trainer.runs({"run_after_gte": since.isoformat()})


def _status(trainer: Client, since: datetime) -> RunStatus:
    # Events first: an event that becomes a run between the two looks would otherwise be in neither.
    to_come = trainer.has_events()
    runs = _runs(trainer, since)
    started = [run["dag_run_id"] for run in runs if run["state"] != "queued"]
    stages = _stages(trainer, started[-1]) if started else []
    return RunStatus(stages, not to_come and not any(run["state"] in ACTIVE for run in runs))


def _stages(trainer: Client, run_id: str) -> list[Stage]:
    settings, training = (trainer.xcom(run_id, CHOICE, key) for key in ("settings", "training"))
    note = training_note({name: settings[name] for name in PLACES}, training) if settings and training else ""
    return stages_of(trainer.task_instances(run_id), {"train": note})


def training_report(trainer: Client, runs: Sequence[Json]) -> list[str]:
    """Return the results of the training, or why there was none. Runs that another run serves have no lines."""
    lines = [line for run in runs for line in _outcome(trainer, run)]
    return lines or [f"No training: {_reason(trainer, runs[-1])}" if runs else "No training: no dataset was updated"]


def _outcome(trainer: Client, run: Json) -> list[str]:
    if run["state"] == "failed":
        return [f"{TRAINER}: {failure_of(trainer, run['dag_run_id'])}"]
    return results(trainer, run["dag_run_id"])


def _reason(trainer: Client, run: Json) -> str:
    """Return why a run has trained nothing."""
    tasks = trainer.task_instances(run["dag_run_id"])
    choices = [task for task in tasks if task["task_id"] == CHOICE]
    return "; ".join(skip_reason(trainer.log(run["dag_run_id"], task)) for task in choices)
