"""The trainings of Airflow's runs, by what the tasks stored in Airflow's database."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, State, TaskInstanceState
from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import Session

from dags.gpu_pool import GPU_POOL, pool_command
from dags.xcom_keys import COMPARISON_PLACE, DATASET_PLACE, FAILURE, TRAINING_PLACE
from pipeline.config.allowed import Outputs
from pipeline.errors import SettingsError
from pipeline.storage import Place, place_of

Link = tuple[str, str]
"""Text and address of a link."""
MAX_MESSAGE = 2000
"""Maximum length of an error message on a page, in characters."""
_PENDING = (TaskInstanceState.SCHEDULED, TaskInstanceState.QUEUED)
"""States of a task that waits for a slot of its pool, or for a worker."""
_OF_RUN = and_(TaskInstance.dag_id == DagRun.dag_id, TaskInstance.run_id == DagRun.run_id)


class Failure(NamedTuple):
    """The task that failed first in a run.

    `map_index` is its number if it is a mapped task, else -1. `message` is its error message; empty if it stored none.
    """

    task_id: str
    map_index: int
    message: str

    @property
    def sentence(self) -> str:
        """A sentence that says which task failed, and why."""
        return f"Task {self.task_id} failed" + (f": {self.message}" if self.message else ".")


class AirflowRun(NamedTuple):
    """A run of Airflow, and what it stored."""

    number: int
    """Airflow's own number. A later run has a higher one."""
    dag_id: str
    run_id: str
    state: str
    start: datetime | None
    training: Place | None
    """The folder of its training; None if it has none yet."""
    dataset: Place | None
    """The folder of its dataset; None if it has none yet."""
    failure: Failure | None
    waiting_for: str = ""
    """What its training task waits for; empty if no training task waits. Only `find_run` sets it."""
    has_training_task: bool = True
    """Whether a task of it trains a model. Only `find_run` sets it."""
    comparison: Place | None = None
    """The folder of its comparison of inputs; None if it has none."""
    refusal: str = ""
    """Why a folder that its tasks stored is left out: the administrator does not allow it. Empty if none is."""

    @property
    def is_over(self) -> bool:
        """Whether no task of it will run any more."""
        return self.state in State.finished_dr_states

    @property
    def log(self) -> Link | None:
        """The link to the log of the task that failed first; None if none failed."""
        if self.failure is None:
            return None
        dag_id, run_id, task_id = (quote(each, safe="") for each in (self.dag_id, self.run_id, self.failure.task_id))
        mapped = "" if self.failure.map_index < 0 else f"/mapped/{self.failure.map_index}"
        # Relative, because Airflow may be served below any path.
        return f"Log of {self.failure.task_id}", f"../dags/{dag_id}/runs/{run_id}/tasks/{task_id}{mapped}"

    def without_error_message(self) -> "AirflowRun":
        """Return the same run without its error message, which says as much as a log does."""
        return self._replace(failure=self.failure and self.failure._replace(message=""))


def find_run(dag_id: str, run_id: str) -> AirflowRun | None:
    """Return the run with these ids; None if there is none."""
    if "\0" in dag_id + run_id:  # PostgreSQL refuses text with a zero byte.
        return None
    with create_session() as session:
        runs = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        run = next(load_runs(session, runs), None)
        if run is None:
            return None
        of_run = and_(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id)
        tasks = session.scalars(select(TaskInstance).where(of_run, TaskInstance.pool == GPU_POOL)).all()
        return run._replace(waiting_for=_waiting_for(session, tasks), has_training_task=bool(tasks))


class Trainings:
    """Runs of some DAGs that have or had a training, or that failed before it.

    If `before` is given, Airflow's number of a run, only earlier runs are included.
    """

    def __init__(self, dag_ids: Collection[str], before: int | None = None) -> None:
        trained = select(XComModel.dag_run_id).where(XComModel.key == TRAINING_PLACE)
        # A run that failed before its training stored no place of it. Its training task is known by its pool.
        would_train = select(TaskInstance.id).where(_OF_RUN, TaskInstance.pool == GPU_POOL).exists()
        failed = and_(DagRun.state == DagRunState.FAILED, would_train)
        self._conditions = [DagRun.dag_id.in_(dag_ids), or_(DagRun.id.in_(trained), failed)]
        if before is not None:
            self._conditions.append(DagRun.id < before)

    def count(self) -> int:
        """Return how many there are."""
        with create_session() as session:
            return session.scalar(select(func.count()).select_from(DagRun).where(*self._conditions)) or 0

    def newest(self, limit: int, offset: int = 0) -> list[AirflowRun]:
        """Return up to `limit` of them, the newest first, from the one at `offset` on."""
        runs = select(DagRun).where(*self._conditions).order_by(DagRun.id.desc()).offset(offset).limit(limit)
        with create_session() as session:
            return list(load_runs(session, runs))


def load_runs(session: Session, runs: Select[Any]) -> Iterator[AirflowRun]:
    """Yield the runs of a query."""
    dag_runs = session.scalars(runs).all()
    numbers = [run.id for run in dag_runs]
    keys = (TRAINING_PLACE, DATASET_PLACE, COMPARISON_PLACE)
    stored = {key: _places(session, numbers, key) for key in keys}
    failures, outputs = _failures(session, numbers), Outputs()
    for run in dag_runs:
        places, refusal = _allowed({key: of_runs.get(run.id) for key, of_runs in stored.items()}, outputs)
        yield AirflowRun(
            number=run.id,
            dag_id=run.dag_id,
            run_id=run.run_id,
            state=str(run.state),
            start=run.start_date,
            training=places[TRAINING_PLACE],
            dataset=places[DATASET_PLACE],
            comparison=places[COMPARISON_PLACE],
            failure=failures.get(run.id),
            refusal=refusal,
        )


def _places(session: Session, runs: Sequence[int], key: str) -> dict[int, Place | None]:
    """Return the newest place that each of the runs stored under an XCom key."""
    xcoms = select(XComModel).where(XComModel.dag_run_id.in_(runs), XComModel.key == key).order_by(XComModel.timestamp)
    return {xcom.dag_run_id: _place(XComModel.deserialize_value(xcom)) for xcom in session.scalars(xcoms)}


def _place(value: Any) -> Place | None:
    try:
        return place_of(value) if isinstance(value, str) and value else None
    except ValueError:  # The URI names no bucket.
        return None


def _allowed(places: Mapping[str, Place | None], outputs: Outputs) -> tuple[dict[str, Place | None], str]:
    """Return places without those that the administrator does not allow, and why one of them is left out.

    Anyone who may change an XCom can name a place, and this process opens it with its own rights.
    """
    allowed, refusal = dict(places), ""
    for key, place in places.items():
        try:
            if place:
                outputs.require(place)
        except SettingsError as error:
            allowed[key], refusal = None, str(error)
    return allowed, refusal


def _failures(session: Session, runs: Sequence[int]) -> dict[int, Failure]:
    """Return the task that failed first in each of the runs."""
    failed = (
        select(DagRun.id, TaskInstance.task_id, TaskInstance.map_index)
        .join(TaskInstance, _OF_RUN)
        .where(DagRun.id.in_(runs), TaskInstance.state == TaskInstanceState.FAILED)
        .order_by(TaskInstance.end_date.desc())
    )
    # The last row of a run wins, and that is the task that failed first.
    first = {number: (task_id, map_index) for number, task_id, map_index in session.execute(failed)}
    xcoms = select(XComModel).where(XComModel.dag_run_id.in_(first), XComModel.key == FAILURE)
    # Only those of the first tasks are decoded: a run may have hundreds.
    failures = {(each.dag_run_id, each.task_id, each.map_index): each for each in session.scalars(xcoms)}
    return {number: Failure(*task, _message(failures.get((number, *task)))) for number, task in first.items()}


def _message(xcom: XComModel | None) -> str:
    return "" if xcom is None else str(XComModel.deserialize_value(xcom))[:MAX_MESSAGE]


def _waiting_for(session: Session, tasks: Sequence[TaskInstance]) -> str:
    """Return what a training task waits for, and what to do about it; empty if none waits for something."""
    waiting = next((task for task in tasks if task.state in _PENDING), None)
    if waiting is None:
        return ""
    pool = Pool.get_pool(GPU_POOL, session=session)
    if pool is None:
        return (
            f"{waiting.task_id} waits for the pool {GPU_POOL!r}, which does not exist: create it with "
            f"`{pool_command(1)}`, or under Admin, Pools."
        )
    if pool.slots < 0:  # -1 means no limit.
        return ""
    servers = sum(task.task_id == waiting.task_id for task in tasks)
    if servers == 1 and not pool.slots:
        return (
            f"{waiting.task_id} needs 1 slot of the pool {GPU_POOL!r}, but the pool has 0: add slots under Admin, "
            "Pools."
        )
    if servers > pool.slots:
        return (
            f"{waiting.task_id} needs {servers} slots of the pool {GPU_POOL!r} at the same time, but the pool has "
            f"{pool.slots}: add slots under Admin, Pools, or train on fewer servers (num_training_servers)."
        )
    if pool.slots > pool.occupied_slots(session=session):
        return ""
    return f"{waiting.task_id} waits for one of the {pool.slots} slots of the pool {GPU_POOL!r}, which other tasks use."
