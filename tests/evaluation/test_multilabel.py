"""Metrics of multilabel predictions, compared with manual calculations."""

from pathlib import Path

import numpy as np
import pytest

from pipeline import storage
from pipeline.evaluation.blocks import ANSWERS_LEFT_OUT, MAX_BLOCKS, MIN_BLOCKS
from pipeline.evaluation.estimates import Estimate
from pipeline.evaluation.metrics import estimates, evaluation_of, figures_in, joined, load_predictions, save
from pipeline.evaluation.multilabel import MultiLabelPredictions, per_class, ranking
from pipeline.runs.promotion_rule import Rules, compare


def predictions(labels: list[list[int]], probabilities: list[list[float]]) -> MultiLabelPredictions:
    return MultiLabelPredictions.of_batch(np.array(labels), np.array(probabilities))


SMALL = predictions(
    [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]],
    [[0.9, 0.2, 0.1], [0.3, 0.8, 0.2], [0.6, 0.4, 0.9], [0.1, 0.3, 0.3]],
)


def drawn(count: int, noise: float, seed: int = 1) -> MultiLabelPredictions:
    """Draw five labels, each for a third of the images. The probabilities are the labels with added noise."""
    labels = np.random.default_rng(0).random((count, 5)) < 1 / 3
    shifted = labels + np.random.default_rng(seed).normal(0, noise, labels.shape)
    return MultiLabelPredictions.of_batch(labels, 1 / (1 + np.exp(-4 * (shifted - 0.5))))


def by_key(outputs: MultiLabelPredictions, classes: int) -> dict[str, Estimate]:
    return {metric.key: estimate for metric, estimate in estimates(outputs, classes, outputs.blocks(seed=3)).items()}


# --- average precision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "probabilities", "expected"),
    [
        ([1, 1, 0, 0], [0.9, 0.8, 0.2, 0.1], 1),
        ([0, 0, 1, 1], [0.9, 0.8, 0.2, 0.1], (1 / 3 + 2 / 4) / 2),
        # The example in the documentation of average_precision_score of scikit-learn. The result there is 0.83.
        ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], (1 / 1 + 2 / 3) / 2),
        ([1, 0, 1, 0], [0.5, 0.5, 0.5, 0.5], 1 / 2),  # all are equal, so the only threshold selects all
        # A hit, then a tie of a hit and a miss. The precision at the second threshold is 2/3 in either order.
        ([1, 1, 0, 0], [0.9, 0.5, 0.5, 0.1], 1 / 2 * 1 + 1 / 2 * 2 / 3),
        ([1, 0, 1, 0], [0.9, 0.5, 0.5, 0.1], 1 / 2 * 1 + 1 / 2 * 2 / 3),
        # A tie of two hits and a miss. Both hits have the precision at the end of the tie.
        ([0, 1, 1, 0, 1], [0.9, 0.5, 0.5, 0.5, 0.1], 2 / 3 * 2 / 4 + 1 / 3 * 3 / 5),
        ([1], [0.0], 1),
    ],
)
def test_average_precision_equals_manual_calculations(hits: list[int], probabilities: list[float], expected: float):
    found = ranking(np.array(hits, bool), np.array(probabilities, np.float32))
    assert found.average_precision(np.ones(len(hits))) == pytest.approx(expected)


def test_average_precision_without_a_positive_example_is_nan():
    assert np.isnan(ranking(np.zeros(3, bool), np.ones(3)).average_precision(np.ones(3)))


def area(hits: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the average precision by its definition, the sum of (R_n - R_n-1) * P_n over all thresholds."""
    total, recall = 0.0, 0.0
    for threshold in sorted(set(probabilities.tolist()), reverse=True):
        taken = probabilities >= threshold
        found = (hits & taken).sum()
        total += (found / hits.sum() - recall) * found / taken.sum()
        recall = found / hits.sum()
    return float(total)


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_average_precision_is_the_area_under_the_curve_with_weights(levels: int):
    random = np.random.default_rng(levels)
    for _ in range(20):
        hits, probabilities = random.random(40) < 0.3, random.integers(levels, size=40) / levels
        weights = np.bincount(random.integers(40, size=40), minlength=40)
        hits[0] = weights[0] = True
        found = ranking(hits, probabilities)
        assert found.average_precision(np.ones(40)) == pytest.approx(area(hits, probabilities))
        several = np.repeat(hits, weights), np.repeat(probabilities, weights)
        assert found.average_precision(weights) == pytest.approx(area(*several))


# --- all figures ------------------------------------------------------------------------------------------------------


def test_metrics_equal_manual_calculations():
    values = {name: estimate.value for name, estimate in by_key(SMALL, 3).items()}
    # Class a has hits at ranks 1 and 3 of 4, class b at ranks 1 and 2. No image has class c.
    assert values["mean_average_precision"] == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2, abs=1e-6)
    # Predicted: a | b | a, c | none. Two of four labels are found, and four labels are predicted.
    assert values["micro_f1"] == pytest.approx(2 * 2 / (4 + 4))
    assert values["accuracy"] == pytest.approx(2 / 4)  # the first image, and the last image without labels
    assert SMALL.score == pytest.approx(values["mean_average_precision"], abs=1e-6)


def test_calibration_covers_all_answers():
    outputs = predictions([[1, 0], [0, 0], [1, 1]], [[0.9, 0.9], [0.1, 0.1], [0.5, 0.5]])
    # There are two answers each of 0.9, 0.1 and 0.5, with 1, 0 and 2 present labels.
    plain = (abs(1 - 1.8) + abs(0 - 0.2) + abs(2 - 1.0)) / 6
    assert 0 <= by_key(outputs, 2)["calibration_error"].value < plain
    rows = [row for row in evaluation_of(outputs, ["a", "b"], seed=0)["reliability"] if row["count"]]
    assert [(row["count"], row["accuracy"]) for row in rows] == [(2, 0.0), (2, 1.0), (2, 0.5)]


def test_intervals_contain_the_scores_of_other_samples():
    found = by_key(drawn(400, 0.8), 5)
    assert found == by_key(drawn(400, 0.8), 5)
    scores = [drawn(400, 0.8, seed).score for seed in range(2, 42)]
    estimate = found["mean_average_precision"]
    assert estimate.low < estimate.value < estimate.high
    assert 0.02 < estimate.high - estimate.low < 0.1
    # Other noise on the same images varies nearly as much as other images, so most scores are inside.
    assert np.mean([estimate.low - 0.02 < score < estimate.high + 0.02 for score in scores]) > 0.9


@pytest.mark.parametrize(
    ("labels", "blocks"),
    [(1, MAX_BLOCKS), (ANSWERS_LEFT_OUT // 1000 // 100, 100), (ANSWERS_LEFT_OUT // 1000, MIN_BLOCKS)],
)
def test_many_answers_have_fewer_blocks(labels: int, blocks: int):
    column = np.broadcast_to(np.zeros((), bool), (1000, labels))
    assert MultiLabelPredictions(column, column).blocks(seed=0).count == blocks


def test_per_class_is_ordered_by_id():
    rows = per_class(SMALL, ["a", "b", "c"], SMALL.blocks(seed=0))
    for name in ("average_precision", "precision", "recall"):
        for row in rows:
            ends, value = row.pop(f"{name}_interval"), row[name]
            assert ends is value is None or 0 <= ends[0] <= value <= ends[1] <= 1
    assert rows == [
        {"name": "a", "count": 2, "average_precision": 0.833333, "precision": 0.5, "recall": 0.5},
        {"name": "b", "count": 2, "average_precision": 1.0, "precision": 1.0, "recall": 0.5},
        {"name": "c", "count": 0, "average_precision": None, "precision": 0.0, "recall": None},
    ]


def test_confident_mistakes_are_sorted_by_their_most_confident_wrong_label():
    assert SMALL.wrong().tolist() == [2, 1]
    assert SMALL.most_wrong() == [
        {"position": 2, "labels": [1], "label": 2, "probability": 0.9},
        {"position": 1, "labels": [0, 1], "label": 0, "probability": 0.3},
    ]
    assert [row["label"] for row in SMALL.mistakes_at(np.array([1]))] == [0]


def test_labels_unknown_to_the_dataset_are_ignored():
    outputs = MultiLabelPredictions.of_batch(np.array([[1, 0]]), np.array([[0.9, 0.1, 0.99]]))
    assert (outputs.label_probability.shape, outputs.score) == ((1, 2), 1.0)


def test_of_ids_returns_a_label_matrix():
    assert MultiLabelPredictions.of_ids([(2,), (0, 1)], 3).tolist() == [[False, False, True], [True, True, False]]


# --- files and comparison ---------------------------------------------------------------------------------------------


def test_predictions_survive_a_round_trip(tmp_path: Path):
    outputs = drawn(30, 0.5)
    save(tmp_path, outputs, evaluation_of(outputs, list("abcde"), seed=0))
    read, columns = load_predictions(tmp_path), outputs.columns.values()
    assert isinstance(read, MultiLabelPredictions)
    assert all(np.array_equal(one, other) for one, other in zip(read.columns.values(), columns, strict=True))
    figures = figures_in(storage.read_json(tmp_path / "evaluation.json"))
    assert [figure.metric for figure in figures] == list(outputs.metrics)
    parts = [
        MultiLabelPredictions(**{name: column[rows] for name, column in outputs.columns.items()})
        for rows in (slice(7), slice(7, None))
    ]
    assert all(np.array_equal(one, other) for one, other in zip(joined(parts).columns.values(), columns, strict=True))


def test_a_difference_compares_mean_average_precision_in_pairs():
    ours, theirs = drawn(300, 0.5, seed=1), drawn(300, 0.9, seed=2)
    found = ours.difference(theirs, seed=0)
    assert found.value == pytest.approx(ours.score - theirs.score, abs=1e-6)
    assert 0 < found.low < found.value < found.high
    same = ours.difference(ours, seed=0)  # Examples that are hard for both cancel out.
    assert same.value == 0
    assert same.high - same.low < (found.high - found.low) / 4


@pytest.mark.parametrize(
    ("ours", "theirs", "promoted"), [(0.5, 0.9, True), (0.9, 0.5, False), (0.7, 0.7, True), (0.71, 0.7, True)]
)
def test_the_gate_compares_mean_average_precision(ours: float, theirs: float, promoted: bool):
    one, other = drawn(300, ours, seed=1), drawn(300, theirs, seed=2)
    verdict = compare(one, other, "run/key", Rules("unless_surely_worse", 0.0, seed=0))
    assert verdict.is_promoted == promoted, verdict.sentence
    assert (
        f"mean average precision {one.score:.1%} against {other.score:.1%} of run/key on the same 300"
        in verdict.sentence
    )
