"""Trainings with the dataset and the workspace in a bucket."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset import shard_cache
from pipeline.dataset.manifest import load
from pipeline.dataset.shard_cache import needed_room
from pipeline.errors import DatasetError, Preempted, SettingsError, StorageError
from pipeline.monitor import read
from pipeline.report import report_run
from pipeline.runs.launch import TrainingProcess, prepare_run
from pipeline.runs.launch import load_trained_result as trained_before
from pipeline.runs.mirror import mirrored
from pipeline.runs.run import Run, load_result
from pipeline.storage import BucketPath, place_of
from pipeline.training.job import run_job
from pipeline.training.step.loop import EpochLoop
from standins.fake_gcs import FakeGcs
from tests.published import replace_record
from tests.waiting import until

DATASET = BucketPath("bucket", "published")


@pytest.fixture
def settings(gcs: FakeGcs, published: Path, tmp_path: Path) -> Settings:
    gcs.put_folder("bucket", "published/", published)
    values = {"workspace": "gs://bucket/w", "local_folder": str(tmp_path / "here"), "image_size": 32, "batch_size": 8}
    return settings_from({**values, "epochs": 3})


def elsewhere(settings: Settings, tmp_path: Path) -> Settings:
    """Return the settings of the same training on another worker."""
    return settings_from({**settings.model_dump(), "local_folder": str(tmp_path / "elsewhere")})


def trained(run: Run, stopping: Callable[[], bool]) -> None:
    """Train as the training process does."""
    with mirrored(run.folder, run.place, pytest.fail):
        run_job(run, stopping)


def never() -> bool:
    return False


def after(steps: int) -> Callable[[], bool]:
    """Return a function that requests a stop from its call number `steps + 1` on."""
    calls = iter(range(10**9))
    return lambda: next(calls) >= steps


@pytest.mark.core
def test_a_stopped_training_continues_on_another_worker_from_the_bucket(
    settings: Settings, gcs: FakeGcs, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "pipeline")
    first = prepare_run(settings, DATASET, "run")
    with pytest.raises(Preempted):
        trained(first, after(9))  # in the second epoch
    run = prepare_run(elsewhere(settings, tmp_path), DATASET, "run")
    assert run.folder != first.folder
    assert trained_before(settings, DATASET, "run") is None
    trained(run, never)
    assert "continuing after epoch 1" in caplog.text

    result = load_result(run.folder)
    place = f"gs://bucket/w/runs/run/{run.folder.name}"
    assert (result["run"], result["model"], result["comet"]) == (place, f"{place}/model.keras", f"{place}/comet")
    assert result["epochs"] == 3
    assert read(run.folder / "record", "epochs")["step"].tolist() == [1, 2, 3]
    assert json.loads((place_of(place) / "result.json").read_bytes()) == result
    assert place_of(result["model"]).stat().st_size > 10_000
    checkpoints = [name for name in gcs.names("bucket") if "/checkpoints/" in name and name.endswith(".npz")]
    assert len(checkpoints) == 3
    assert place_of(f"{result['export']}/about.json").exists()

    assert trained_before(settings, DATASET, "run") == result  # trained by another worker, which every worker can see
    page = report_run(place_of(place))
    assert str(page) == f"{place}/report.html"
    assert b"96" in page.read_bytes()
    before = gcs.requests["insert"]
    assert load_result(prepare_run(settings, DATASET, "run").folder) == result  # complete on the first worker too
    assert gcs.requests["insert"] <= before + 1
    assert page.exists()


def test_a_training_is_complete_only_when_its_result_is_in_the_bucket(settings: Settings, gcs: FakeGcs):
    run = prepare_run(settings, DATASET, "run")
    result = {"run": str(run.place), "epochs": 3}
    (run.folder / "result.json").write_text(json.dumps(result))  # local only, as if the bucket failed at the end
    assert trained_before(settings, DATASET, "run") is None
    prepare_run(settings, DATASET, "run")
    assert trained_before(settings, DATASET, "run") == result


@pytest.mark.core
def test_a_shard_that_arrives_damaged_twice_stops_the_training(settings: Settings, gcs: FakeGcs):
    run = prepare_run(settings, DATASET, "run")
    fault = gcs.fail("corrupt", on="download", matches="train-0000[1-9]", times=None)
    with pytest.raises(StorageError, match=r"gs://bucket/published/train-0000.* arrived damaged twice"):
        trained(run, never)
    assert fault.fired >= 2
    assert not list((Path(settings.local_folder) / "shards").rglob("*.tmp"))


@pytest.mark.parametrize("split", ["train", pytest.param("validation", marks=pytest.mark.long)])
def test_an_unreadable_record_in_a_bucket_is_named(
    settings: Settings, gcs: FakeGcs, published: Path, tmp_path: Path, split: str
):
    copy = tmp_path / "copy"
    shutil.copytree(published, copy)
    shard = next(each.name for each in load(copy).splits[split].shards if each.examples)
    replace_record(copy, shard, 0, b"noise")
    gcs.put_folder("bucket", "published/", copy)
    with pytest.raises(DatasetError, match=rf"gs://bucket/published/{shard}: record 0 \(from 0\): not a tf.train.Ex"):
        run_job(prepare_run(settings, DATASET, "run"), never)


@pytest.mark.long
def test_a_cached_shard_damaged_after_its_check_is_reported(settings: Settings, gcs: FakeGcs, tmp_path: Path):
    run = prepare_run(settings.model_copy(update={"cache": "off", "epochs": 10}), DATASET, "run")
    calls = iter(range(10**9))

    def damages_all_copies_in_the_second_epoch() -> bool:
        if next(calls) == run.steps_per_epoch:
            for copy in (tmp_path / "here" / "shards").glob("*/*.tfrecord"):
                copy.write_bytes(bytes(copy.stat().st_size))
        return False

    with pytest.raises(StorageError, match=r"the copy of gs://bucket/published/train-.*, was damaged or removed after"):
        run_job(run, damages_all_copies_in_the_second_epoch)
    run_job(run, never)
    assert load_result(run.folder)


@pytest.mark.long
def test_the_shard_cache_never_exceeds_its_limit(
    settings: Settings, gcs: FakeGcs, published: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "pipeline")
    limit = sum(needed_room(load(published)).values())
    values = {"cache_gigabytes": limit / 1e9, "cache": "off"}
    run = prepare_run(settings.model_copy(update=values), DATASET, "run")
    copies = Path(settings.local_folder) / "shards"
    sizes = []

    def counted() -> bool:
        with shard_cache.locked(copies / ".lock"):  # no copy is removed while they are counted
            sizes.append(sum(path.stat().st_size for path in copies.glob("*/*") if ".lock" not in path.name))
        return False

    run_job(run, counted)
    assert 0 < max(sizes) <= limit
    assert sum(split.bytes for split in load(published).splits.values()) > limit
    assert f"the shards that are read at once need {limit / 1e9:.3g} GB" in caplog.text


def test_a_shard_cache_that_is_too_small_is_refused(settings: Settings, gcs: FakeGcs):
    small = settings.model_copy(update={"cache_gigabytes": 1e-6})
    with pytest.raises(
        SettingsError, match=r"cache_gigabytes must be at least 0\.\d+ for this dataset, got 1e-06: 8 of"
    ):
        prepare_run(small, DATASET, "run")


def test_a_shard_overwritten_after_the_commit_is_reported(settings: Settings, gcs: FakeGcs, published: Path):
    run = prepare_run(settings, DATASET, "run")
    gcs.put("bucket", "published/train-00002-of-00010.tfrecord", b"other")
    with pytest.raises(DatasetError, match=r"train-00002-of-00010\.tfrecord .* overwritten after the commit"):
        trained(run, never)


@pytest.mark.long
def test_a_training_stopped_in_its_last_validation_can_be_completed(
    settings: Settings, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
):
    """Shards are fetched in a known order. The training would wait forever for a shard that is not in this order."""
    uncached = settings_from({**settings.model_dump(), "cache": "off", "epochs": 1})
    run = prepare_run(uncached, DATASET, "run")
    with monkeypatch.context() as patched:
        # A `stopping` that counts its calls is no alternative, because the readers call it too.
        patched.setattr(EpochLoop, "evaluate", stopped)
        with pytest.raises(Preempted):
            trained(run, never)
    trained(run, never)
    assert 0 <= load_result(run.folder)["metrics"]["val_calibration_error"] <= 1
    names = {name.rpartition("/")[2] for name in gcs.names("bucket")}
    assert {"evaluation.json", "predictions.npz", "result.json"} <= names


def stopped(*_: object) -> None:
    raise Preempted("stop requested in the validation")


@pytest.mark.long
def test_a_training_in_a_bucket_has_the_losses_of_a_local_training(settings: Settings, published: Path, tmp_path: Path):
    local = settings_from({**settings.model_dump(), "workspace": str(tmp_path / "local")})
    losses = []
    for run in (prepare_run(settings, DATASET, "run"), prepare_run(local, published, "run")):
        trained(run, never)
        losses.append(read(run.folder / "record", "epochs")["loss"].to_numpy())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.long
def test_a_process_that_waits_for_a_shard_stops_on_sigterm(settings: Settings, gcs: FakeGcs):
    """The main thread is in TensorFlow, where Python runs no signal handler. A bucket may stall for minutes."""
    stall = gcs.fail("stall", on="download", matches="/(train|validation)-", times=None)
    process = TrainingProcess(prepare_run(settings, DATASET, "run"), output=1)
    until(lambda: stall.fired, is_expected=lambda fired: fired >= 4)
    process._process.send_signal(signal.SIGTERM)
    with pytest.raises(Preempted):
        process.wait()  # The bucket stalls until the end of the test.


def test_the_report_command_names_a_missing_run_in_a_bucket(gcs: FakeGcs, capsys: pytest.CaptureFixture[str]):
    assert main(["report", "gs://bucket/w/runs/none"]) == 1
    assert "gs://bucket/w/runs/none is not the folder of a run" in capsys.readouterr().err
