"""When a run is late. In a file of its own, since the plugin that registers it must not read a DAG."""

from typing import Any

from airflow.sdk.definitions.deadline import BaseDeadlineReference


class RunQueued(BaseDeadlineReference):
    """The time at which a run was first put into the queue.

    With Airflow's own, DAGRUN_QUEUED_AT, neither a task nor a date of a backfill that failed can be run again:
    Airflow 3.3.2 then computes with an interval that it has read back as a dictionary.
    """

    required_kwargs = frozenset({"dag_id", "run_id"})

    def _evaluate_with(self, *, session: Any, dag_id: str, run_id: str) -> Any:
        from airflow.models import DagRun  # the scheduler's alone: a DAG has no database

        return session.query(DagRun.queued_at).filter_by(dag_id=dag_id, run_id=run_id).scalar()
