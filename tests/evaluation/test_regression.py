"""Metrics of a regression, compared with scikit-learn."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as reference

from pipeline.evaluation.estimates import Estimate
from pipeline.evaluation.metrics import (
    estimates,
    evaluation_of,
    figures_in,
    joined,
    load_predictions,
    save,
)
from pipeline.evaluation.regression import CELLS, RegressionPredictions, residuals, value_histogram


def drawn(
    count: int, scale: float = 10.0, base: float = 50.0, noise: float = 0.5, seed: int = 1
) -> RegressionPredictions:
    """Draw values with a deviation of `scale`. The labels are the same for each `seed` and `noise`."""
    labels = base + scale * np.random.default_rng(0).normal(size=count)
    return RegressionPredictions.of_batch(
        labels, (labels + scale * noise * np.random.default_rng(seed).normal(size=count))[:, np.newaxis]
    )


def values(predictions: RegressionPredictions) -> dict[str, float]:
    return {name: estimate.value for name, estimate in by_key(predictions).items()}


def by_key(predictions: RegressionPredictions, seed: int = 0) -> dict[str, Estimate]:
    return {metric.key: estimate for metric, estimate in estimates(predictions, 0, predictions.blocks(seed)).items()}


@pytest.mark.parametrize(
    ("scale", "base"),
    [(10.0, 50.0), (1e-7, 1e-6), (1e9, -4e12), (1.0, 1e8)],  # the last one has a variance far below its square
)
def test_figures_equal_those_of_scikit_learn(scale: float, base: float):
    outputs = drawn(300, scale, base)
    expected = {
        "mae": reference.mean_absolute_error(outputs.label, outputs.predicted),
        "rmse": reference.root_mean_squared_error(outputs.label, outputs.predicted),
        "r2": reference.r2_score(outputs.label, outputs.predicted),
    }
    assert values(outputs) == pytest.approx(expected, rel=1e-6, abs=0)
    assert outputs.score == pytest.approx(expected["mae"])


def test_weights_count_rows_as_often_as_they_say():
    outputs = drawn(200)
    weights = np.bincount(np.random.default_rng(2).integers(200, size=200), minlength=200)
    label, predicted = np.repeat(outputs.label, weights), np.repeat(outputs.predicted, weights)
    assert [metric.estimator.statistic(outputs)(weights) for metric in outputs.metrics] == pytest.approx(
        [
            reference.mean_absolute_error(label, predicted),
            reference.root_mean_squared_error(label, predicted),
            reference.r2_score(label, predicted),
        ]
    )


def test_intervals_are_those_of_resampled_rows():
    outputs = drawn(400)
    results = by_key(outputs, seed=3)
    assert results == by_key(outputs, seed=3)
    assert results != by_key(outputs, seed=4)
    random = np.random.default_rng(9)
    draws = [random.integers(400, size=400) for _ in range(400)]
    for name, score in (
        ("mae", reference.mean_absolute_error),
        ("rmse", reference.root_mean_squared_error),
        ("r2", reference.r2_score),
    ):
        low, high = np.percentile([score(outputs.label[rows], outputs.predicted[rows]) for rows in draws], (2.5, 97.5))
        width = high - low
        assert results[name].low == pytest.approx(low, abs=width / 5), name
        # The upper end of this one leaves room for larger errors than these.
        room = width / 2 if name == "rmse" else 0.0
        assert high - width / 5 < results[name].high < high + width / 5 + room, name


def test_equal_labels_have_no_r2():
    outputs = RegressionPredictions.of_batch(np.full(9, 3.0), np.linspace(2, 5, 9))
    assert list(values(outputs)) == ["mae", "rmse"]
    # Two rows: without one of them, all labels are equal.
    two = by_key(RegressionPredictions.of_batch(np.array([0.1, 0.3]), np.array([0.15, 0.2])))["r2"]
    assert two.value == pytest.approx(1 - 0.0125 / 0.02)
    assert (two.low, two.high) == (-np.inf, 1)


def test_predictions_have_double_precision():
    outputs = RegressionPredictions.of_batch(np.array([1, 2], np.float32), np.array([[1.5], [2.5]], np.float32))
    for column in (outputs.label, outputs.predicted):
        assert (column.dtype, column.shape) == (np.float64, (2,))
    assert outputs.residual.tolist() == [0.5, 0.5]


def test_the_largest_errors_come_first():
    outputs = RegressionPredictions.of_batch(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.5, 2.0, 0.0, 14.0]))
    assert outputs.most_wrong() == [
        {"position": 3, "label": 4.0, "predicted": 14.0},
        {"position": 2, "label": 3.0, "predicted": 0.0},
        {"position": 0, "label": 1.0, "predicted": 1.5},
    ]
    assert outputs.wrong().tolist() == [3, 2, 0]


def test_the_histogram_counts_each_row_once_at_its_place():
    outputs = drawn(1000)
    results = value_histogram(outputs)
    edges = np.array(results["edges"])
    inside = ((outputs.label > edges[0]) & (outputs.label < edges[-1])) & (
        (outputs.predicted > edges[0]) & (outputs.predicted < edges[-1])
    )
    assert inside.mean() > 0.97
    expected, _, _ = np.histogram2d(outputs.label[inside], outputs.predicted[inside], bins=[edges, edges])
    table = np.zeros((CELLS, CELLS))
    for label, predicted, count in results["cells"]:
        table[label, predicted] = count
    assert table.sum() == 1000
    assert np.array_equal(table[1:-1, 1:-1], expected[1:-1, 1:-1])  # the outermost cells have the outliers, too


def test_an_outlier_does_not_stretch_the_axes():
    outputs = drawn(1000)
    far = replace(outputs, predicted=np.append(outputs.predicted[:-1], 1e9))
    results = value_histogram(far)
    assert results["edges"][-1] < 200
    assert [row for row in results["cells"] if row[1] == CELLS - 1]
    assert residuals(far)["edges"][-1] < 100
    assert sum(residuals(far)["counts"]) == 1000


def test_residuals_are_summarized():
    outputs = RegressionPredictions.of_batch(np.zeros(5), np.array([-3.0, -1.0, 0.0, 2.0, 7.0]))
    results = residuals(outputs)
    assert (results["mean"], results["median_absolute"]) == (1.0, 2.0)
    assert results["p95_absolute"] == pytest.approx(np.percentile([3, 1, 0, 2, 7], 95))


@pytest.mark.parametrize("value", [0.0, 1e12, -5.0])
def test_a_constant_has_a_histogram(value: float):
    outputs = RegressionPredictions.of_batch(np.full(6, value), np.full(6, value))
    results = evaluation_of(outputs, (), seed=0)
    assert results["values"]["cells"] == [[CELLS // 2, CELLS // 2, 6]]
    assert np.all(np.diff(results["values"]["edges"]) > 0)
    assert results["most_wrong"] == []


def test_predictions_survive_a_round_trip(tmp_path: Path):
    outputs = drawn(30)
    save(tmp_path, outputs, evaluation_of(outputs, (), seed=0))
    read, columns = load_predictions(tmp_path), outputs.columns.values()
    assert isinstance(read, RegressionPredictions)
    assert all(np.array_equal(one, other) for one, other in zip(read.columns.values(), columns, strict=True))
    parts = [
        RegressionPredictions(**{name: column[rows] for name, column in outputs.columns.items()})
        for rows in (slice(7), slice(7, None))
    ]
    assert all(np.array_equal(one, other) for one, other in zip(joined(parts).columns.values(), columns, strict=True))
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["task"] == "regression"
    assert len(content["most_wrong"]) == 12
    assert [figure.metric.key for figure in figures_in(content)] == ["mae", "rmse", "r2"]


def test_a_difference_compares_absolute_errors_in_pairs():
    ours, theirs = drawn(400, noise=0.5, seed=1), drawn(400, noise=0.7, seed=2)
    results = ours.difference(theirs, seed=0)
    pairs = np.abs(ours.residual) - np.abs(theirs.residual)
    assert results.value == pytest.approx(pairs.mean())
    random = np.random.default_rng(5)
    means = [pairs[random.integers(400, size=400)].mean() for _ in range(3000)]
    assert (results.low, results.high) == pytest.approx(np.percentile(means, (2.5, 97.5)), abs=0.06)
    assert results.high < 0  # A lower error is better.
    assert ours.difference(ours, seed=0) == (0, 0, 0)
