"""Which training a run of Airflow has, by what its tasks left in Airflow's database."""

from datetime import datetime
from typing import Any, NamedTuple

from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState
from sqlalchemy import select
from sqlalchemy.orm import Session

from dags.places import DATASET_PLACE, GPU_POOL, TRAINING_PLACE
from pipeline.storage import Place, place_of

_KEPT_WAITING = (TaskInstanceState.SCHEDULED, TaskInstanceState.QUEUED)


class Found(NamedTuple):
    """A run of Airflow, and where its training and its data set are; None where it has none, or none yet."""

    dag_id: str
    run_id: str
    state: str
    start: datetime | None
    training: Place | None
    dataset: Place | None
    waits: str
    """For what a task of it that trains does not start; empty where none is kept waiting."""

    @property
    def is_over(self) -> bool:
        """Whether no task of it will run any more."""
        return self.state in State.finished_dr_states


def find_run(dag_id: str, run_id: str) -> Found | None:
    """The run of these ids; None where there is none."""
    if "\0" in dag_id + run_id:  # no database takes it
        return None
    with create_session() as session:
        run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
        return None if run is None else _found(session, run)


def _found(session: Session, run: DagRun) -> Found:
    training, dataset = (_place(session, run, key) for key in (TRAINING_PLACE, DATASET_PLACE))
    waits = _waits(session, run)
    return Found(run.dag_id, run.run_id, str(run.state), run.start_date, training, dataset, waits)


def _waits(session: Session, run: DagRun) -> str:
    of_run = select(TaskInstance).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
    for task in session.scalars(of_run.where(TaskInstance.pool == GPU_POOL, TaskInstance.state.in_(_KEPT_WAITING))):
        pool = Pool.get_pool(GPU_POOL, session=session)
        if pool and 0 <= pool.slots <= pool.occupied_slots(session=session):
            return f"{task.task_id} waits for one of the {pool.slots} slots of the pool {GPU_POOL!r}, which are taken."
    return ""


def _place(session: Session, run: DagRun, key: str) -> Place | None:
    left = select(XComModel).where(XComModel.dag_run_id == run.id, XComModel.key == key)
    newest = session.scalar(left.order_by(XComModel.timestamp.desc()))
    value: Any = newest and XComModel.deserialize_value(newest)
    return place_of(value) if isinstance(value, str) and value else None
