"""Trainings on a tiny dataset, in this process."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from pipeline import storage
from pipeline.config.automatic import training_settings
from pipeline.config.settings import Settings
from pipeline.dataset import manifest as datasets
from pipeline.errors import BadInput, CacheDamaged, DatasetError, Preempted, TrainingError
from pipeline.monitor import read
from pipeline.records import example
from pipeline.records.format import read_image
from pipeline.records.tfrecord import read_records
from pipeline.runs.changes import load_changes, request_changes
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Run, find_best_model, load_best, load_result
from pipeline.storage import crc32c_of
from pipeline.training.job import labels_of, run_job
from pipeline.training.model.models import base_of, build_model, model_options
from pipeline.training.served.export import export
from tests.published import replace_record
from tests.system.test_malloc import fetch_large_blocks, is_fetched, needs_counts


def settings_in(folder: Path) -> Settings:
    return training_settings({"workspace": str(folder), "image_size": 32, "batch_size": 8, "epochs": 2})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


@pytest.fixture
def run(settings: Settings, published: Path) -> Run:
    return prepare_run(settings, published, "some run")


def never() -> bool:
    return False


def after(steps: int) -> Callable[[], bool]:
    """Return a function that requests a stop from its call number `steps + 1` on."""
    calls = iter(range(10**9))
    return lambda: next(calls) >= steps


@dataclass(frozen=True)
class Trained:
    """A complete training, and the number of its heartbeats."""

    run: Run
    heartbeats: int


@pytest.fixture(scope="module")
def trained(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    heartbeats: list[None] = []
    run = prepare_run(settings_in(tmp_path_factory.mktemp("trained")), published, "some run")
    run_job(run, never, heartbeat=lambda: heartbeats.append(None))
    return Trained(run, len(heartbeats))


@pytest.mark.long
@needs_counts
def test_a_training_reuses_large_memory_blocks(run: Run):
    fetch_large_blocks()
    run_job(run, never)
    assert not is_fetched(24 << 20)  # larger than the memory that the training freed


@pytest.mark.core
def test_a_training_writes_all_its_results(trained: Trained, published: Path):
    run = trained.run
    result = load_result(run.folder)
    assert result is not None
    assert result["epochs"] == 2
    assert 0 <= result["metrics"]["val_accuracy"] <= 1
    [archive] = Path(result["comet"]).glob("try-1/*.zip")
    assert archive.stat().st_size > 1000
    epochs, batches, samples = (read(run.folder / "record", kind) for kind in ("epochs", "batches", "samples"))
    train, validation = (datasets.load(published).splits[name].examples for name in ("train", "validation"))
    steps = -(-train // 8)
    assert trained.heartbeats == 2 * steps + 3 * -(-validation // 8)  # two epochs, and the evaluation
    assert epochs["step"].tolist() == [1, 2]
    assert batches["step"].tolist() == list(range(1, 2 * steps + 1))
    assert batches["input/examples"].sum() == 2 * train
    assert (batches["step/time_ms"] >= batches["input/wait_ms"]).all()
    assert batches["step/checkpoint_ms"].tolist()[steps] > 0.5  # the checkpoint at the end of the first epoch
    assert len(samples) > 0
    assert read(run.folder / "overview", "epochs")["step"].tolist() == [1, 2]  # for the pages in Airflow
    assert not list(run.folder.rglob("*.tmp*"))
    assert not (run.folder / "metrics.prom").exists()  # The training has ended.
    assert_evaluated(run, published)


def test_two_trainings_of_one_run_id_have_different_labels(published: Path, settings: Settings):
    other = settings.model_copy(update={"seed": settings.seed + 1})
    first, second = (labels_of(prepare_run(each, published, "manual")) for each in (settings, other))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == ["training"]


def assert_evaluated(run: Run, published: Path) -> None:
    """Assert that the result is that of the best model, on each validation example once, in the order of the shards."""
    evaluation, result = storage.read_json(run.folder / "evaluation.json"), load_result(run.folder)
    dataset = datasets.load(published)
    records = (
        record for shard in dataset.splits["validation"].shards for record in read_records(published / shard.name)
    )
    labels = [read_image(record, dataset.records).labels[0] for record in records]
    with np.load(run.folder / "predictions.npz") as predictions:
        assert predictions["label"].tolist() == labels
        accuracy = np.mean(predictions["predicted"] == predictions["label"])
    assert evaluation["examples"] == len(labels)
    assert result["metrics"]["val_accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert result["baselines"]["val_accuracy"] == evaluation["figures"]["accuracy"]["baseline"]
    assert result["headline"].startswith(f"accuracy {accuracy:.1%} (")
    assert result["metrics"]["val_calibration_error"] == evaluation["figures"]["calibration_error"]["value"]
    assert "val_top5" not in result["metrics"]  # two classes


@pytest.mark.core
def test_the_saved_model_gives_probabilities(trained: Trained):
    model = keras.models.load_model(trained.run.model_path)
    probabilities = model.predict(np.zeros((3, 32, 32, 3), np.uint8), verbose=0)
    assert probabilities.shape == (3, 2)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("steps", [pytest.param(2, marks=pytest.mark.core), 10])  # in the first epoch, the second
def test_a_stopped_training_leaves_a_checkpoint_and_can_be_continued(
    run: Run, steps: int, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "pipeline")
    with pytest.raises(Preempted):
        run_job(run, after(steps))
    assert load_result(run.folder) is None
    assert list((run.folder / "checkpoints").glob("checkpoint-*.npz"))
    run_job(run, never)
    assert "continuing after epoch" in caplog.text
    assert read(run.folder / "record", "epochs")["step"].tolist() == [1, 2]
    assert len({path.name for path in (run.folder / "comet").iterdir()}) == 2  # one archive per attempt
    assert load_result(run.folder)["comet"] == str(run.folder / "comet")  # the folder of all archives


@pytest.mark.long
def test_a_rerun_after_the_last_epoch_only_evaluates_and_writes_the_result(run: Run):
    with pytest.raises(Preempted, match="in the evaluation"):
        run_job(run, after(12))  # ten steps, two validations
    assert not (run.folder / "evaluation.json").exists()
    best = keras.models.load_model(find_best_model(run))
    best.get_layer("logits").bias.assign([0.0, 100.0])  # distinguishes it from the model of the last epoch
    find_best_model(run).unlink()
    best.save(run.model_path)  # as after a kill just before the result is written
    crc32c = f"{crc32c_of(run.model_path):08x}"
    noted = json.loads((run.folder / "best.json").read_bytes())
    (run.folder / "best.json").write_text(json.dumps([{**model, "crc32c": crc32c} for model in noted]))
    before = read(run.folder / "record", "batches")
    run_job(run, never)
    with np.load(run.folder / "predictions.npz") as predictions:
        assert set(predictions["predicted"]) == {1}
    assert len(read(run.folder / "record", "batches")) == len(before)


def test_a_change_that_is_requested_during_the_export_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch):
    def slow_export(*arguments: Any) -> None:
        request_changes(run.training, {"prefetch_batches": 2}, by="Ada")
        export(*arguments)

    monkeypatch.setattr("pipeline.training.fit.export", slow_export)
    run_job(run, never)
    assert [change.refused for change in load_changes(run.training)] == ["the training was in its last epoch"]


@pytest.mark.long
def test_the_best_model_and_its_metrics_match_after_a_kill_between_writing_them(run: Run):
    """The model of a better epoch was saved, but the process was killed before it wrote `best.json`."""
    with pytest.raises(Preempted):
        run_job(run, after(10))
    best = load_best(run)
    assert best is not None
    (run.folder / "model-00002.keras").write_bytes(b"of a try that was killed here")
    run_job(run, never)
    result = load_result(run.folder)
    assert result is not None
    epochs = read(run.folder / "record", "epochs").set_index("step")
    assert result["metrics"]["val_accuracy"] == pytest.approx(epochs["val_accuracy"].max())
    assert keras.models.load_model(result["model"]) is not None
    assert [path.name for path in run.folder.glob("model*.keras")] == ["model.keras"]


@pytest.mark.long
def test_damaged_checkpoints_do_not_change_the_result_of_a_training(
    settings: Settings, published: Path, caplog: pytest.LogCaptureFixture
):
    longer = training_settings({**settings.model_dump(), "epochs": 4, "checkpoint_steps": 2})
    whole, broken = (prepare_run(longer, published, name) for name in ("whole", "broken"))
    run_job(whole, never)
    with pytest.raises(Preempted):
        run_job(broken, after(20))  # in the fourth epoch
    files = sorted((broken.folder / "checkpoints").iterdir())
    for path in files[-2:]:
        path.write_bytes(path.read_bytes()[:1000])
    run_job(broken, never)
    assert all(f"the checkpoint {path} is damaged" in caplog.text for path in files[-2:])
    epochs, batches = ([read(run.folder / "record", kind) for run in (whole, broken)] for kind in ("epochs", "batches"))
    assert batches[0]["step"].tolist() == batches[1]["step"].tolist()
    for name in ("step", "loss", "val_loss", "val_accuracy"):
        assert epochs[0][name].tolist() == pytest.approx(epochs[1][name].tolist(), rel=1e-3)
    results = [load_result(run.folder)["metrics"] for run in (whole, broken)]
    assert results[0] == pytest.approx(results[1], rel=1e-3)


@pytest.mark.long
def test_the_error_for_a_nonfinite_loss_names_the_step_and_images(settings: Settings, published: Path, tmp_path: Path):
    model = build_model(model_options(settings), 2)
    model.get_layer("logits").bias.assign([0.0, math.nan])
    model.save_weights(tmp_path / "bad.weights.h5")
    bad = training_settings({**settings.model_dump(), "weights": str(tmp_path / "bad.weights.h5")})
    message = (
        r"became nan at step 1 of epoch 1, in 8 examples: numbers (\d+, ){7}\d+ of .*; \w/\d+\.jpg, .*: lower learning_"
    )
    with pytest.raises(TrainingError, match=message):
        run_job(prepare_run(bad, published, "bad"), never)


def test_the_error_for_a_damaged_shard_names_the_file_and_offset(run: Run, published: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(published, copy)
    shard = next(path for path in sorted(copy.glob("train-*")) if path.stat().st_size)
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"{shard.name}: the record at byte 0 is damaged"):
        run_job(replace(run, dataset=str(copy)), never)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_error_for_an_unreadable_record_names_its_shard_number_and_key(
    run: Run, published: Path, tmp_path: Path, split: str
):
    copy = tmp_path / "copy"
    shutil.copytree(published, copy)
    shard = next(each.name for each in datasets.load(copy).splits[split].shards if each.examples)
    features = example.decode(next(read_records(copy / shard)))
    replace_record(copy, shard, 0, example.encode({**features, "image/encoded": b"\xff\xd8\xff noise"}))
    key = features["image/filename"][0].decode()
    message = rf"{copy / shard}: record 0 \(from 0\), key '{key}': TensorFlow cannot read it .*verify --decode {copy}"
    with pytest.raises(DatasetError, match=message):
        run_job(replace(run, dataset=str(copy)), never)


@pytest.mark.long
def test_a_dataset_deleted_during_training_stops_it_with_an_error(settings: Settings, published: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(published, copy)
    kept_nowhere = settings.model_copy(update={"cache": "off", "epochs": 5})
    run = prepare_run(kept_nowhere, copy, "deleted")

    def deleting() -> bool:
        shutil.rmtree(copy, ignore_errors=True)
        return False

    with pytest.raises(DatasetError, match="removed or damaged while the training read it"):
        run_job(run, deleting)


@pytest.mark.long
def test_the_same_seed_gives_the_same_losses(settings: Settings, published: Path, tmp_path: Path):
    losses = []
    for name in ("one", "two"):
        run = prepare_run(settings, published, name)
        run_job(run, never)
        losses.append(read(run.folder / "record", "epochs")["loss"].to_numpy())
    assert np.allclose(losses[0], losses[1], rtol=1e-3)


@pytest.mark.long
def test_a_training_starts_from_the_weights_of_a_file(settings: Settings, published: Path):
    first = prepare_run(settings, published, "first")
    run_job(first, never)
    trained = keras.models.load_model(first.model_path)
    started = training_settings(
        {**settings.model_dump(), "weights": str(first.model_path), "learning_rate": 1e-9, "epochs": 1}
    )
    second = prepare_run(started, published, "second")
    run_job(second, never)
    again = keras.models.load_model(second.model_path)
    for name in ("conv2d", "logits"):
        ours, theirs = (
            next(layer for layer in model.layers if layer.name.startswith(name)).get_weights()[0]
            for model in (trained, again)
        )
        assert np.allclose(ours, theirs, atol=1e-5)


@pytest.mark.long
def test_a_job_uses_the_configured_precision(settings: Settings, published: Path):
    run = prepare_run(training_settings({**settings.model_dump(), "precision": "mixed_float16"}), published, "half")
    run_job(run, never)
    of_layer = {layer.name: layer.compute_dtype for layer in keras.models.load_model(run.model_path).layers}
    assert {"float16", "float32"} == set(of_layer.values())
    with np.load(max((run.folder / "checkpoints").iterdir())) as arrays:
        numbers = [content.item() for content in arrays.values() if content.shape == () and content.dtype == np.float32]
    assert max(numbers) > 1000  # the scale of the loss


@pytest.mark.long
def test_a_stopped_transfer_learning_can_be_continued_in_both_phases(
    settings: Settings, published: Path, tmp_path: Path
):
    values = {**settings.model_dump(), "model": "MobileNetV2"}
    base_of(build_model(model_options(training_settings(values)), 2)).save_weights(tmp_path / "base.weights.h5")
    transfer = training_settings({**values, "weights": str(tmp_path / "base.weights.h5"), "freeze_epochs": 1})
    whole, stopped = (prepare_run(transfer, published, name) for name in ("whole", "stopped"))
    run_job(whole, never)
    for steps in (2, 6):  # in the first epoch, then in the second
        with pytest.raises(Preempted):
            run_job(stopped, after(steps))
    run_job(stopped, never)
    losses = [read(run.folder / "record", "epochs")["loss"].to_numpy() for run in (whole, stopped)]
    assert np.allclose(*losses, rtol=1e-3)


def test_an_invalid_weights_file_is_refused(settings: Settings, published: Path, tmp_path: Path):
    (tmp_path / "bad.keras").write_bytes(b"no weights")
    bad = training_settings({**settings.model_dump(), "weights": str(tmp_path / "bad.keras")})
    with pytest.raises(BadInput, match=r"bad\.keras"):
        run_job(prepare_run(bad, published, "bad"), never)


@pytest.mark.long
def test_damaged_cached_images_are_decoded_again(settings: Settings, published: Path, tmp_path: Path):
    cached = settings.model_copy(update={"cache": "disk", "local_folder": str(tmp_path / "local")})
    run = prepare_run(cached, published, "run")
    with pytest.raises(Preempted):
        run_job(run, after(8))  # in the second epoch, which reads the cache of the first
    [data] = (tmp_path / "local").rglob("images-train.data*")
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(CacheDamaged, match="have been removed: the next attempt decodes them again"):
        run_job(run, never)
    run_job(run, never)
    assert load_result(run.folder)
