"""Evaluation of an exported model on the validation images of another dataset."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from pipeline import storage
from pipeline.__main__ import main
from pipeline.config.automatic import training_settings
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset import manifest as datasets
from pipeline.errors import DatasetError
from pipeline.evaluation.metrics import load_predictions, save_predictions
from pipeline.evaluation.one_label import Predictions
from pipeline.input import validation_batches
from pipeline.input.options import batch_options
from pipeline.kinds.images.tensors import with_all_classes
from pipeline.records import example
from pipeline.records.tfrecord import read_records
from pipeline.report import report_run
from pipeline.runs.files import RUN_FORMAT
from pipeline.runs.promotion import promote_by_hand, promote_if_better
from pipeline.stages.build import build
from pipeline.storage import place_of
from pipeline.training.model.models import build_model, model_options, with_probabilities
from pipeline.training.served.export import export
from pipeline.training.served.exported import evaluate_exported
from standins.fake_gcs import FakeGcs
from tests.published import replace_record

SETTINGS = training_settings({"image_size": 32, "batch_size": 8})
SEED = 1
"""Seed of weights that predict about half of the images correctly. Only then is an always wrong model clearly worse."""


@pytest.fixture(scope="module")
def exported(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a complete training without a training: export, predictions, run.json and result.json."""
    folder = tmp_path_factory.mktemp("workspace") / "runs" / "old" / "key"
    keras.utils.set_random_seed(SEED)
    model = build_model(model_options(SETTINGS), 2)
    export(model, SETTINGS, datasets.load(published), folder / "export")
    save_predictions(folder, evaluate_exported(folder / "export", published))
    (folder / "run.json").write_text(json.dumps(run_json_of(published)))
    (folder / "result.json").write_text(json.dumps({"metrics": {}}))
    with_probabilities(model).save(folder / "model.keras")
    return folder


def run_json_of(dataset: Path) -> dict[str, Any]:
    return {"format": RUN_FORMAT, "dataset": str(dataset), "settings": SETTINGS.model_dump()}


def of_source(published: Path, workspace: Path, **values: object) -> Path:
    """Build another dataset from the images of `published`."""
    source = published.parents[3] / "source"
    return Path(build(settings_from({"source_uri": str(source), "workspace": str(workspace), **values}))["dataset"])


def as_trained(exported: Path, folder: Path, settings: Settings) -> dict[str, np.ndarray]:
    """Return the predictions that a training stores for the same model."""
    model = keras.saving.load_model(exported / "model.keras")
    batches = [
        Predictions.of_batch(labels.numpy()[weights > 0], model(images).numpy()[weights > 0])
        for images, labels, weights in validation_batches(folder, batch_options(settings))
    ]
    return {name: np.concatenate([getattr(each, name) for each in batches]) for name in batches[0].columns}


@pytest.mark.parametrize(
    ("record", "reason"),
    [(b"noise", "not a tf.train.Example"), (None, "key '.*': TensorFlow cannot read it ")],
    ids=["no example", "no image"],
)
def test_a_record_that_an_exported_model_cannot_read_is_named(
    exported: Path, published: Path, tmp_path: Path, record: bytes | None, reason: str
):
    copy = tmp_path / "copy"
    shutil.copytree(published, copy)
    shard = next(each.name for each in datasets.load(copy).splits["validation"].shards if each.examples)
    features = example.decode(next(read_records(copy / shard)))
    broken = example.encode({**features, "image/encoded": b"\xff\xd8\xff noise"})
    replace_record(copy, shard, 0, record or broken)
    with pytest.raises(DatasetError, match=rf"{copy / shard}: record 0 \(from 0\)[:,] {reason}"):
        evaluate_exported(exported / "export", copy)


@pytest.mark.parametrize("prepare", ["keep", pytest.param("raw", marks=pytest.mark.long)])
def test_an_exported_model_is_evaluated_like_a_trained_model(
    exported: Path, published: Path, tmp_path: Path, prepare: str
):
    folder = of_source(published, tmp_path, prepare=prepare, prepare_size=16, split_seed=3)
    found = evaluate_exported(exported / "export", folder)
    expected = as_trained(exported, folder, SETTINGS)
    assert len(found.label) == datasets.load(folder).splits["validation"].examples
    for name, column in found.columns.items():
        np.testing.assert_allclose(column, expected[name], atol=1e-5, err_msg=name)


def test_classes_unknown_to_the_model_have_probability_zero():
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6]], np.float32)
    assert with_all_classes(probabilities, 4).tolist() == [[*row, 0, 0] for row in probabilities.tolist()]
    assert with_all_classes(probabilities, 1).shape == (2, 2)  # a model with more classes
    outputs = Predictions.of_batch(np.array([3, 1]), with_all_classes(probabilities, 4))
    assert (outputs.correct.tolist(), outputs.label_probability.tolist()) == ([False, True], [0.0, pytest.approx(0.6)])


@pytest.mark.long
def test_the_champion_is_evaluated_on_the_dataset_of_the_challenger(
    exported: Path, published: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    """The evaluation runs in a separate process, as in a task. The challenger is wrong for every image."""
    workspace = tmp_path / "w"
    old = shutil.copytree(exported, workspace / "runs" / "old" / "key")
    folder = of_source(published, workspace, split_seed=3)
    new = shutil.copytree(exported, workspace / "runs" / "new" / "key")
    about = json.loads((new / "export" / "about.json").read_text())
    version = datasets.load(folder).version
    assert version != about["dataset_version"]
    (new / "export" / "about.json").write_text(json.dumps({**about, "dataset_version": version}))
    (new / "run.json").write_text(json.dumps(run_json_of(folder)))
    ours = evaluate_exported(exported / "export", folder)
    assert ours.correct.mean() >= 0.5
    save_predictions(new, replace(ours, predicted=1 - ours.label))

    promote_by_hand(old, output=2)
    promotion = promote_if_better(new, SETTINGS, output=2)
    assert promotion["decision"] == "kept"
    of_champion = f"accuracy 0.0% against {ours.correct.mean():.1%} of old/key on the same {len(ours.label)} validation"
    assert of_champion in promotion["why"]

    (folder / "dataset.json").unlink()
    with pytest.raises(DatasetError, match=r"contains no dataset, because it has no dataset\.json"):
        promote_if_better(new, SETTINGS, output=2)


@pytest.mark.long
def test_an_exported_model_in_a_bucket_gives_the_same_predictions(exported: Path, published: Path, gcs: FakeGcs):
    place = place_of("gs://bucket/runs/old/export")
    for path in (exported / "export").rglob("*"):
        if path.is_file():
            storage.copy_new(path, place / path.relative_to(exported / "export").as_posix())
    found = evaluate_exported(place, published)
    assert np.array_equal(found.predicted, load_predictions(exported).predicted)


def test_a_promotion_by_hand_and_its_rollback_are_on_the_report(exported: Path, tmp_path: Path):
    runs = [shutil.copytree(exported, tmp_path / "w" / "runs" / name / "key") for name in ("one", "two")]
    others = {"run_id": "run", "dataset_version": "1", "host": {}, "software": {}, "steps_per_epoch": 1}
    for run in runs:
        (run / "run.json").write_text(json.dumps({**others, **json.loads((run / "run.json").read_text())}))
    pages = [report_run(run) for run in runs]
    assert all('<span class="badge' not in page.read_text() for page in pages)
    for run in runs:
        assert main(["promote", str(run)]) == 0
    assert all('<span class="badge promoted">' in page.read_text() for page in pages)
    name = json.loads((runs[0] / "export" / "about.json").read_text())["dataset"]
    assert main(["rollback", "--set", f"workspace={tmp_path / 'w'}", "--set", f"dataset_name={name}"]) == 0
    assert '<span class="badge rolled_back">' in runs[1].joinpath("report.html").read_text()
