"""Callbacks that Airflow's dag-processor runs itself: for a task that died together with its worker."""

import io
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest

pytestmark = pytest.mark.filterwarnings("default")  # Airflow warns itself of much
DAG = """
from pathlib import Path
from airflow.sdk import BaseOperator, DAG
from dags.failure import store_failure

def tell(context):
    Path({told!r}).write_text(context["ti"].task_id)

with DAG("died", schedule=None):
    BaseOperator(task_id="train", on_failure_callback=[store_failure, tell])
"""


@pytest.mark.timeout(300)
def test_a_task_that_died_with_its_worker_keeps_no_later_callback_waiting(airflow_database: None, tmp_path: Path):
    """A real dag-processor. Only its client of the API server is a mock: no call of this test reaches one."""
    import structlog
    from airflow.callbacks.callback_requests import TaskCallbackRequest
    from airflow.dag_processing.processor import DagFileProcessorProcess
    from airflow.sdk.api.client import Client
    from airflow.sdk.api.datamodels._generated import TaskInstance

    told, file = tmp_path / "told", tmp_path / "died.py"
    file.write_text(DAG.format(told=str(told)))
    ids = dict.fromkeys(("id", "dag_version_id"), "01980000-0000-7000-8000-000000000000")
    died = TaskInstance(dag_id="died", task_id="train", run_id="r", try_number=1, **ids)  # type: ignore[arg-type]
    request = TaskCallbackRequest(filepath="died.py", bundle_name="b", bundle_version=None, msg="lost", ti=died)
    processor = DagFileProcessorProcess.start(
        id=1,  # type: ignore[arg-type]
        path=file,
        bundle_path=tmp_path,
        bundle_name="b",
        dag_file_rel_path="died.py",
        callbacks=[request],
        client=MagicMock(spec=Client),
        logger=structlog.get_logger(),
        logger_filehandle=io.BytesIO(),
    )
    begin = time.monotonic()
    try:
        while not processor.is_ready and time.monotonic() - begin < 60:
            processor._service_subprocess(0.1)
        assert told.read_text() == "train"
    finally:
        processor.kill()
        processor.close()
