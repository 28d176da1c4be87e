"""The trainings of Airflow's runs, by what the tasks stored in Airflow's database."""

import gc
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from airflow.models.dagrun import DagRun, DagRunNote
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, State, TaskInstanceState
from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import Session

from dags.gpu_pool import GPU_POOL, TRAIN
from dags.xcom_keys import COMPARISON_PLACE, DATASET_PLACE, FAILURE, TRAINING_PLACE
from pipeline.config.allowed import Outputs
from pipeline.storage import Place
from plugins.training_monitor.not_started import Stage, stages
from plugins.training_monitor.stored import OF_RUN, allowed_of, places_of, settings_of, xcoms

if TYPE_CHECKING:
    from pipeline.watch.queue_wait import TimesLeft

Link = tuple[str, str]
"""Text and address of a link."""
MAX_MESSAGE = 2000
"""Maximum length of an error message on a page, in characters."""
MAX_KEPT = 20_000
"""Maximum number of ended runs in memory."""
FREEZE_FROM = 1000
"""Number of newly loaded runs after which `EndedRuns.freeze` freezes all objects."""
_AT_ONCE = 500
"""Number of runs that are loaded at once. A database limits the number of values in a query."""
_TRAINS = (TaskInstance.pool == GPU_POOL, TaskInstance.task_id == TRAIN)
"""Conditions of the task that trains a model."""


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
    stage: Stage | None = None
    """What it does before its training starts; None if it has ended. `load_runs` does not set it."""
    has_training_task: bool = True
    """Whether a task of it trains a model. Only `find_run` sets it."""
    user: str = ""
    """Who triggered it; empty if nobody did, as for a schedule."""
    note: str = ""
    """What people wrote about it in Airflow."""
    comparison: Place | None = None
    """The folder of its comparison of inputs; None if it has none."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Its form, with the settings that its first task fixed. Empty if it has a training, which has settings itself."""
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


def find_run(dag_id: str, run_id: str, times_left: "TimesLeft | None" = None) -> AirflowRun | None:
    """Return the run with these ids; None if there is none.

    `times_left` keeps what earlier calls have read. Without it, each call reads the running trainings again.
    """
    if "\0" in dag_id + run_id:  # PostgreSQL refuses text with a zero byte.
        return None
    with create_session() as session:
        runs = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        run = next(load_runs(session, runs), None)
        if run is None:
            return None
        training_task = select(TaskInstance.id).where(
            TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, *_TRAINS
        )
        has_training_task = session.scalars(training_task.limit(1)).first() is not None
        return _with_stages(session, [run], times_left)[0]._replace(has_training_task=has_training_task)


class Trainings:
    """Runs of some DAGs that have or had a training, that have not started it yet, or that failed before it."""

    def __init__(self, dag_ids: Collection[str]) -> None:
        trained = select(XComModel.dag_run_id).where(XComModel.key == TRAINING_PLACE)
        # A run whose training has not started stored no place of it. If it succeeds without one, it chose not to train.
        would_train = select(TaskInstance.id).where(OF_RUN, *_TRAINS).exists()
        without_training = and_(DagRun.state != DagRunState.SUCCESS, would_train)
        self._conditions = [DagRun.dag_id.in_(dag_ids), or_(DagRun.id.in_(trained), without_training)]

    def count(self) -> int:
        """Return how many there are."""
        with create_session() as session:
            return session.scalar(select(func.count()).select_from(DagRun).where(*self._conditions)) or 0

    def newest(self, limit: int, times_left: "TimesLeft", offset: int = 0) -> list[AirflowRun]:
        """Return up to `limit` of them, the newest first, from the one at `offset` on."""
        runs = self._newest(limit).offset(offset)
        with create_session() as session:
            return _with_stages(session, list(load_runs(session, runs)), times_left)

    def newest_in_time(
        self, limit: int, ended: "EndedRuns", times_left: "TimesLeft", budget_s: float
    ) -> tuple[list[AirflowRun], int]:
        """Return up to `limit` of them, the newest first, and how many are left out because `budget_s` were over.

        Runs in `ended` that have not changed are not loaded again, so that the next call comes closer to the end.
        """
        with create_session() as session:
            runs, later = ended.load_runs(session, self._newest(limit), budget_s)
            return _with_stages(session, runs, times_left), later

    def _newest(self, limit: int) -> Select[Any]:
        # A run that is cleared starts again, and keeps its number.
        waits = and_(DagRun.start_date.is_(None), DagRun.state.not_in(State.finished_dr_states))
        newest = (waits.desc(), DagRun.start_date.desc().nulls_last(), DagRun.id.desc())
        return select(DagRun).where(*self._conditions).order_by(*newest).limit(limit)


class _Version(NamedTuple):
    """Values that change with a run. Airflow's number is used again after a run was deleted, in SQLite."""

    run_id: str
    state: str
    updated: datetime | None
    note_updated: datetime | None

    @property
    def is_over(self) -> bool:
        """Whether no task of the run will run any more."""
        return self.state in State.finished_dr_states


class EndedRuns:
    """Runs that have ended, as the database had them. It keeps thousands, so that a search loads only changed ones.

    Any number of threads may use it.
    """

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._not_frozen = 0
        """Number of runs that were loaded since all objects were frozen."""
        self._kept: OrderedDict[int, tuple[_Version, AirflowRun]] = OrderedDict()
        """The version and the run by Airflow's number. The run that was used most recently is the last one."""
        self._allowed: Any = None
        """The places that the administrator allowed when the runs were loaded."""
        self._lock = threading.Lock()

    def load_runs(
        self, session: Session, runs: Select[Any], budget_s: float = math.inf
    ) -> tuple[list[AirflowRun], int]:
        """Return the runs of a query in its order, and the number of those that were not loaded within `budget_s`."""
        end = time.monotonic() + budget_s
        versions = _versions(session, runs)
        kept = self._find(versions)
        found = dict(kept)
        going = [number for number, version in versions.items() if not version.is_over]
        ended = [number for number, version in versions.items() if version.is_over and number not in kept]
        # Runs that have not ended are always loaded. They are not kept, so a later call would be no closer to the end.
        found |= {run.number: run for chunk in _chunks(going) for run in load_runs(session, chunk)}
        for chunk in _chunks(ended):
            found |= {run.number: run for run in load_runs(session, chunk)}
            if time.monotonic() > end:
                break
        new = {number: run for number, run in found.items() if run.is_over and number not in kept}
        self._keep({number: (versions[number], run) for number, run in new.items()})
        loaded = [found[number] for number in versions if number in found]
        # A run that was deleted meanwhile is not loaded either. The next call does not find it.
        return loaded, len(versions) - len(loaded)

    def _find(self, versions: Mapping[int, _Version]) -> dict[int, AirflowRun]:
        """Return the runs in memory that have these versions. They stay there, for searches at the same time."""
        with self._lock:
            if self._allowed != (allowed := Outputs().allowed):
                self._kept.clear()
                self._allowed = allowed
            kept = {number: self._kept[number] for number in versions if number in self._kept}
            found = {number: run for number, (version, run) in kept.items() if version == versions[number]}
            for number in found:
                self._kept.move_to_end(number)
        return found

    def _keep(self, runs: Mapping[int, tuple[_Version, AirflowRun]]) -> None:
        with self._lock:
            for number, versioned in runs.items():
                self._kept[number] = versioned
                self._kept.move_to_end(number)
            while len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
            self._not_frozen += len(runs)

    def freeze(self) -> None:
        """Freeze all objects of this process if many runs are new, so that collections of garbage skip them.

        A search makes thousands of short-lived objects. Every few searches, they start a collection that visits all
        objects, also those of Airflow, which takes most of a second. Frozen garbage is never released. It is little,
        because a run is loaded only once, and its objects are frozen once for each thousand runs.
        """
        with self._lock:
            if self._not_frozen < FREEZE_FROM:
                return
            self._not_frozen = 0
        gc.collect(1)
        gc.freeze()


def _versions(session: Session, runs: Select[Any]) -> dict[int, _Version]:
    """Return the version of each of the runs of a query, by Airflow's numbers, in the order of the query."""
    columns = (DagRun.id, DagRun.run_id, DagRun.state, DagRun.updated_at, DagRunNote.updated_at)
    query = runs.with_only_columns(*columns).outerjoin(DagRunNote, DagRunNote.dag_run_id == DagRun.id)
    return {number: _Version(*version) for number, *version in session.execute(query)}


def _chunks(numbers: Sequence[int]) -> Iterator[Select[Any]]:
    """Yield queries of runs, by Airflow's numbers."""
    for begin in range(0, len(numbers), _AT_ONCE):
        yield select(DagRun).where(DagRun.id.in_(numbers[begin : begin + _AT_ONCE]))


def _with_stages(
    session: Session, runs: Sequence[AirflowRun], times_left: "TimesLeft | None" = None
) -> list[AirflowRun]:
    """Return runs with the stage of those that have not ended."""
    from pipeline.watch.queue_wait import TimesLeft

    found = stages(session, [run.number for run in runs if not run.is_over], times_left or TimesLeft())
    return [run._replace(stage=found[run.number]) if run.number in found else run for run in runs]


def load_runs(session: Session, runs: Select[Any]) -> Iterator[AirflowRun]:
    """Yield the runs of a query."""
    # Of the whole model, Airflow would also load the form of each run.
    columns = runs.with_only_columns(
        *(DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.state.label("state"), DagRun.start_date),
        *(DagRun.triggering_user_name.label("user"), DagRunNote.content.label("note")),
    ).outerjoin(DagRunNote, DagRunNote.dag_run_id == DagRun.id)
    dag_runs = session.execute(columns).all()
    numbers = [run.id for run in dag_runs]
    stored = places_of(session, numbers, (TRAINING_PLACE, DATASET_PLACE, COMPARISON_PLACE))
    settings = settings_of(session, [number for number in numbers if number not in stored[TRAINING_PLACE]])
    failures, outputs = _failures(session, numbers), Outputs()
    for run in dag_runs:
        places, refusal = allowed_of({key: of_runs.get(run.id) for key, of_runs in stored.items()}, outputs)
        yield AirflowRun(
            number=run.id,
            dag_id=run.dag_id,
            run_id=run.run_id,
            state=str(run.state),
            start=run.start_date,
            user=run.user or "",
            note=run.note or "",
            training=places[TRAINING_PLACE],
            dataset=places[DATASET_PLACE],
            comparison=places[COMPARISON_PLACE],
            failure=failures.get(run.id),
            settings=settings.get(run.id, {}),
            refusal=refusal,
        )


def _failures(session: Session, runs: Sequence[int]) -> dict[int, Failure]:
    """Return the task that failed first in each of the runs."""
    failed = (
        select(DagRun.id, TaskInstance.task_id, TaskInstance.map_index)
        .join(TaskInstance, OF_RUN)
        .where(DagRun.id.in_(runs), TaskInstance.state == TaskInstanceState.FAILED)
        .order_by(TaskInstance.end_date.desc())
    )
    # The last row of a run wins, and that is the task that failed first.
    first = {number: (task_id, map_index) for number, task_id, map_index in session.execute(failed)}
    # Only those of the first tasks are decoded: a run may have hundreds.
    stored = session.execute(xcoms(first, [FAILURE]))
    failures = {(each.dag_run_id, each.task_id, each.map_index): each for each in stored}
    return {number: Failure(*task, _message(failures.get((number, *task)))) for number, task in first.items()}


def _message(xcom: Any) -> str:
    return "" if xcom is None else str(XComModel.deserialize_value(xcom))[:MAX_MESSAGE]
