"""The queue of the pool of the trainings: its order is that of Airflow's scheduler, its times are estimates."""

import math
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import Select, case, func, select
from sqlalchemy.orm import Session

from dags.gpu_pool import GPU_POOL, TRAIN, pool_command
from dags.xcom_keys import TRAINING_PLACE
from pipeline.config.allowed import Outputs
from plugins.training_monitor.stored import OF_RUN, allowed_of, places_of, settings_of

if TYPE_CHECKING:
    from pipeline.watch.queue_wait import Start, TimesLeft, Use

RUNNING = (TaskInstanceState.RUNNING, TaskInstanceState.RESTARTING)
LAST = 5
"""A run is expected to take as long as the median of this number of earlier ones like it."""
MAX_LOOKED_AT = 50
"""Runs with the same dataset are looked for among this number of the last runs of a DAG."""


def counted(number: int, noun: str) -> str:
    """Write a number of things as in 1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class _Entry(NamedTuple):
    """The tasks of a run with the same id that have slots of the pool, or wait for them."""

    number: int
    """Airflow's own number of the run."""
    dag_id: str
    backfill_id: int | None
    task_id: str
    slots: int
    start: datetime | None
    """Start of the first one; None if none runs."""


class PoolQueue:
    """The pool of the trainings, and the runs that wait for slots of it, as the scheduler will take them.

    The database is read when something is asked. `session` must be open until then.
    """

    def __init__(self, session: Session, times_left: "TimesLeft") -> None:
        self._session, self._times_left = session, times_left

    @cached_property
    def _pool(self) -> Pool | None:
        return Pool.get_pool(GPU_POOL, session=self._session)

    @cached_property
    def _is_full(self) -> bool:
        return self._pool is not None and 0 <= self._pool.slots <= self._pool.occupied_slots(session=self._session)

    @cached_property
    def _waiting(self) -> list[_Entry]:
        """The runs that wait for slots of the pool."""
        return [*_entries(self._session.execute(_waiting()))]

    def words(self, number: int, task_id: str, state: str | None, servers: int) -> str:
        """Return what a task waits for, and what to do about it. `servers` is the number of tasks with its id."""
        if self._pool is None:
            return (
                f"{task_id} waits for the pool {GPU_POOL!r}, which does not exist: create it with "
                f"`{pool_command(1)}`, or under Admin, Pools"
            )
        slots = self._pool.slots
        if 0 <= slots < servers:
            if servers == 1:
                return (
                    f"{task_id} needs 1 slot of the pool {GPU_POOL!r}, but the pool has 0: add slots under Admin, Pools"
                )
            return (
                f"{task_id} needs {servers} slots of the pool {GPU_POOL!r} at the same time, but the pool has {slots}: "
                "add slots under Admin, Pools, or train on fewer servers (num_training_servers)"
            )
        if state == TaskInstanceState.QUEUED:
            return f"{task_id} has a slot of the pool {GPU_POOL!r}, and waits for a worker"
        place = next(
            (at for at, each in enumerate(self._waiting, 1) if (each.number, each.task_id) == (number, task_id)), 0
        )
        if not (self._is_full and place):
            return f"{task_id} is about to start"
        from pipeline.watch.queue_wait import start_words

        return (
            f"{task_id} is number {place} of {len(self._waiting)} in the queue of the pool {GPU_POOL!r}, which has "
            f"{counted(slots, 'slot')}; {start_words(self._starts[place - 1])}"
        )

    def words_of_next(self, dag_id: str, backfill_id: int | None, running: int, subject: str) -> str:
        """Return when the next run of a DAG, or of a backfill of it, starts that has as many runs as it may have.

        It starts when the first one of the `running` runs ends. Return an empty text if one of them is not in the pool:
        nothing says when it ends. `subject` names the next run.
        """
        if self._pool is None or self._pool.slots < 0:
            return ""
        from pipeline.watch.queue_wait import Start, start_words

        entries = [*self._started, *self._waiting]
        starts = [*(Start(0.0, use.seconds, ()) for use in self._held), *self._starts]
        uses = [*self._held, *self._uses]
        # Of a run with a server that waits for its slot, the entry in the queue counts.
        ends = {
            entry.number: Start(start.end, math.inf, (*start.before, use))
            for entry, start, use in zip(entries, starts, uses, strict=True)
            if (entry.dag_id, entry.backfill_id) == (dag_id, backfill_id)
        }
        return start_words(min(ends.values()), subject) if len(ends) >= running > 0 else ""

    @cached_property
    def _started(self) -> list[_Entry]:
        """The runs that have slots of the pool."""
        return [*_entries(self._session.execute(_tasks_in(self._pool.get_occupied_states())))] if self._pool else []

    @cached_property
    def _usual(self) -> "_UsualTimes":
        return _UsualTimes(self._session, [*self._started, *self._waiting])

    @cached_property
    def _held(self) -> "list[Use]":
        """For how long each of the runs that have slots keeps them: as its page says, else as long as earlier ones."""
        from pipeline.watch.queue_wait import Use

        waiting = {(each.number, each.task_id) for each in self._waiting}
        numbers, outputs = [each.number for each in self._started], Outputs()
        places = places_of(self._session, numbers, (TRAINING_PLACE,))[TRAINING_PLACE]
        found = []
        for each in self._started:
            if (each.number, each.task_id) in waiting:  # Other training servers of it still wait for their slots.
                found.append(Use(each.slots, math.inf, is_part=True))
                continue
            place = allowed_of({TRAINING_PLACE: places.get(each.number)}, outputs)[0][TRAINING_PLACE]
            # The list reads no record in a bucket.
            left = self._times_left.find(place) if each.task_id == TRAIN and isinstance(place, Path) else None
            found.append(self._usual.use(each) if left is None else Use(each.slots, left.seconds, why=left.why))
        return found

    @cached_property
    def _uses(self) -> "list[Use]":
        """What each of the waiting runs will take."""
        held = {(each.number, each.task_id): each.slots for each in self._started}
        return [self._usual.use(each)._replace(held=held.get((each.number, each.task_id), 0)) for each in self._waiting]

    @cached_property
    def _starts(self) -> "list[Start]":
        """When each of the waiting runs starts."""
        from pipeline.watch.queue_wait import expected_starts

        return [*expected_starts(self._pool.slots, self._held, self._uses)] if self._pool else []


def _tasks_in(states: Collection[TaskInstanceState]) -> Select[Any]:
    """Return the query of the tasks of the pool that are in some states."""
    # A task that waits for its next try has the start of the one before.
    start = case((TaskInstance.state.in_(RUNNING), TaskInstance.start_date))
    return (
        select(DagRun.id, DagRun.dag_id, DagRun.backfill_id, TaskInstance.task_id, TaskInstance.pool_slots, start)
        .join(TaskInstance, OF_RUN)
        .where(TaskInstance.pool == GPU_POOL, TaskInstance.state.in_(states))
    )


def _waiting() -> Select[Any]:
    """Return the query of the tasks that wait for a slot of the pool, in the order of Airflow's scheduler."""
    return (
        _tasks_in([TaskInstanceState.SCHEDULED])
        .join(DagModel, DagModel.dag_id == DagRun.dag_id, isouter=True)
        .where(DagRun.state == DagRunState.RUNNING, DagModel.is_paused.is_not(True))
        # If the scheduler's order does not decide, the older run is named first.
        .order_by(-TaskInstance.priority_weight, DagRun.logical_date, TaskInstance.map_index, DagRun.id)
    )


def _entries(tasks: Iterable[Any]) -> Iterable[_Entry]:
    """Return the entry of each run, in the order of its first task."""
    found: dict[tuple[int, str], _Entry] = {}
    for number, dag_id, backfill_id, task_id, slots, start in tasks:
        before = found.get((number, task_id), _Entry(number, dag_id, backfill_id, task_id, slots=0, start=start))
        starts = [each for each in (before.start, start) if each]
        found[number, task_id] = before._replace(slots=before.slots + slots, start=min(starts, default=None))
    return found.values()


class _UsualTimes:
    """How long the last runs took that are like those that wait for the pool or have slots of it."""

    def __init__(self, session: Session, entries: Sequence[_Entry]) -> None:
        kinds = {(each.dag_id, each.task_id) for each in entries}
        self._ended = {kind: _last_ended(session, *kind) for kind in kinds}
        numbers = {each.number for each in entries}.union(*self._ended.values())
        settings = settings_of(session, [*numbers])
        self._datasets = {number: settings.get(number, {}).get("dataset_name") for number in numbers}

    def use(self, entry: _Entry) -> "Use":
        """Return for how long a run keeps its slots if it takes as long as earlier ones."""
        from pipeline.watch.queue_wait import NONE_ENDED, Use, overdue

        whole, like = self._median_s(entry)
        left = whole - (datetime.now(UTC) - entry.start).total_seconds() if entry.start else whole
        why = NONE_ENDED if math.isinf(whole) else overdue(like) if left < 0 else ""
        return Use(entry.slots, math.inf if why else left, like="" if why else like, why=why)

    def _median_s(self, entry: _Entry) -> tuple[float, str]:
        """Return how long the last ones took of the same dataset, else of the DAG, and which of both.

        It is infinite if none has ended.
        """
        ended = self._ended[entry.dag_id, entry.task_id]
        dataset = self._datasets[entry.number]
        same = [seconds for number, seconds in ended.items() if dataset and self._datasets[number] == dataset]
        return median((same or [*ended.values()])[:LAST] or [math.inf]), "dataset" if same else "DAG"


def _last_ended(session: Session, dag_id: str, task_id: str) -> dict[int, float]:
    """Return how long a task of the last runs of a DAG took that succeeded (s), by Airflow's number of the run."""
    # Of several servers, from the start of the first one to the end of the last one.
    ended = (
        select(DagRun.id, func.min(TaskInstance.start_date), func.max(TaskInstance.end_date))
        .join(TaskInstance, OF_RUN)
        .where(
            TaskInstance.pool == GPU_POOL,
            TaskInstance.state == TaskInstanceState.SUCCESS,
            DagRun.dag_id == dag_id,
            TaskInstance.task_id == task_id,
            TaskInstance.start_date.is_not(None),
            TaskInstance.end_date.is_not(None),
        )
        .group_by(DagRun.id)
        .order_by(DagRun.id.desc())
        .limit(MAX_LOOKED_AT)
    )
    return {number: (end - start).total_seconds() for number, start, end in session.execute(ended)}
