"""The start of a run's deadline. In a file of its own, because the plugin registers it and must not read a DAG."""

from typing import Any

from airflow import __version__
from airflow.sdk.definitions.deadline import BaseDeadlineReference


class RunQueued(BaseDeadlineReference):
    """The time at which a run was first put into the queue.

    With Airflow's own DAGRUN_QUEUED_AT, no failed task and no failed date of a backfill can run again, because Airflow
    3.3.2 then computes with an interval that it has read back as a dictionary.
    """

    if __version__.startswith("3.3."):  # From 3.4 on, Airflow reads the arguments of the method, and warns of this.
        required_kwargs = frozenset({"dag_id", "run_id"})

    def _evaluate_with(self, *, session: Any, dag_id: str, run_id: str) -> Any:
        from airflow.models import DagRun  # Only the scheduler calls this. A DAG has no database.

        return session.query(DagRun.queued_at).filter_by(dag_id=dag_id, run_id=run_id).scalar()
