"""A training whose data set and workspace lie in a bucket."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.config import Settings, settings_from
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
from pipeline.training.loop import EpochLoop
from tests.fake_gcs import FakeGcs

DATASET = BucketPath("bucket", "published")


@pytest.fixture
def settings(gcs: FakeGcs, published: Path, tmp_path: Path) -> Settings:
    gcs.put_folder("bucket", "published/", published)
    values = {"workspace": "gs://bucket/w", "local_folder": str(tmp_path / "here"), "image_size": 32, "batch_size": 8}
    return settings_from({**values, "epochs": 3, "sample_hz": 20.0})


def elsewhere(settings: Settings, tmp_path: Path) -> Settings:
    """The same on another worker."""
    return settings_from({**settings.model_dump(), "local_folder": str(tmp_path / "elsewhere")})


def trained(run: Run, stopping: Callable[[], bool]) -> None:
    """What the training process does."""
    with mirrored(run.folder, run.place):
        run_job(run, stopping)


def never() -> bool:
    return False


def after(steps: int) -> Callable[[], bool]:
    """Asks to stop once it was asked `steps` times before."""
    asked = iter(range(10**9))
    return lambda: next(asked) >= steps


@pytest.mark.long
def test_asked_to_stop_it_goes_on_at_another_worker_and_all_of_it_is_in_the_bucket(
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
    kept = [name for name in gcs.names("bucket") if "/checkpoints/" in name and name.endswith(".npz")]
    assert len(kept) == 3
    assert place_of(f"{result['export']}/about.json").exists()

    assert trained_before(settings, DATASET, "run") == result  # by another worker, as any can tell
    page = report_run(place_of(place))
    assert str(page) == f"{place}/report.html"
    assert b"96" in page.read_bytes()
    before = gcs.requests["insert"]
    assert load_result(prepare_run(settings, DATASET, "run").folder) == result  # done, on the first worker too
    assert gcs.requests["insert"] <= before + 1
    assert page.exists()


def test_a_training_that_the_bucket_has_not_whole_is_not_complete(settings: Settings, gcs: FakeGcs):
    run = prepare_run(settings, DATASET, "run")
    (run.folder / "result.json").write_text('{"run": "done"}')  # here, and the bucket failed at its end
    assert trained_before(settings, DATASET, "run") is None
    prepare_run(settings, DATASET, "run")
    assert trained_before(settings, DATASET, "run") == {"run": "done"}


def test_a_shard_that_stays_damaged_ends_the_training_in_words(settings: Settings, gcs: FakeGcs):
    run = prepare_run(settings, DATASET, "run")
    fault = gcs.fail("corrupt", on="download", matches="train-0000[1-9]", times=None)
    with pytest.raises(StorageError, match=r"gs://bucket/published/train-0000.* arrived damaged twice"):
        trained(run, never)
    assert fault.fired >= 2
    assert not list((Path(settings.local_folder) / "shards").rglob("*.tmp"))


def test_a_copy_that_is_damaged_after_it_was_checked_is_named(settings: Settings, gcs: FakeGcs, tmp_path: Path):
    run = prepare_run(settings.model_copy(update={"cache": "off", "epochs": 10}), DATASET, "run")
    asked = iter(range(10**9))

    def damages_all_copies_in_the_second_epoch() -> bool:
        if next(asked) == run.steps_per_epoch:
            for copy in (tmp_path / "here" / "shards").glob("*/*.tfrecord"):
                copy.write_bytes(bytes(copy.stat().st_size))
        return False

    with pytest.raises(StorageError, match=r"the copy of gs://bucket/published/train-.*, was damaged or removed after"):
        run_job(run, damages_all_copies_in_the_second_epoch)
    run_job(run, never)
    assert load_result(run.folder)


def test_a_cache_for_the_shards_that_are_read_at_once_is_never_exceeded(
    settings: Settings, gcs: FakeGcs, published: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "pipeline")
    limit = sum(needed_room(load(published)).values())
    values = {"cache_gigabytes": limit / 1e9, "cache": "off"}
    run = prepare_run(settings.model_copy(update=values), DATASET, "run")
    copies = Path(settings.local_folder) / "shards"
    sizes = []

    def counted() -> bool:
        with shard_cache._locked(copies / ".lock"):  # nothing is removed while they are counted
            sizes.append(sum(path.stat().st_size for path in copies.glob("*/*") if ".lock" not in path.name))
        return False

    run_job(run, counted)
    assert 0 < max(sizes) <= limit
    assert sum(split.bytes for split in load(published).splits.values()) > limit
    assert f"the shards that are read at once need {limit / 1e9:.3g} GB" in caplog.text


def test_a_cache_that_is_too_small_is_refused(settings: Settings, gcs: FakeGcs):
    small = settings.model_copy(update={"cache_gigabytes": 1e-6})
    with pytest.raises(
        SettingsError, match=r"cache_gigabytes must be at least 0\.\d+ for this dataset, got 1e-06: 8 of"
    ):
        prepare_run(small, DATASET, "run")
    prepare_run(small.model_copy(update={"read_shards": "direct"}), DATASET, "run")


def test_a_shard_that_was_overwritten_after_the_commit_is_named(settings: Settings, gcs: FakeGcs, published: Path):
    run = prepare_run(settings, DATASET, "run")
    gcs.put("bucket", "published/train-00002-of-00010.tfrecord", b"other")
    with pytest.raises(DatasetError, match=r"train-00002-of-00010\.tfrecord .* overwritten after the commit"):
        trained(run, never)


@pytest.mark.long
def test_a_validation_that_was_stopped_and_the_evaluation_are_read_though_no_epoch_is_left(
    settings: Settings, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
):
    """The order of the shards is known before they are fetched: one that is not in it would be waited for for ever."""
    told = settings_from({**settings.model_dump(), "cache": "off", "epochs": 1})
    run = prepare_run(told, DATASET, "run")
    with monkeypatch.context() as patched:
        patched.setattr(EpochLoop, "evaluate", stopped)  # `stopping` is asked by the readers, too, as often as it comes
        with pytest.raises(Preempted):
            trained(run, never)
    trained(run, never)
    assert 0 <= load_result(run.folder)["metrics"]["val_calibration_error"] <= 1
    kept = {name.rpartition("/")[2] for name in gcs.names("bucket")}
    assert {"evaluation.json", "predictions.npz", "result.json"} <= kept


def stopped(*_: object) -> None:
    raise Preempted("asked to stop in the validation")


@pytest.mark.long
def test_the_losses_are_those_of_a_local_training(settings: Settings, published: Path, tmp_path: Path):
    local = settings_from({**settings.model_dump(), "workspace": str(tmp_path / "local")})
    losses = []
    for run in (prepare_run(settings, DATASET, "run"), prepare_run(local, published, "run")):
        trained(run, never)
        losses.append(read(run.folder / "record", "epochs")["loss"].to_numpy())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.long
def test_a_process_that_waits_for_a_shard_heeds_sigterm(settings: Settings, gcs: FakeGcs):
    """Its main thread is in TensorFlow, where Python runs no handler; a bucket may stall for minutes."""
    stall = gcs.fail("stall", on="download", matches="/(train|validation)-", times=None)
    process = TrainingProcess(prepare_run(settings, DATASET, "run"), output=1)
    deadline = time.monotonic() + 60
    while stall.fired < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process._process.send_signal(signal.SIGTERM)
    with pytest.raises(Preempted):
        process.wait()
    assert time.monotonic() < deadline


def test_the_command_line_takes_a_run_in_a_bucket_and_names_one_that_is_not_there(
    gcs: FakeGcs, capsys: pytest.CaptureFixture[str]
):
    assert main(["report", "gs://bucket/w/runs/none"]) == 1
    assert "gs://bucket/w/runs/none is not the folder of a run" in capsys.readouterr().err
