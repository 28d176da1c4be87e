"""Which trainings the runs of Airflow have, by what its tasks left in Airflow's database."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, State, TaskInstanceState
from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import Session

from dags.places import DATASET_PLACE, FAILURE, GPU_POOL, TRAINING_PLACE, pool_command
from pipeline.storage import Place, place_of

MAX_WORDS = 2000
"""Most letters of an error message that a page shows."""
_KEPT_WAITING = (TaskInstanceState.SCHEDULED, TaskInstanceState.QUEUED)


class Failure(NamedTuple):
    """The task that failed first in a run.

    `map_index` is its number if it is a mapped task, else -1. `words` is its error message; empty if it left none.
    """

    task_id: str
    map_index: int
    words: str

    @property
    def sentence(self) -> str:
        """A sentence that says which task failed, and why."""
        return f"Task {self.task_id} failed" + (f": {self.words}" if self.words else ".")


class Found(NamedTuple):
    """A run of Airflow, and where its training and its data set are; None where it has none, or none yet.

    `number` is Airflow's own: that of a later run is higher.
    """

    number: int
    dag_id: str
    run_id: str
    state: str
    start: datetime | None
    training: Place | None
    dataset: Place | None
    failure: Failure | None
    """None if no task failed."""
    waits: str = ""
    """For what a task of it that trains does not start; empty where none is kept waiting, or that was not asked."""
    trains: bool = True
    """Whether any task of it would train, where that was asked."""

    @property
    def is_over(self) -> bool:
        """Whether no task of it will run any more."""
        return self.state in State.finished_dr_states

    def without_words(self) -> "Found":
        """Return the same run without its error message, which says as much as a log does."""
        return self._replace(failure=self.failure and self.failure._replace(words=""))

    @property
    def is_failed(self) -> bool:
        """Whether the run failed."""
        return self.state == DagRunState.FAILED


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
        return found._replace(waits=_waits(session, tasks), trains=bool(tasks))


class Trainings:
    """Runs of some DAGs that have, or had, a training, or that failed before it.

    Args:
        dag_ids: Ids of the DAGs.
        before: Number of a run. Only earlier runs are included.
    """

    def __init__(self, dag_ids: Collection[str], before: int | None = None) -> None:
        trained = select(XComModel.dag_run_id).where(XComModel.key == TRAINING_PLACE)
        of_run = and_(TaskInstance.dag_id == DagRun.dag_id, TaskInstance.run_id == DagRun.run_id)
        would_train = select(TaskInstance.id).where(of_run, TaskInstance.pool == GPU_POOL).exists()
        failed = and_(DagRun.state == DagRunState.FAILED, would_train)
        self._chosen = [DagRun.dag_id.in_(dag_ids), or_(DagRun.id.in_(trained), failed)]
        if before is not None:
            self._chosen.append(DagRun.id < before)

    def count(self) -> int:
        """Return how many there are."""
        with create_session() as session:
            return session.scalar(select(func.count()).select_from(DagRun).where(*self._chosen)) or 0

    def newest(self, most: int, offset: int = 0) -> list[Found]:
        """Return up to `most` of them, the newest first, from the one at `offset` on."""
        runs = select(DagRun).where(*self._chosen).order_by(DagRun.id.desc()).offset(offset).limit(most)
        with create_session() as session:
            return list(_found(session, runs))


def _found(session: Session, runs: Select[Any]) -> Iterator[Found]:
    found = session.scalars(runs).all()
    numbers = [run.id for run in found]
    trainings, datasets = (_places(session, numbers, key) for key in (TRAINING_PLACE, DATASET_PLACE))
    failures = _failures(session, numbers)
    for run in found:
        of_run = trainings.get(run.id), datasets.get(run.id), failures.get(run.id)
        yield Found(run.id, run.dag_id, run.run_id, str(run.state), run.start_date, *of_run)


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


def _failures(session: Session, runs: Sequence[int]) -> dict[int, Failure]:
    """Return the task that failed first in each of the runs."""
    of_run = and_(TaskInstance.dag_id == DagRun.dag_id, TaskInstance.run_id == DagRun.run_id)
    failed = (
        select(DagRun.id, TaskInstance.task_id, TaskInstance.map_index)
        .join(TaskInstance, of_run)
        .where(DagRun.id.in_(runs), TaskInstance.state == TaskInstanceState.FAILED)
        .order_by(TaskInstance.end_date.desc())
    )
    first = {number: (task_id, map_index) for number, task_id, map_index in session.execute(failed)}
    left = select(XComModel).where(XComModel.dag_run_id.in_(first), XComModel.key == FAILURE)
    words = {(each.dag_run_id, each.task_id, each.map_index): each for each in session.scalars(left)}
    return {number: Failure(*task, _words(words.get((number, *task)))) for number, task in first.items()}


def _words(left: XComModel | None) -> str:
    return "" if left is None else str(XComModel.deserialize_value(left))[:MAX_WORDS]


def _waits(session: Session, tasks: Sequence[TaskInstance]) -> str:
    waiting = next((task for task in tasks if task.state in _KEPT_WAITING), None)
    if waiting is None:
        return ""
    pool = Pool.get_pool(GPU_POOL, session=session)
    if pool is None:
        return (
            f"{waiting.task_id} waits for the pool {GPU_POOL!r}, which does not exist: create it with "
            f"`{pool_command(1)}`, or under Admin, Pools."
        )
    if pool.slots < 0:  # -1: without a limit
        return ""
    servers = sum(task.task_id == waiting.task_id for task in tasks)
    if servers == 1 and not pool.slots:
        return (
            f"{waiting.task_id} needs 1 slot of the pool {GPU_POOL!r}, and the pool has 0: give it more under Admin, "
            "Pools."
        )
    if servers > pool.slots:
        return (
            f"{waiting.task_id} needs {servers} slots of the pool {GPU_POOL!r} at the same time, but the pool has "
            f"{pool.slots}: add slots under Admin, Pools, or train on fewer servers (num_training_servers)."
        )
    if pool.slots > pool.occupied_slots(session=session):
        return ""
    return f"{waiting.task_id} waits for one of the {pool.slots} slots of the pool {GPU_POOL!r}, which are taken."
