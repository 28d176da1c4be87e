"""What runs do whose training has not started: they wait for Airflow, the pool or a person, or build the dataset."""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.models.backfill import Backfill
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import DagRunState, State, TaskInstanceState
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dags.gpu_pool import GPU_POOL, TRAIN
from plugins.training_monitor.pool_queue import RUNNING, PoolQueue, counted
from plugins.training_monitor.stored import OF_RUN

if TYPE_CHECKING:
    from pipeline.watch.queue_wait import TimesLeft

_PENDING = (TaskInstanceState.SCHEDULED, TaskInstanceState.QUEUED)
"""States of a task that waits for a slot of its pool, or for a worker."""
_STARTED = (TaskInstanceState.AWAITING_INPUT, TaskInstanceState.DEFERRED, TaskInstanceState.QUEUED)
"""States of a task that goes on even if the DAG is paused."""
_WAITING = {
    TaskInstanceState.AWAITING_INPUT: "waits for the answer of a person: answer under Required Actions",
    TaskInstanceState.DEFERRED: "waits for an event, and uses no worker",
    TaskInstanceState.UP_FOR_RETRY: "failed, and Airflow will try it again",
    TaskInstanceState.UP_FOR_RESCHEDULE: "waits until Airflow calls it again",
    TaskInstanceState.QUEUED: "waits for a worker",
    TaskInstanceState.SCHEDULED: "is about to start",
}
"""What a task does that neither runs nor has ended. Of several states, the first one explains the run."""


class Stage(NamedTuple):
    """How far a run is that has not ended."""

    state: str
    """`waiting`, `building` (a task before the training runs) or `starting` (the task of the training runs)."""
    words: str
    """What it waits for or does, and what to do about it."""
    done: str = ""
    """How many of its tasks are done; empty if no task has started."""


class _Tasks(NamedTuple):
    """The tasks of a run with the same id, state and pool. A mapped task may be many of them."""

    task_id: str
    state: str | None
    pool: str
    number: int
    start: datetime | None
    """Start of the first one."""


def stages(session: Session, numbers: Collection[int], times_left: "TimesLeft") -> dict[int, Stage]:
    """Return the stage of each run that has not ended, by Airflow's numbers of the runs."""
    going = select(DagRun.id, DagRun.dag_id, DagRun.backfill_id, DagRun.state.label("state")).where(
        DagRun.id.in_(numbers), DagRun.state.in_(State.unfinished_dr_states)
    )
    runs = session.execute(going).all() if numbers else []
    if not runs:
        return {}
    tasks = _tasks(session, [run.id for run in runs if run.state == DagRunState.RUNNING])
    queue = PoolQueue(session, times_left)
    dags = _Dags(session, {run.dag_id for run in runs})

    def stage(run: Any) -> Stage:
        is_queued = run.state == DagRunState.QUEUED
        own = tasks.get(run.id, [])
        found = dags.stage_of_queued(run.dag_id, run.backfill_id, queue) if is_queued else _stage(run.id, own, queue)
        # A pause does not hold up what a task waits for that Airflow has started, as for a person.
        is_held_up = is_queued or not any(task.state in _STARTED for task in own)
        if found.state == "waiting" and is_held_up and dags.is_paused(run.dag_id):
            return found._replace(words=f"the DAG {run.dag_id} is paused: turn it on, and the run goes on")
        return found

    return {run.id: stage(run) for run in runs}


def _tasks(session: Session, numbers: Collection[int]) -> dict[int, list[_Tasks]]:
    """Return the tasks of each of the runs."""
    kind = (DagRun.id, TaskInstance.task_id, TaskInstance.state, TaskInstance.pool)
    grouped = (
        select(*kind, func.count(), func.min(TaskInstance.start_date))
        .join(TaskInstance, OF_RUN)
        .where(DagRun.id.in_(numbers))
        .group_by(*kind)
        .order_by(func.min(TaskInstance.start_date), TaskInstance.task_id)
    )
    found: dict[int, list[_Tasks]] = {}
    for number, *columns in session.execute(grouped):
        found.setdefault(number, []).append(_Tasks(*columns))
    return found


class _Dags:
    """Some DAGs, and the numbers of their runs that have not ended."""

    def __init__(self, session: Session, dag_ids: Collection[str]) -> None:
        dags = select(DagModel.dag_id, DagModel.is_paused, DagModel.max_active_runs).where(DagModel.dag_id.in_(dag_ids))
        self._dags = {dag.dag_id: dag for dag in session.execute(dags)}
        # As the scheduler does: the runs of a backfill have a limit of their own.
        kind = (DagRun.dag_id, DagRun.backfill_id, DagRun.state, Backfill.max_active_runs)
        counts = (
            select(*kind, func.count())
            .join(Backfill, Backfill.id == DagRun.backfill_id, isouter=True)
            .where(DagRun.dag_id.in_(dag_ids), DagRun.state.in_(State.unfinished_dr_states))
            .group_by(*kind)
        )
        self._counts: dict[tuple[str, int | None, str], int] = {}
        self._limits: dict[int | None, int] = {}
        for dag_id, backfill_id, state, limit, count in session.execute(counts):
            self._counts[dag_id, backfill_id, state] = count
            if limit is not None:
                self._limits[backfill_id] = limit

    def is_paused(self, dag_id: str) -> bool:
        """Return whether Airflow starts nothing of a DAG."""
        return dag_id in self._dags and bool(self._dags[dag_id].is_paused)

    def stage_of_queued(self, dag_id: str, backfill_id: int | None, queue: PoolQueue) -> Stage:
        """Return the stage of each queued run of a DAG, or of one of its backfills."""
        dag = self._dags.get(dag_id)
        waiting, running = (
            self._counts.get((dag_id, backfill_id, state), 0) for state in (DagRunState.QUEUED, DagRunState.RUNNING)
        )
        if dag is not None and running >= (limit := self._limits.get(backfill_id, dag.max_active_runs)):
            runs = f"{counted(limit, 'run')} of {'' if backfill_id is None else 'this backfill of '}{dag_id}"
            wait = "1 waits for its start" if waiting == 1 else f"{waiting} wait for their start"
            subject = "the next one" if waiting > 1 else "it"
            words = queue.words_of_next(dag_id, backfill_id, running, subject)
            return Stage("waiting", f"at most {runs} at the same time: {wait}{'; ' if words else ''}{words}")
        return Stage("waiting", "Airflow has not started the run yet")


def _stage(number: int, tasks: Sequence[_Tasks], queue: PoolQueue) -> Stage:
    """Return the stage of a run that has started."""
    done = sum(task.number for task in tasks if task.state in State.finished)
    share = f"{done} of {counted(sum(task.number for task in tasks), 'task')}"
    running = [task for task in tasks if task.state in RUNNING]
    pending = _pending_in_pool(tasks)
    # Of several servers, those that wait hold up those that run.
    if pending:
        servers = sum(task.number for task in tasks if task.task_id == pending.task_id)
        return Stage("waiting", queue.words(number, pending.task_id, pending.state, servers), share)
    if any(task.task_id == TRAIN for task in running):
        return Stage("starting", f"{TRAIN} has started, and prepares the training", share)
    if running:
        return Stage("building", " and ".join(_running(task, tasks) for task in running), share)
    for state, words in _WAITING.items():
        if waiting := next((task.task_id for task in tasks if task.state == state), None):
            return Stage("waiting", f"{waiting} {words}", share)
    return Stage("waiting", "Airflow has not started its next task yet", share)


def _pending_in_pool(tasks: Iterable[_Tasks]) -> _Tasks | None:
    return next((task for task in tasks if task.pool == GPU_POOL and task.state in _PENDING), None)


def _running(task: _Tasks, tasks: Sequence[_Tasks]) -> str:
    """Return for how long a task has run; of a mapped task, how many parts are done."""
    from pipeline.watch.status import duration

    parts = [other for other in tasks if other.task_id == task.task_id]
    if (whole := sum(part.number for part in parts)) > 1:
        done = sum(part.number for part in parts if part.state in State.finished)
        return f"{task.task_id} is running: {done} of {whole} parts are done"
    lasted = "" if task.start is None else f", for {duration((datetime.now(UTC) - task.start).total_seconds())} so far"
    return f"{task.task_id} is running{lasted}"
