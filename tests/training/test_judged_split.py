"""The best model is judged on the test split, if the dataset has one. The validation split still chooses it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline import storage
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.shard_cache import divided_room, needed_room
from pipeline.errors import Preempted
from pipeline.evaluation.metrics import load_predictions
from pipeline.monitor import read
from pipeline.records.format import read_image
from pipeline.records.tfrecord import read_records
from pipeline.report import report_run
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Run, load_result
from pipeline.storage import BucketPath
from pipeline.training.job import run_job
from pipeline.training.served.exported import evaluate_exported
from standins.fake_gcs import FakeGcs

BATCH, EPOCHS = 8, 2


def settings_in(folder: Path, **values: object) -> Settings:
    fixed = {"workspace": str(folder), "image_size": 32, "batch_size": BATCH, "epochs": EPOCHS}
    return settings_from({**fixed, **values})


def never() -> bool:
    return False


def after(steps: int) -> Callable[[], bool]:
    """Return a function that requests a stop from its call number `steps + 1` on."""
    calls = iter(range(10**9))
    return lambda: next(calls) >= steps


def labels_of(folder: Path, split: str) -> list[int]:
    """Return the label of each image of a split, in the order of the shards."""
    dataset = load(folder)
    return [
        read_image(record, dataset.records).labels[0]
        for shard in dataset.splits[split].shards
        for record in read_records(folder / shard.name)
    ]


def batches_of(folder: Path, split: str) -> int:
    return -(-load(folder).splits[split].examples // BATCH)


@pytest.fixture(scope="module")
def run(tested: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = prepare_run(settings_in(tmp_path_factory.mktemp("workspace")), tested, "run")
    run_job(run, never)
    return run


@pytest.mark.core
def test_the_best_model_is_evaluated_on_each_test_image_once(run: Run, tested: Path):
    predictions, evaluation = load_predictions(run.folder), storage.read_json(run.folder / "evaluation.json")
    assert predictions.label.tolist() == labels_of(tested, "test")
    assert (evaluation["split"], evaluation["examples"]) == ("test", len(predictions.label))


@pytest.mark.core
def test_the_result_has_the_figures_of_both_splits(run: Run):
    result, epochs = load_result(run.folder), read(run.folder / "record", "epochs")
    evaluation = storage.read_json(run.folder / "evaluation.json")
    assert result["split"] == "test"
    assert result["metrics"]["val_accuracy"] == pytest.approx(epochs["val_accuracy"].max())
    assert result["metrics"]["test_accuracy"] == evaluation["figures"]["accuracy"]["value"]
    assert "test_calibration_error" in result["metrics"]
    assert "val_calibration_error" not in result["metrics"]


@pytest.mark.core
def test_the_report_is_about_the_test_images(run: Run, tested: Path):
    page = report_run(run.folder).read_text()
    assert f"on the {len(labels_of(tested, 'test'))} test examples" in page
    assert "test accuracy" in page


@pytest.mark.core
def test_the_exported_model_of_a_champion_is_evaluated_on_the_same_images(run: Run, tested: Path):
    ours, exported = load_predictions(run.folder), evaluate_exported(run.export_folder, tested)
    assert exported.label.tolist() == ours.label.tolist()
    np.testing.assert_allclose(exported.label_probability, ours.label_probability, atol=1e-4)


@pytest.mark.long
def test_a_training_stopped_in_the_evaluation_continues_with_all_test_images(run: Run, tested: Path, tmp_path: Path):
    stopped = prepare_run(settings_in(tmp_path), tested, "run")
    steps = EPOCHS * (batches_of(tested, "train") + batches_of(tested, "validation"))
    assert batches_of(tested, "test") > 1
    with pytest.raises(Preempted, match="in the evaluation"):
        run_job(stopped, after(steps + 1))
    assert not (stopped.folder / "evaluation.json").exists()
    run_job(stopped, never)
    assert load_predictions(stopped.folder).label.tolist() == labels_of(tested, "test")
    assert read(stopped.folder / "record", "epochs")["step"].tolist() == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_decoded_validation_images_are_not_taken_for_test_images(cache: str, tested: Path, tmp_path: Path):
    kept = prepare_run(settings_in(tmp_path, cache=cache, local_folder=str(tmp_path / "local")), tested, "run")
    run_job(kept, never)
    assert load_predictions(kept.folder).label.tolist() == labels_of(tested, "test")


@pytest.mark.long
def test_a_dataset_in_a_bucket_is_judged_on_its_test_images(gcs: FakeGcs, tested: Path, tmp_path: Path):
    """The shard cache is as small as it may be."""
    gcs.put_folder("bucket", "tested/", tested)
    limit = sum(needed_room(load(tested)).values())
    values = {"cache_gigabytes": limit / 1e9, "cache": "off", "local_folder": str(tmp_path / "local")}
    remote = prepare_run(settings_in(tmp_path / "w", **values), BucketPath("bucket", "tested"), "run")
    copies, sizes = tmp_path / "local" / "shards", []

    def counted() -> bool:
        sizes.append(sum(path.stat().st_size for path in copies.glob("*/*") if ".lock" not in path.name))
        return False

    run_job(remote, counted)
    assert load_predictions(remote.folder).label.tolist() == labels_of(tested, "test")
    assert 0 < max(sizes) <= limit


def test_the_room_of_a_shard_cache_is_divided_among_all_splits_that_are_read(published: Path, tested: Path):
    assert needed_room(load(published)).keys() == {"train", "validation"}
    needed = needed_room(load(tested))
    assert needed.keys() == {"train", "validation", "test"}
    for limit in (sum(needed.values()), 10**9):
        room = divided_room(load(tested), limit)
        assert all(room[split] >= needed[split] for split in needed)
        assert sum(room.values()) <= limit
