"""What real tasks store in Airflow's database, as the pages of the plugin read it."""

import pytest

from tests.conftest import MakeImages
from tests.dags.conftest import RunDag

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]  # Airflow itself causes many warnings


def test_the_pages_find_the_dataset_and_the_error_that_tasks_stored(run_dag: RunDag, make_images: MakeImages):
    from plugins.training_monitor.runs import find_run

    complete = run_dag("image_dataset", {"source_uri": str(make_images({"cats": 4, "dogs": 4}))})
    found = find_run("image_dataset", complete.run_id)
    assert found is not None
    assert str(found.dataset) == complete.returned("upload.commit")["dataset"]
    assert found.failure is None

    failed = run_dag("image_dataset", {"source_uri": "/not/there"})
    found = find_run("image_dataset", failed.run_id)
    assert found is not None
    assert found.failure is not None
    assert found.failure.task_id == "extract"
    assert "/not/there" in found.failure.message
