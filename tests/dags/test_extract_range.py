"""The mapped tasks that list the ranges of a large source."""

import json
from pathlib import Path

import pytest

from pipeline.tables.samples import write_sample_table
from tests.conftest import MakeImages
from tests.dags.conftest import RunDag
from tests.dags.test_engines import digests

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.long]  # Airflow itself causes many warnings


@pytest.fixture
def source(make_images: MakeImages) -> Path:
    return make_images({"cats": 40, "dogs": 40})


def test_a_divided_source_gives_the_same_dataset(
    run_dag: RunDag, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    form = {"source_uri": str(source), "workspace": str(tmp_path / "one"), "publish_uri": str(tmp_path / "expected")}
    assert run_dag("image_dataset", form).tasks["extract_range"] == "skipped"
    monkeypatch.setenv("TENFOLD_RANGE_IMAGES", "20")
    form |= {"workspace": str(tmp_path / "many"), "publish_uri": str(tmp_path / "published")}
    divided = run_dag("image_dataset", form)
    assert divided.state == "success"
    ranges = divided.returned("extract")
    assert len(ranges) == 4
    assert {divided.tasks[f"extract_range[{index}]"] for index in range(4)} == {"success"}
    assert digests(tmp_path / "published") == digests(tmp_path / "expected") != {}


def test_a_divided_table_gives_the_same_dataset(run_dag: RunDag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_sample_table(tmp_path / "customers.csv", 40_000)
    form = {"source_uri": str(tmp_path / "customers.csv"), "label_column": "churn", "num_shards": 2}
    form |= {"workspace": str(tmp_path / "one"), "publish_uri": str(tmp_path / "expected")}
    assert run_dag("tabular_dataset", form).tasks["extract_range"] == "skipped"
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    form |= {"workspace": str(tmp_path / "many"), "publish_uri": str(tmp_path / "published")}
    divided = run_dag("tabular_dataset", form)
    assert divided.state == "success"
    ranges = divided.returned("extract")
    assert len(ranges) > 1
    assert {divided.tasks[f"extract_range[{index}]"] for index in range(len(ranges))} == {"success"}
    assert digests(tmp_path / "published") == digests(tmp_path / "expected") != {}


def test_what_a_training_refuses_is_refused_before_a_shard_is_planned(
    run_dag: RunDag, source: Path, monkeypatch: pytest.MonkeyPatch
):
    """Only all ranges together show that an image has several labels."""
    monkeypatch.setenv("TENFOLD_RANGE_IMAGES", "20")
    rows = [{"path": str(path), "label": [path.parent.name]} for path in sorted(source.rglob("*.jpg"))]
    rows[3]["label"] = ["cats", "pets"]
    (source / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = run_dag("image_training", {"source_uri": str(source / "list.jsonl"), "balanced": True})
    assert refused.state == "failed"
    assert {refused.tasks[f"extract_range[{index}]"] for index in range(4)} == {"success"}
    assert (refused.tasks["shard.plan"], refused.tries["shard.plan"]) == ("failed", 1)
    assert "balanced must be false for images with several labels" in refused.left("shard.plan", "failure")
