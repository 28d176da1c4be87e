"""Rows of runs in the database of Airflow that the plugin reads, without real DAGs and tasks."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from airflow.models.dag import DagModel, clear_team_name_cache
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun, DagRunNote
from airflow.models.taskinstance import TaskInstance
from airflow.models.team import Team
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import delete, insert, update
from sqlalchemy.orm import Session

from dags.gpu_pool import GPU_POOL
from dags.xcom_keys import COMPARISON_PLACE, FAILURE, TRAINING_PLACE

START = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING: Mapping[str, int] = MappingProxyType({})


def add_dag(dag_id: str, team: str) -> None:
    """Add a DAG that only one team can see."""
    with create_session() as session:
        bundle = DagBundleModel(name=f"bundle of {dag_id}")
        bundle.teams = [Team(name=team)]
        session.add(bundle)
        session.flush()
        session.add(DagModel(dag_id=dag_id, bundle_name=bundle.name, is_paused=False))


def add_run(
    dag_id: str,
    run_id: str,
    training: Any,
    state: str = "success",
    pool: str = GPU_POOL,
    failed: Mapping[str, int] = NOTHING,
    error: str = "",
    comparison: str = "",
) -> None:
    """Add a run, which starts one minute after the previous one.

    Args:
        dag_id: Id of the DAG.
        run_id: Id of the run.
        training: Location of the training, which the task `train` stored. None: nothing was stored.
        state: State of the run.
        pool: Pool of the task `train`.
        failed: The minute of the failure for each failed task.
        error: The error message that each failed task stored.
        comparison: Location of the comparison of inputs, which the task stored. Empty: nothing was stored.
    """
    with create_session() as session:
        values = {"dag_id": dag_id, "run_id": run_id, "run_type": "manual", "state": state, "run_after": START}
        number = session.execute(insert(DagRun).values(**values)).inserted_primary_key[0]
        session.get(DagRun, number).start_date = START + timedelta(minutes=number)
        task = {"dag_id": dag_id, "run_id": run_id, "task_id": "train"}
        session.execute(insert(TaskInstance).values(**task, pool=pool))
        for task_id, minute in failed.items():
            ended = {"state": "failed", "end_date": START + timedelta(minutes=minute), "pool": "default_pool"}
            of_task = {**task, "task_id": task_id}
            if task_id == "train":
                session.execute(update(TaskInstance).where(TaskInstance.run_id == run_id).values(state="failed"))
            else:
                session.execute(insert(TaskInstance).values(**of_task, **ended))
            if error:
                store(session, of_task, FAILURE, error)
        for key, place in ((TRAINING_PLACE, training), (COMPARISON_PLACE, comparison or None)):
            if place is not None:
                store(session, task, key, place)


def store(session: Session, task: Mapping[str, str], key: str, value: Any) -> None:
    """Store an XCom as the API server does. In Airflow 3.4, the model is a view of two tables, which takes no rows."""
    XComModel.set(key, value, **task, serialize=False, session=session)


def remove_all() -> None:
    """Remove all rows that the functions above added. The XComs of a task go with it."""
    with create_session() as session:
        for model in (TaskInstance, DagRunNote, DagRun, DagModel, DagBundleModel, Team):
            session.execute(delete(model))
    # Airflow remembers the team of a DAG for 30 seconds, and another test may give the DAG to another one.
    clear_team_name_cache()
