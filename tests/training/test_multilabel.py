"""A multilabel training in this process, from the list to the prediction."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline import storage
from pipeline.config.settings import settings_from
from pipeline.dataset import manifest as datasets
from pipeline.evaluation.metrics import load_predictions
from pipeline.monitor import read
from pipeline.report import report_run
from pipeline.runs.launch import prepare_run
from pipeline.runs.promotion import promote_if_better
from pipeline.runs.run import Run, load_result
from pipeline.stages.build import build
from pipeline.training.job import run_job
from pipeline.training.served.exported import evaluate_exported
from pipeline.training.served.predict import format_predictions, predict

pytestmark = pytest.mark.long

CORNERS = {"red": (4, 4), "green": (20, 4), "blue": (12, 20)}
COLORS = {"red": (230, 40, 40), "green": (40, 200, 60), "blue": (50, 60, 230)}
SHOWN = [labels for labels in product((False, True), repeat=3) if any(labels)]


def drawn(labels: list[str], seed: int) -> Image.Image:
    """Return gray noise with a colored patch for each label."""
    noise = np.random.default_rng(seed).integers(60, 180, (32, 32, 1), np.uint8)
    image = Image.fromarray(np.repeat(noise, 3, axis=2))
    for label in labels:
        image.paste(COLORS[label], (*CORNERS[label], CORNERS[label][0] + 9, CORNERS[label][1] + 9))
    return image


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A complete training: 280 images, each with one to three of three labels."""
    root = tmp_path_factory.mktemp("several")
    rows = []
    for number in range(280):
        labels = [label for label, is_shown in zip(CORNERS, SHOWN[number % len(SHOWN)], strict=True) if is_shown]
        drawn(labels, number).save(root / f"{number}.png")
        rows.append(json.dumps({"path": f"{number}.png", "labels": labels}))
    (root / "list.jsonl").write_text("\n".join(rows))
    values = {"image_size": 32, "batch_size": 16, "epochs": 8, "crop": "whole", "validation_fraction": 0.25}
    settings = settings_from({"source_uri": str(root / "list.jsonl"), "workspace": str(root / "w"), **values})
    run = prepare_run(settings, Path(build(settings)["dataset"]), "run")
    run_job(run, lambda: False)
    return run


def test_a_multilabel_training_learns(run: Run):
    metrics = load_result(run.folder)["metrics"]
    assert metrics["val_mean_average_precision"] > 0.95  # by chance 4/7
    assert metrics["val_micro_f1"] > 0.9
    assert metrics["val_accuracy"] > 0.7  # by chance 1/7


def test_the_best_epoch_has_the_lowest_validation_loss(run: Run):
    metrics = load_result(run.folder)["metrics"]
    epochs = read(run.folder / "record", "epochs").set_index("step")
    assert metrics["best_epoch"] == epochs["val_loss"].idxmin()
    assert metrics["val_accuracy"] == pytest.approx(epochs["val_accuracy"][metrics["best_epoch"]], abs=1e-6)
    exact = storage.read_json(run.folder / "evaluation.json")["figures"]["accuracy"]["value"]
    assert metrics["val_accuracy"] == pytest.approx(exact, abs=1e-5)


def test_the_exported_model_predicts_what_the_evaluation_predicts(run: Run):
    exported, saved = evaluate_exported(run.export_folder, Path(run.dataset)), load_predictions(run.folder)
    assert np.array_equal(exported.label, saved.label)
    np.testing.assert_allclose(exported.label_probability, saved.label_probability, atol=1e-5)
    assert len(saved.label) == datasets.load(Path(run.dataset)).splits["validation"].examples


def test_predictions_name_all_labels_over_50_percent(run: Run, tmp_path: Path):
    shown = [["red", "blue"], ["green"]]
    files = [tmp_path / f"{number}.png" for number in range(2)]
    for number, (file, labels) in enumerate(zip(files, shown, strict=True)):
        drawn(labels, 1000 + number).save(file)
    found = predict(run.folder, files)
    assert [{each["label"] for each in one["labels"]} for one in found] == [set(labels) for labels in shown]
    assert [len(one["likely"]) for one in found] == [3, 3]
    assert found[1]["labels"] == found[1]["likely"][:1]
    lines = format_predictions({"predictions": found}).splitlines()
    assert lines[1].endswith(f"green {found[1]['labels'][0]['probability']:.1%}")

    model = tf.saved_model.load(str(run.export_folder))
    served = model.serve(tf.constant([file.read_bytes() for file in files]))
    assert [{name.decode() for name in row if name} for row in served["labels"].numpy()] == [
        set(each) for each in shown
    ]
    assert served["probabilities"].shape == (2, 3)


def test_the_most_likely_labels_are_named_if_none_is_over_50_percent():
    likely = [{"label": "a", "probability": 0.4}, {"label": "b", "probability": 0.1}]
    output = format_predictions({"predictions": [{"file": "x.jpg", "labels": [], "likely": likely}]})
    assert output == "x.jpg  no label above 50%. The most probable are a 40.0%, b 10.0%"


def test_the_report_shows_multilabel_metrics(run: Run):
    text = report_run(run.folder).read_text()
    for phrase in ("mean average precision", "exact match", "Average precision of each label", "Correct labels"):
        assert phrase in text, phrase
    assert "Confusion matrix" not in text


def test_a_multilabel_model_can_be_promoted(run: Run):
    assert promote_if_better(run.folder, run.settings, output=2)["promoted"]
