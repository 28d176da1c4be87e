"""Figures of images with several labels, by hand and by tables."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.evaluation.metrics import difference, estimates, evaluation_of, joined, load_predictions, metrics_of, save
from pipeline.evaluation.multilabel import (
    MIN_RESAMPLES,
    RESAMPLED_ANSWERS,
    MultiLabelPredictions,
    confident_mistakes,
    per_class,
    ranking,
)
from pipeline.runs.promotion import compare_answers


def predictions(labels: list[list[int]], probabilities: list[list[float]]) -> MultiLabelPredictions:
    return MultiLabelPredictions.of_batch(np.array(labels), np.array(probabilities))


SMALL = predictions(
    [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]],
    [[0.9, 0.2, 0.1], [0.3, 0.8, 0.2], [0.6, 0.4, 0.9], [0.1, 0.3, 0.3]],
)


def drawn(count: int, noise: float, seed: int = 1) -> MultiLabelPredictions:
    """Five labels, each of a third of the images; the probabilities tell them, but for noise of their own."""
    labels = np.random.default_rng(0).random((count, 5)) < 1 / 3
    shifted = labels + np.random.default_rng(seed).normal(0, noise, labels.shape)
    return MultiLabelPredictions.of_batch(labels, 1 / (1 + np.exp(-4 * (shifted - 0.5))))


# --- average precision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "probabilities", "expected"),
    [
        ([1, 1, 0, 0], [0.9, 0.8, 0.2, 0.1], 1),
        ([0, 0, 1, 1], [0.9, 0.8, 0.2, 0.1], (1 / 3 + 2 / 4) / 2),
        # The example of scikit-learn's documentation of average_precision_score, which says 0.83.
        ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], (1 / 1 + 2 / 3) / 2),
        ([1, 0, 1, 0], [0.5, 0.5, 0.5, 0.5], 1 / 2),  # all equal: one threshold, at which all are taken
        # A tie of a hit and a miss behind one hit: at the second threshold 2 of 3, whichever of them came first.
        ([1, 1, 0, 0], [0.9, 0.5, 0.5, 0.1], 1 / 2 * 1 + 1 / 2 * 2 / 3),
        ([1, 0, 1, 0], [0.9, 0.5, 0.5, 0.1], 1 / 2 * 1 + 1 / 2 * 2 / 3),
        # Two hits and a miss in one tie: both have the precision at its end.
        ([0, 1, 1, 0, 1], [0.9, 0.5, 0.5, 0.5, 0.1], 2 / 3 * 2 / 4 + 1 / 3 * 3 / 5),
        ([1], [0.0], 1),
    ],
)
def test_average_precision_by_hand(hits: list[int], probabilities: list[float], expected: float):
    found = ranking(np.array(hits, bool), np.array(probabilities, np.float32))
    assert found.average_precision(np.ones(len(hits))) == pytest.approx(expected)


def test_no_average_precision_without_an_example():
    assert np.isnan(ranking(np.zeros(3, bool), np.ones(3)).average_precision(np.ones(3)))


def area(hits: np.ndarray, probabilities: np.ndarray) -> float:
    """The definition, threshold by threshold: the sum of (R_n - R_n-1) * P_n."""
    total, recall = 0.0, 0.0
    for threshold in sorted(set(probabilities.tolist()), reverse=True):
        taken = probabilities >= threshold
        found = (hits & taken).sum()
        total += (found / hits.sum() - recall) * found / taken.sum()
        recall = found / hits.sum()
    return float(total)


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_average_precision_is_the_area_also_of_what_is_drawn_several_times(levels: int):
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


def test_figures_by_hand():
    values = {name: estimate.value for name, estimate in estimates(SMALL, 3, seed=0).items()}
    # First class: hits ranked 1 and 3 of 4; second: 1 and 2; no image has the third.
    assert values["mean_average_precision"] == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2, abs=1e-6)
    # Predicted: a | b | a, c | none; found 2 of 4 labels that are there, and 4 were predicted.
    assert values["micro_f1"] == pytest.approx(2 * 2 / (4 + 4))
    assert values["accuracy"] == pytest.approx(2 / 4)  # the first, and the last, which has none
    assert SMALL.score == pytest.approx(values["mean_average_precision"], abs=1e-6)


def test_calibration_is_that_of_all_answers():
    kept = predictions([[1, 0], [0, 0], [1, 1]], [[0.9, 0.9], [0.1, 0.1], [0.5, 0.5]])
    # Bins of a fifteenth: two answers of 0.9, two of 0.1, two of 0.5, which hold 1, 0 and 2 labels.
    expected = (abs(1 - 1.8) + abs(0 - 0.2) + abs(2 - 1.0)) / 6
    assert estimates(kept, 2, seed=0)["calibration_error"].value == pytest.approx(expected, abs=1e-6)
    rows = [row for row in evaluation_of(kept, ["a", "b"], seed=0)["reliability"] if row["count"]]
    assert [(row["count"], row["accuracy"]) for row in rows] == [(2, 0.0), (2, 1.0), (2, 0.5)]


def test_intervals_hold_what_other_samples_of_the_same_model_give():
    found = estimates(drawn(400, 0.8), 5, seed=3)
    assert found == estimates(drawn(400, 0.8), 5, seed=3)
    scores = [drawn(400, 0.8, seed).score for seed in range(2, 42)]
    estimate = found["mean_average_precision"]
    assert estimate.low < estimate.value < estimate.high
    assert 0.02 < estimate.high - estimate.low < 0.1
    # Other noise on the same images: nearly as wide as other images, so that most lie within.
    assert np.mean([estimate.low - 0.02 < score < estimate.high + 0.02 for score in scores]) > 0.9


@pytest.mark.parametrize(
    ("answers", "resamples"),
    [(100, 1000), (RESAMPLED_ANSWERS // 500, 500), (RESAMPLED_ANSWERS, MIN_RESAMPLES)],
)
def test_what_takes_long_is_drawn_less_often(answers: int, resamples: int):
    column = np.broadcast_to(np.zeros((), bool), (answers, 1))
    assert MultiLabelPredictions(column, column).resamples == resamples


def test_each_class_by_id():
    assert per_class(SMALL, ["a", "b", "c"]) == [
        {"name": "a", "count": 2, "average_precision": 0.833333, "precision": 0.5, "recall": 0.5},
        {"name": "b", "count": 2, "average_precision": 1.0, "precision": 1.0, "recall": 0.5},
        {"name": "c", "count": 0, "average_precision": None, "precision": 0.0, "recall": None},
    ]


def test_the_most_wrong_have_the_surest_wrong_answer():
    assert confident_mistakes(SMALL) == [
        {"position": 2, "labels": [1], "label": 2, "probability": 0.9},
        {"position": 1, "labels": [0, 1], "label": 0, "probability": 0.3},
    ]
    assert [row["position"] for row in confident_mistakes(SMALL, 1)] == [2]


def test_labels_that_the_data_set_does_not_know_count_for_nothing():
    kept = MultiLabelPredictions.of_batch(np.array([[1, 0]]), np.array([[0.9, 0.1, 0.99]]))
    assert (kept.label_probability.shape, kept.score) == ((1, 2), 1.0)


def test_the_ids_of_examples_become_their_labels():
    assert MultiLabelPredictions.of_ids([(2,), (0, 1)], 3).tolist() == [[False, False, True], [True, True, False]]


# --- files and comparison ---------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path):
    kept = drawn(30, 0.5)
    save(tmp_path, kept, evaluation_of(kept, list("abcde"), seed=0))
    read = load_predictions(tmp_path)
    assert isinstance(read, MultiLabelPredictions)
    assert all(np.array_equal(one, other) for one, other in zip(read, kept, strict=True))
    assert list(metrics_of(tmp_path)) == ["val_mean_average_precision", "val_micro_f1", "val_calibration_error"]
    parts = [MultiLabelPredictions(*(column[rows] for column in kept)) for rows in (slice(7), slice(7, None))]
    assert all(np.array_equal(one, other) for one, other in zip(joined(parts), kept, strict=True))


def test_the_difference_is_that_of_the_mean_average_precisions_in_pairs():
    ours, theirs = drawn(300, 0.5, seed=1), drawn(300, 0.9, seed=2)
    found = difference(ours, theirs, seed=0)
    assert found.value == pytest.approx(ours.score - theirs.score, abs=1e-6)
    assert 0 < found.low < found.value < found.high
    same = difference(ours, ours, seed=0)
    assert same == (0, 0, 0)  # pairs: what both find hard drops out


@pytest.mark.parametrize(
    ("ours", "theirs", "promoted"), [(0.5, 0.9, True), (0.9, 0.5, False), (0.7, 0.7, True), (0.71, 0.7, True)]
)
def test_the_gate_compares_by_mean_average_precision(ours: float, theirs: float, promoted: bool):
    one, other = drawn(300, ours, seed=1), drawn(300, theirs, seed=2)
    verdict = compare_answers(one, other, "run/key", 0.0, seed=0)
    assert verdict.is_promoted == promoted, verdict.sentence
    assert (
        f"mean average precision {one.score:.1%} against {other.score:.1%} of run/key on the same 300"
        in verdict.sentence
    )
