"""The one training that follows a backfill: the DAG `retrain` starts on new datasets."""

from collections.abc import Sequence
from datetime import datetime

from scripts.airflow.client import Client, Json
from scripts.airflow.follow import PLACES, Job, stages_of_run
from scripts.airflow.progress import Stage
from scripts.airflow.ready import ANY_TIME, wait_until_ready
from scripts.airflow.remote import Airflow
from scripts.airflow.results import failure_of, results, skip_reason
from scripts.airflow.signals import Signals

MAKER, TABULAR_MAKER = "image_dataset", "tabular_dataset"
"""The DAGs that make a dataset of each date."""
TRAINER, CHOICE = "retrain", "choose"


class Retraining(Job):
    """The runs of `retrain` since a backfill began. Airflow starts them."""

    def __init__(self, trainer: Client, since: datetime) -> None:
        super().__init__(trainer, f"each run of {TRAINER} since the backfill began", f"/dags/{TRAINER}/runs")
        self._since = since

    def awaits_runs(self) -> bool:
        """Return whether a dataset was updated that no run has seen."""
        return self.client.has_events()

    def runs(self) -> list[Json]:
        """Return the runs so far."""
        return self.client.runs({"run_after_gte": self._since.isoformat()})

    def stages(self, runs: Sequence[Json]) -> list[Stage]:
        """Return the tasks of the newest run that has begun."""
        started = [run["dag_run_id"] for run in runs if run["state"] != "queued"]
        if not started:
            return []
        settings, training = (self.client.xcom(started[-1], CHOICE, key) for key in ("settings", "training"))
        places = {name: settings[name] for name in PLACES} if settings else {}
        return stages_of_run(self.client, started[-1], places, training if settings else "")


def trainer_of(airflow: Airflow, client: Client, signals: Signals) -> Client | None:
    """Return the DAG that trains on what this one makes, ready to run; None if there is none.

    It must be unpaused before the first dataset exists, because Airflow drops events for a paused DAG.
    """
    if client.dag_id not in (MAKER, TABULAR_MAKER) or not (airflow.layout.dags / f"{TRAINER}.py").exists():
        return None
    trainer = client.of(TRAINER)
    wait_until_ready(airflow, trainer, ANY_TIME, signals)
    return trainer


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
