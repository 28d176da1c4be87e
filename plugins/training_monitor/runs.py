"""Which trainings the runs of Airflow have, by what its tasks left in Airflow's database."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from dags.places import DATASET_PLACE, GPU_POOL, TRAINING_PLACE
from pipeline.storage import Place, place_of

_KEPT_WAITING = (TaskInstanceState.SCHEDULED, TaskInstanceState.QUEUED)


class Found(NamedTuple):
    """A run of Airflow, and where its training and its data set are; None where it has none, or none yet.

    ``number`` is Airflow's own: that of a later run is higher.
    """

    number: int
    dag_id: str
    run_id: str
    state: str
    start: datetime | None
    training: Place | None
    dataset: Place | None
    waits: str = ""
    """For what a task of it that trains does not start; empty where none is kept waiting, or that was not asked."""
    trains: bool = True
    """Whether any task of it would train, where that was asked."""
    failed: str = ""
    """The task that failed first; empty where none did, or that was not asked."""

    @property
    def is_over(self) -> bool:
        """Whether no task of it will run any more."""
        return self.state in State.finished_dr_states


def find_run(dag_id: str, run_id: str) -> Found | None:
    """The run of these ids; None where there is none."""
    if "\0" in dag_id + run_id:  # no database takes it
        return None
    with create_session() as session:
        runs = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        found = next(_found(session, runs), None)
        if found is None:
            return None
        tasks = _training_tasks(session, found)
        return found._replace(waits=_waits(session, tasks), trains=bool(tasks), failed=_failed(session, found))


def newest_trainings(dag_ids: Collection[str], most: int, before: int | None = None) -> list[Found]:
    """Runs of these DAGs that have, or had, a training, the newest first; those ``before`` a run, by its number."""
    train = select(XComModel.dag_run_id).where(XComModel.key == TRAINING_PLACE)
    runs = select(DagRun).where(DagRun.id.in_(train), DagRun.dag_id.in_(dag_ids))
    if before is not None:
        runs = runs.where(DagRun.id < before)
    with create_session() as session:
        return list(_found(session, runs.order_by(DagRun.id.desc()).limit(most)))


def _found(session: Session, runs: Select[Any]) -> Iterator[Found]:
    found = session.scalars(runs).all()
    trainings, datasets = (_places(session, [run.id for run in found], key) for key in (TRAINING_PLACE, DATASET_PLACE))
    for run in found:
        places = trainings.get(run.id), datasets.get(run.id)
        yield Found(run.id, run.dag_id, run.run_id, str(run.state), run.start_date, *places)


def _places(session: Session, runs: Sequence[int], key: str) -> dict[int, Place | None]:
    """The newest place that each of the runs left under a key."""
    left = select(XComModel).where(XComModel.dag_run_id.in_(runs), XComModel.key == key).order_by(XComModel.timestamp)
    return {xcom.dag_run_id: _place(XComModel.deserialize_value(xcom)) for xcom in session.scalars(left)}


def _place(value: Any) -> Place | None:
    try:
        return place_of(value) if isinstance(value, str) and value else None
    except ValueError:  # it names no bucket
        return None


def _tasks(run: Found) -> Select[Any]:
    return select(TaskInstance).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)


def _training_tasks(session: Session, run: Found) -> Sequence[TaskInstance]:
    return session.scalars(_tasks(run).where(TaskInstance.pool == GPU_POOL)).all()


def _failed(session: Session, run: Found) -> str:
    failed = _tasks(run).where(TaskInstance.state == TaskInstanceState.FAILED).order_by(TaskInstance.end_date)
    task = session.scalars(failed.limit(1)).first()
    return task.task_id if task else ""


def _waits(session: Session, tasks: Sequence[TaskInstance]) -> str:
    waiting = next((task for task in tasks if task.state in _KEPT_WAITING), None)
    pool = Pool.get_pool(GPU_POOL, session=session) if waiting else None
    if waiting is None or pool is None or not 0 <= pool.slots <= pool.occupied_slots(session=session):
        return ""
    return f"{waiting.task_id} waits for one of the {pool.slots} slots of the pool {GPU_POOL!r}, which are taken."
