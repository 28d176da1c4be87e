"""The DAG image_training in a real Airflow, on tiny JPEGs."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from dags.xcom_keys import FAILURE
from pipeline.dataset.manifest import load
from pipeline.monitor import read
from pipeline.runs.launch import TrainingProcess, prepare_run
from pipeline.runs.promotion import promote_by_hand
from pipeline.runs.run import load_run
from pipeline.storage import BucketPath, copy_new, place_of
from plugins.training_monitor.runs import find_run
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages, jpeg
from tests.dags.conftest import RunDag
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings


@pytest.fixture
def source(make_images: MakeImages) -> Path:
    return make_images({"cats": 10, "dogs": 10})


@pytest.mark.long
def test_a_second_run_skips_completed_data_tasks(run_dag: RunDag, source: Path):
    """Both runs are manual, so they have no logical date. The second run finds the dataset complete."""
    (source / "cats" / "broken.jpg").write_bytes(jpeg(1)[:50])
    first = run_dag("image_training", {"source_uri": str(source), "shards_per_task": 4})
    assert first.state == "success"
    ranges = range(len(first.returned("shard.plan")))
    assert len(ranges) >= 3  # ten training shards, four per task, and the validation shards
    assert first.tasks == {
        "extract": "success",
        "extract_range": "skipped",
        "shard.plan": "success",
        **{f"shard.write[{index}]": "success" for index in ranges},
        "upload.approve": "success",
        **{f"upload.copy[{index}]": "success" for index in ranges},
        "upload.commit": "success",
        "servers": "success",
        "train[0]": "success",
        "promote": "success",
        "report": "success",
    }
    committed, trained = first.returned("upload.commit"), first.returned("train")
    assert committed["rejected"] == 1
    assert sum(committed["examples"].values()) == 20
    assert load(Path(committed["dataset"])).version == committed["version"]
    [archive] = Path(trained["comet"]).glob("try-*/*.zip")
    for path in (trained["model"], archive, first.returned("report")["report"]):
        assert Path(path).stat().st_size > 1000
    asked = first.returned("promote")  # on two images, no model surely beats the baseline
    assert (asked["decision"], asked["champion"]) == ("asked", "")
    assert asked["why"].startswith("a person must decide: the first model of 'source' does not surely beat the basel")
    assert '<span class="badge asked">Decision needed</span>' in Path(first.returned("report")["report"]).read_text()
    assert promote_by_hand(place_of(trained["run"]), output=2)["champion"] == trained["run"]
    of_run = f"?dag_id=image_training&run_id={quote_plus(first.run_id)}"
    assert first.left("report", "_link_ReportLink") == f"tenfold/report{of_run}"
    assert first.left("upload.commit", "_link_CardLink") == f"tenfold/card{of_run}"
    assert first.left("train", "_link_CometLink") == ""  # without a key, there is no online experiment
    found = find_run("image_training", first.run_id)
    assert found
    assert (found.is_over, str(found.training), str(found.dataset)) == (True, trained["run"], committed["dataset"])

    second = run_dag("image_training", {"source_uri": str(source), "shards_per_task": 4})
    assert second.state == "success"
    assert (second.tasks["shard.write"], second.tasks["upload.copy"]) == ("skipped", "skipped")
    assert second.returned("upload.commit") == {**committed, "already_complete": True}
    assert second.returned("train")["run"] != trained["run"]
    gated = second.returned("promote")  # equal dataset, settings and seed give an equal model
    assert (gated["promoted"], gated["champion"]) == (True, second.returned("train")["run"])
    assert "validation images, a difference of 0 points (" in gated["why"]


@pytest.mark.long
def test_two_servers_train_together(run_dag: RunDag, source: Path, tmp_path: Path):
    """`dag.test` runs one task at a time, so a thread of the test runs the other server as its operator would."""

    def begun() -> list[Path]:
        runs = tmp_path / "workspace" / "runs"
        return [path.parent for pattern in ("*/*/run.json", "*/*/servers/1/run.json") for path in runs.glob(pattern)]

    def other_worker() -> dict:
        until(begun)
        first = load_run(begun()[0])
        run = prepare_run(first.settings, place_of(first.dataset), first.run_id, 1 - first.index)
        return TrainingProcess(run, output=1).wait()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(other_worker)
        ran = run_dag("image_training", {"source_uri": str(source), "num_training_servers": 2, "batch_size": 4})
        assert ran.state == "success"
        assert ran.returned("servers") == [0, 1]
        assert (ran.tasks["train[0]"], ran.tasks["train[1]"]) == ("success", "success")
        result = ran.returned("train")
        assert other.result() == result
    records = [Path(result["run"]) / place / "record" for place in ("", "servers/1")]
    seen, also_seen = (read(record, "batches") for record in records)
    # Examples of both servers are counted once, and padding is not counted.
    trained_on = ran.returned("upload.commit")["examples"]["train"]
    assert seen.groupby("epoch")["input/examples"].sum().tolist() == [trained_on] * result["epochs"]
    assert seen["step"].tolist() == also_seen["step"].tolist()


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"num_training_servers": 3, "batch_size": 4}, "batch_size must be a multiple of num_training_servers"),
        ({"epoch": 3}, "epoch is not a setting"),
        pytest.param({"dataset": "/data"}, "dataset is not a setting of image_training", marks=pytest.mark.long),
        pytest.param(
            {"source_uri": "/nowhere"}, "source_uri must be a folder or list that exists", marks=pytest.mark.long
        ),
    ],
)
def test_the_first_task_refuses_invalid_settings_without_a_retry(
    run_dag: RunDag, source: Path, tmp_path: Path, conf: dict, message: str, capfd: pytest.CaptureFixture
):
    ran = run_dag("image_training", {"source_uri": str(source), **conf})
    assert ran.tasks.pop("extract") == "failed"
    assert set(ran.tasks.values()) == {"upstream_failed"}
    assert ran.tries["extract"] == 1
    assert message in "".join(capfd.readouterr())
    assert message in ran.left("extract", FAILURE)  # the plugin shows it
    assert not (tmp_path / "workspace").exists()


@pytest.mark.long
@pytest.mark.parametrize("has_tensorflow", [True, False])
def test_the_first_task_refuses_a_missing_model_function_without_a_retry(
    run_dag: RunDag,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
    has_tensorflow: bool,
):
    """A worker without TensorFlow parses the source of the module. Any other worker creates the model."""
    (tmp_path / "own_models.py").write_text("def small(image_size, classes): ...")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    if not has_tensorflow:
        monkeypatch.setitem(sys.modules, "tensorflow", None)
    ran = run_dag("image_training", {"source_uri": str(source), "model": "own_models:smal"})
    assert ran.tasks.pop("extract") == "failed"
    assert set(ran.tasks.values()) == {"upstream_failed"}
    assert ran.tries["extract"] == 1
    message = f"{tmp_path / 'own_models.py'} has no 'smal': did you mean 'small'?"
    assert message in "".join(capfd.readouterr())
    assert message in ran.left("extract", FAILURE)
    assert not list((tmp_path / "workspace").rglob("*.tfrecord*"))


@pytest.mark.parametrize("value", [0, "three"])
def test_the_form_refuses_invalid_values(run_dag: RunDag, source: Path, value: Any):
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError):
        run_dag("image_training", {"source_uri": str(source), "epochs": value})


@pytest.mark.long
def test_the_dag_runs_with_source_and_workspace_in_a_bucket(
    run_dag: RunDag, source: Path, gcs: FakeGcs, tmp_path: Path
):
    for path in source.rglob("*.jpg"):
        copy_new(path, BucketPath("bucket", "raw") / path.relative_to(source).as_posix())
    places = {"source_uri": "gs://bucket/raw", "workspace": "gs://bucket/work", "local_folder": str(tmp_path / "local")}
    ran = run_dag("image_training", {**places, "promote": "always"})
    assert ran.state == "success"
    committed, trained = ran.returned("upload.commit"), ran.returned("train")
    assert sum(committed["examples"].values()) == 20
    # All results are in the bucket, so another worker can use them.
    promoted, report = ran.returned("promote"), ran.returned("report")
    for uri in (committed["dataset"], trained["model"], promoted["pointer"], report["report"]):
        assert uri.startswith("gs://bucket/work/")
        assert place_of(uri).exists()
    assert not (tmp_path / "workspace").exists()


@pytest.mark.long
def test_the_first_task_refuses_a_missing_bucket(
    run_dag: RunDag, source: Path, gcs: FakeGcs, capfd: pytest.CaptureFixture
):
    ran = run_dag("image_training", {"source_uri": str(source), "workspace": "gs://no-such-bucket/prefix"})
    assert (ran.tasks["extract"], ran.tries["extract"]) == ("failed", 1)
    assert "workspace: gs://no-such-bucket does not exist" in "".join(capfd.readouterr())
