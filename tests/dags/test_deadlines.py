"""The start of a run's deadline, as the scheduler computes it."""

import warnings
from datetime import UTC, datetime, timedelta

import pytest

from dags.queued import RunQueued

QUEUED = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings
def test_a_deadline_begins_when_the_run_is_queued_without_a_warning(airflow_database: None):
    from airflow.models import DagRun
    from airflow.serialization.definitions.deadline import SerializedReferenceModels
    from airflow.utils.session import create_session

    reference = SerializedReferenceModels.SerializedCustomReference(RunQueued())
    ids = {"dag_id": "retrain", "run_id": "queued"}
    with create_session() as session:
        run = DagRun(**ids, run_after=QUEUED, run_type="manual", state="queued")
        run.queued_at = QUEUED
        session.add(run)
        session.flush()
        with warnings.catch_warnings(action="error"):
            deadline = reference.evaluate_with(session=session, interval=timedelta(hours=1), **ids)
        session.rollback()
    assert deadline == QUEUED + timedelta(hours=1)
