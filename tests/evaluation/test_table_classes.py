"""Metrics of predictions of classes of rows, compared with scikit-learn."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as reference
from sklearn.calibration import calibration_curve

from pipeline.evaluation.blocks import MAX_BLOCKS
from pipeline.evaluation.calibration import BINS
from pipeline.evaluation.estimates import Estimate
from pipeline.evaluation.metrics import (
    estimates,
    evaluation_of,
    figures_in,
    joined,
    load_predictions,
    save,
)
from pipeline.evaluation.table_classes import MAX_RANKED_CLASSES, MIN_PROBABILITY, ClassPredictions, Ranks

CONTINUOUS = 1_000_003
"""So many levels that equal probabilities are rare."""


def binary(labels: np.ndarray, second: np.ndarray) -> ClassPredictions:
    return ClassPredictions.of_batch(labels, np.stack([1 - second, second], axis=1))


def drawn_binary(count: int, noise: float = 1.0, levels: int = CONTINUOUS, seed: int = 1) -> ClassPredictions:
    """Draw rows of which 30% have the second class. The labels are the same for each `seed` and `noise`."""
    labels = (np.random.default_rng(0).random(count) < 0.3).astype(int)
    logits = 2 * labels - 1.5 + np.random.default_rng(seed).normal(0, noise, count)
    return binary(labels, ((np.round(levels / (1 + np.exp(-logits))) / levels).astype(np.float32)))


def drawn(count: int, classes: int, seed: int = 1) -> ClassPredictions:
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=count)
    return ClassPredictions.of_batch(labels, probabilities_of(labels, classes, random))


def probabilities_of(labels: np.ndarray, classes: int, random: np.random.Generator) -> np.ndarray:
    scores = np.exp(random.normal(size=(len(labels), classes)) + 1.5 * np.eye(classes)[labels])
    return (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)


def values(predictions: ClassPredictions, classes: int) -> dict[str, float]:
    return {name: estimate.value for name, estimate in by_key(predictions, classes).items()}


def by_key(predictions: ClassPredictions, classes: int, seed: int = 0) -> dict[str, Estimate]:
    found = estimates(predictions, classes, predictions.blocks(seed))
    return {metric.key: estimate for metric, estimate in found.items()}


# --- two classes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 3, 20, CONTINUOUS])
def test_binary_figures_equal_those_of_scikit_learn(levels: int):
    outputs = drawn_binary(500, levels=levels)
    second = outputs.ranked[:, 0]
    found = values(outputs, 2)
    assert list(found) == ["auc", "log_loss", "accuracy", "calibration_error"]
    assert found["auc"] == pytest.approx(reference.roc_auc_score(outputs.label, second), abs=1e-6)
    assert found["log_loss"] == pytest.approx(reference.log_loss(outputs.label, second), rel=1e-5)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(outputs.label, second > 0.5), abs=1e-6)


@pytest.mark.parametrize(
    ("hits", "probabilities", "expected"),
    [
        ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], 3 / 4),  # the example in the documentation of roc_auc_score
        ([0, 1], [0.5, 0.5], 1 / 2),
        ([0, 1, 1], [0.5, 0.5, 0.9], 3 / 4),
        ([1, 0], [0.1, 0.9], 0),
    ],
)
def test_auc_equals_manual_calculations(hits: list[int], probabilities: list[float], expected: float):
    found = Ranks.of(np.array(hits, bool), np.array(probabilities, np.float32))
    assert found.auc(np.ones(len(hits))) == pytest.approx(expected)


@pytest.mark.parametrize("levels", [4, CONTINUOUS])
def test_weights_count_rows_as_often_as_they_say(levels: int):
    outputs = drawn_binary(300, levels=levels)
    weights = np.random.default_rng(2).integers(4, size=300)
    auc, log_loss, accuracy = (metric.estimator.statistic(outputs)(weights) for metric in outputs.metrics[:3])
    second = outputs.ranked[:, 0]
    assert auc == pytest.approx(reference.roc_auc_score(outputs.label, second, sample_weight=weights))
    assert log_loss == pytest.approx(reference.log_loss(outputs.label, second, sample_weight=weights), rel=1e-5)
    assert accuracy == pytest.approx(reference.accuracy_score(outputs.label, second > 0.5, sample_weight=weights))


def test_binary_calibration_is_that_of_the_second_class():
    outputs = drawn_binary(2000)
    second = outputs.ranked[:, 0]
    rows = [row for row in evaluation_of(outputs, ["no", "yes"], seed=0)["reliability"] if row["count"]]
    shares, confidences = calibration_curve(outputs.label, second, n_bins=BINS, strategy="uniform")
    assert [row["accuracy"] for row in rows] == pytest.approx(shares, abs=1e-5)
    assert [row["confidence"] for row in rows] == pytest.approx(confidences, abs=1e-5)
    counts = np.array([row["count"] for row in rows])
    plain = counts @ np.abs(shares - confidences) / 2000
    # Chance adds about 1% to the plain error of 2,000 rows, which is larger here.
    assert plain > 0.05
    assert plain - 0.02 < values(outputs, 2)["calibration_error"] < plain


def test_the_interval_is_that_of_resampled_rows():
    outputs = drawn_binary(400)
    found = by_key(outputs, 2, seed=3)
    assert found == by_key(outputs, 2, seed=3)
    assert found != by_key(outputs, 2, seed=4)
    random = np.random.default_rng(9)
    draws = [random.integers(400, size=400) for _ in range(400)]
    second = outputs.ranked[:, 0].astype(float)
    for name, score, tolerance in (("auc", reference.roc_auc_score, 0.015), ("log_loss", reference.log_loss, 0.02)):
        low, high = np.percentile([score(outputs.label[rows], second[rows]) for rows in draws], (2.5, 97.5))
        assert (found[name].low, found[name].high) == pytest.approx((low, high), abs=tolerance), name


def test_a_class_of_one_row_has_an_auc_interval_although_it_is_left_out_once():
    labels = np.eye(30, dtype=int)[7]
    found = by_key(binary(labels, np.random.default_rng(3).random(30)), 2)["auc"]
    assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize("label", [0, 1])
def test_rows_of_a_single_class_have_no_auc(label: int):
    outputs = binary(np.full(20, label), np.linspace(0.1, 0.9, 20))
    assert list(values(outputs, 2)) == ["log_loss", "accuracy", "calibration_error"]


def test_a_probability_of_zero_has_a_finite_loss():
    outputs = binary(np.array([1, 0, 1]), np.array([0.0, 0.5, 1.0], np.float32))
    expected = reference.log_loss(outputs.label, outputs.ranked[:, 0])
    assert outputs.score == pytest.approx(expected, abs=1e-6)
    assert outputs.score == pytest.approx((-np.log(MIN_PROBABILITY) + np.log(2)) / 3)


# --- more classes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [3, 12])
def test_figures_of_several_classes_equal_those_of_scikit_learn(classes: int):
    outputs = drawn(600, classes)
    probabilities, ids = outputs.ranked.astype(float), range(classes)
    probabilities /= probabilities.sum(axis=1, keepdims=True)  # scikit-learn checks the sums in float64.
    found = values(outputs, classes)
    auc = reference.roc_auc_score(outputs.label, probabilities, multi_class="ovr", average="macro")
    assert found["auc"] == pytest.approx(auc, abs=1e-6)
    assert found["log_loss"] == pytest.approx(reference.log_loss(outputs.label, probabilities, labels=ids), rel=1e-5)
    correct = reference.accuracy_score(outputs.label, probabilities.argmax(axis=1))
    assert found["accuracy"] == pytest.approx(correct, abs=1e-6)
    # The calibration is that of the predicted class.
    is_correct = (probabilities.argmax(axis=1) == outputs.label).astype(int)
    shares, confidences = calibration_curve(is_correct, outputs.probability, n_bins=BINS, strategy="uniform")
    rows = [row for row in evaluation_of(outputs, [str(n) for n in ids], seed=0)["reliability"] if row["count"]]
    assert [row["accuracy"] for row in rows] == pytest.approx(shares, abs=1e-5)
    assert [row["confidence"] for row in rows] == pytest.approx(confidences, abs=1e-5)


def test_a_class_without_rows_is_left_out_of_the_auc():
    random = np.random.default_rng(4)
    labels = random.integers(3, size=200)  # The fourth class has no row.
    probabilities = probabilities_of(labels, 4, random)
    outputs = ClassPredictions.of_batch(labels, probabilities)
    of_classes = [reference.roc_auc_score(labels == n, probabilities[:, n]) for n in range(3)]
    assert values(outputs, 4)["auc"] == pytest.approx(np.mean(of_classes), abs=1e-6)


def test_very_many_classes_have_no_auc_and_keep_no_probabilities():
    few, many = drawn(300, MAX_RANKED_CLASSES), drawn(300, MAX_RANKED_CLASSES + 1)
    assert (few.ranked.shape, many.ranked.shape) == ((300, MAX_RANKED_CLASSES), (300, 0))
    assert "auc" in values(few, MAX_RANKED_CLASSES)
    assert list(values(many, MAX_RANKED_CLASSES + 1)) == ["log_loss", "accuracy", "calibration_error"]
    assert many.score == pytest.approx(-np.log(many.label_probability).mean())


def test_many_answers_have_fewer_blocks():
    assert drawn(300, 3).blocks(seed=0).count == MAX_BLOCKS
    column = np.broadcast_to(np.zeros((), np.float32), (20_000,))
    matrix = np.broadcast_to(column[:, np.newaxis], (20_000, 100))
    assert ClassPredictions(*(column,) * 5, matrix).blocks(seed=0).count == 100


# --- files and comparison ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 4, MAX_RANKED_CLASSES + 1])
def test_predictions_survive_a_round_trip(tmp_path: Path, classes: int):
    outputs = drawn(40, classes)
    save(tmp_path, outputs, evaluation_of(outputs, [f"c{n}" for n in range(classes)], seed=0))
    read, columns = load_predictions(tmp_path), outputs.columns.values()
    assert isinstance(read, ClassPredictions)
    pairs = zip(read.columns.values(), columns, strict=True)
    assert all(np.array_equal(one, other) and one.dtype == other.dtype for one, other in pairs)
    parts = [
        ClassPredictions(**{name: column[rows] for name, column in outputs.columns.items()})
        for rows in (slice(7), slice(7, None))
    ]
    assert all(np.array_equal(one, other) for one, other in zip(joined(parts).columns.values(), columns, strict=True))
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["task"] == "classes"
    assert sum(count for *_, count in content["confusions"]) == 40
    figures = ["val_auc", "val_log_loss", "val_accuracy", "val_calibration_error"]
    found = [figure.metric.validation_key for figure in figures_in(content)]
    assert found == [name for name in figures if name != "val_auc" or classes < 100]


def test_unknown_columns_are_refused(tmp_path: Path):
    np.savez(tmp_path / "predictions.npz", label=np.zeros(3), votes=np.zeros(3))
    with pytest.raises(ValueError, match="has the columns label, votes, which no task has: evaluate the model again"):
        load_predictions(tmp_path)


def test_a_difference_compares_log_loss_in_pairs():
    ours, theirs = drawn_binary(400, noise=1.0, seed=1), drawn_binary(400, noise=2.0, seed=2)
    found = ours.difference(theirs, seed=0)
    losses = [reference.log_loss(each.label, each.ranked[:, 0]) for each in (ours, theirs)]
    assert found.value == pytest.approx(losses[0] - losses[1], abs=1e-5)
    pairs = np.log(theirs.label_probability) - np.log(ours.label_probability)
    random = np.random.default_rng(5)
    means = [pairs[random.integers(400, size=400)].mean() for _ in range(3000)]
    assert (found.low, found.high) == pytest.approx(np.percentile(means, (2.5, 97.5)), abs=0.02)
    assert ours.difference(ours, seed=0) == (0, 0, 0)
    # In pairs, rows that are hard for both models cancel out: the interval is narrower than those of the models.
    alone = by_key(ours, 2)["log_loss"]
    close = ours.difference(binary(ours.label, np.clip(ours.ranked[:, 0] + 0.01, 0, 1)), seed=0)
    assert close.high - close.low < (alone.high - alone.low) / 2
