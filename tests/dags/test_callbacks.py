"""Callbacks that the DAG processor runs itself, for a task that died with its worker."""

import io
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings
DAG = """
from pathlib import Path
from airflow.sdk import BaseOperator, DAG
from dags.defaults import store_failure

def write_note(context):
    Path({note!r}).write_text(context["ti"].task_id)

with DAG("died", schedule=None):
    BaseOperator(task_id="train", on_failure_callback=[store_failure, write_note])
"""


@pytest.mark.timeout(300)
def test_store_failure_does_not_block_later_callbacks_of_a_dead_task(airflow_database: None, tmp_path: Path):
    """The DAG processor is real. Only its client of the API server is a mock, because there is no server."""
    import structlog
    from airflow.callbacks.callback_requests import TaskCallbackRequest
    from airflow.dag_processing.processor import DagFileProcessorProcess
    from airflow.sdk.api.client import Client
    from airflow.sdk.api.datamodels._generated import TaskInstance

    note, file = tmp_path / "note", tmp_path / "died.py"
    file.write_text(DAG.format(note=str(note)))
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

    def is_ready() -> bool:
        processor._service_subprocess(0)
        return processor.is_ready

    try:
        until(is_ready)
        assert note.read_text() == "train"
    finally:
        processor.kill()
        processor.close()
