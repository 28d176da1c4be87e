"""The DAG that compares inputs: from images to a page, and nothing twice."""

from pathlib import Path

import pytest

from tests.conftest import MakeImages
from tests.dags.conftest import RunDag

pytestmark = pytest.mark.filterwarnings("default")  # Airflow warns itself of much


@pytest.mark.long
def test_settings_that_cannot_be_compared_are_refused_by_the_first_task(
    run_dag: RunDag, make_images: MakeImages, capfd: pytest.CaptureFixture
):
    source = make_images({"cats": 10, "dogs": 10})
    ran = run_dag("input_comparison", {"source_uri": str(source), "crop": "random_resized"})
    assert (ran.tasks["choose"], ran.tries["choose"]) == ("failed", 1)
    assert "crop must be random or whole" in "".join(capfd.readouterr())


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_from_images_to_a_page(run_dag: RunDag, make_images: MakeImages):
    source = make_images({"cats": 12, "dogs": 12})
    form = {
        "source_uri": str(source),
        "contenders": "files,shards,resized",
        "rounds": 2,
        "epochs": 2,
        "image_size": 32,
        "batch_size": 8,
        "simulated_step_ms": 2,
        "measure_seconds": 0.1,
    }
    ran = run_dag("input_comparison", form)
    assert ran.state == "success"
    result = ran.returned("page")
    assert Path(result["page"]).is_file()
    assert len(list(Path(result["comparison"]).glob("measurements/*/measurement.json"))) == 6
    assert result["verdict"]
