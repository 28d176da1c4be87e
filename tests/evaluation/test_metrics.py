"""Metrics of predictions, compared with manual calculations."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pipeline.evaluation.calibration import BINS, Judged, reliability_of
from pipeline.evaluation.estimates import MAX_MISTAKES, Estimate, pair_counts
from pipeline.evaluation.estimators import wilson
from pipeline.evaluation.metrics import (
    estimates,
    evaluation_of,
    figures_in,
    joined,
    load_predictions,
    save,
)
from pipeline.evaluation.one_label import Predictions, per_class

# label, predicted, probability, probability of the label, in the top five
ROWS = [
    (0, 0, 0.9, 0.9, True),
    (0, 1, 0.7, 0.2, True),
    (1, 1, 0.6, 0.6, True),
    (1, 0, 0.95, 0.01, False),
    (0, 0, 1.0, 1.0, True),
]


def predictions(rows: list[tuple[int, int, float, float, bool]]) -> Predictions:
    label, predicted, probability, of_label, in_top5 = map(np.array, zip(*rows, strict=True))
    return Predictions(label, predicted, probability.astype(np.float32), of_label.astype(np.float32), in_top5)


def drawn(count: int, seed: int = 1) -> Predictions:
    """Draw predictions of seven classes, of which 80% are correct. All have a probability of 0.8."""
    random = np.random.default_rng(seed)
    label = random.integers(7, size=count)
    correct = random.random(count) < 0.8
    sure = np.full(count, 0.8, np.float32)
    return Predictions(
        label, np.where(correct, label, (label + 1) % 7), sure, sure, correct | (random.random(count) < 0.5)
    )


def by_key(outputs: Predictions, classes: int) -> dict[str, Estimate]:
    return {metric.key: estimate for metric, estimate in estimates(outputs, classes, outputs.blocks(seed=0)).items()}


def wilson_ends(hits: int, examples: int) -> list[float]:
    """Return the ends of Wilson's interval."""
    found = wilson(hits / examples, examples, stats.norm.ppf(0.975))
    return pytest.approx([found.low, found.high], abs=1e-6)


def test_predictions_of_a_batch_have_all_columns():
    probabilities = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], np.float32)
    outputs = Predictions.of_batch(np.array([2, 0]), probabilities)
    assert [column.tolist() for column in (outputs.label, outputs.predicted)] == [[2, 0], [1, 0]]
    assert outputs.probability == pytest.approx([0.7, 0.5])
    assert outputs.label_probability == pytest.approx([0.2, 0.5])
    assert outputs.correct.tolist() == [False, True]
    types = {"label": np.int32, "predicted": np.int32, "probability": np.float32, "label_probability": np.float32}
    types |= {"in_top5": np.bool_, "group": np.int32}
    assert {name: column.dtype for name, column in outputs.columns.items()} == types


@pytest.mark.parametrize(
    ("probabilities", "label", "in_top5"),
    [
        ([0.3, 0.2, 0.15, 0.14, 0.11, 0.1], 4, True),
        ([0.3, 0.2, 0.15, 0.14, 0.11, 0.1], 5, False),
        ([1 / 7] * 7, 4, True),  # of equal probabilities, the first five count
        ([1 / 7] * 7, 5, False),
        ([0.5, 0.5], 1, True),
    ],
)
def test_in_top5_breaks_ties_by_class_order(probabilities: list[float], label: int, in_top5: bool):
    assert Predictions.of_batch(np.array([label]), np.array([probabilities])).in_top5.tolist() == [in_top5]


def test_joined_keeps_the_order_of_parts():
    whole = predictions(ROWS)
    parts = [predictions(ROWS[:2]), predictions(ROWS[2:])]
    columns = joined(parts).columns
    assert all(np.array_equal(columns[name], column) for name, column in whole.columns.items())


def test_metrics_equal_manual_calculations():
    found = by_key(predictions(ROWS), 6)
    assert (found["accuracy"].value, found["top5"].value) == (0.6, 0.8)
    # Bins of a fifteenth: 0.6 in the tenth, 0.7 in the eleventh, 0.9 in the fourteenth, 0.95 and 1.0 in the last.
    plain = (abs(1 - 0.6) + abs(0 - 0.7) + abs(1 - 0.9) + abs(0 - 0.95 + 1 - 1.0)) / 5
    assert 0 <= found["calibration_error"].value < plain


def test_five_classes_have_no_top5_accuracy():
    assert list(by_key(predictions(ROWS), 5)) == ["accuracy", "calibration_error"]


def test_intervals_follow_the_binomial_distribution():
    outputs = drawn(2000)
    found = by_key(outputs, 7)
    assert found == by_key(outputs, 7)
    share = outputs.correct.mean()
    reach = 1.96 * np.sqrt(share * (1 - share) / 2000)
    assert found["accuracy"].low == pytest.approx(share - reach, abs=0.003)
    assert found["accuracy"].high == pytest.approx(share + reach, abs=0.003)
    assert found["top5"].low < outputs.in_top5.mean() < found["top5"].high
    # All examples are in one bin. The plain error is the distance of its accuracy from 0.8, which is mostly chance.
    assert found["calibration_error"].low == 0
    assert found["calibration_error"].value <= abs(share - 0.8)
    assert found["calibration_error"].high < 2 * reach


def test_confidence_bins_contain_all_examples():
    outputs = predictions(ROWS)
    bins = reliability_of(Judged(outputs.probability, outputs.correct))
    assert len(bins) == BINS
    assert [row["count"] for row in bins] == [0] * 9 + [1, 1, 0, 0, 1, 2]
    assert bins[-1] == pytest.approx({"low": 0.933333, "high": 1, "count": 2, "confidence": 0.975, "accuracy": 0.5})
    assert bins[0] == {"low": 0.0, "high": 0.066667, "count": 0, "confidence": None, "accuracy": None}


def test_per_class_returns_precision_and_recall():
    outputs = predictions([*ROWS, (2, 1, 0.5, 0.1, True)])
    rows = per_class(outputs, ["a", "b", "c", "d"])
    ends = [[row.pop(f"{name}_interval") for row in rows] for name in ("precision", "recall")]
    assert ends[0][2:] == [None, None]  # never predicted
    assert ends[1] == [wilson_ends(2, 3), wilson_ends(1, 2), wilson_ends(0, 1), None]
    assert rows == [
        {"name": "a", "count": 3, "precision": 0.666667, "recall": 0.666667},
        {"name": "b", "count": 2, "precision": 0.333333, "recall": 0.5},
        {"name": "c", "count": 1, "precision": None, "recall": 0.0},  # never predicted
        {"name": "d", "count": 0, "precision": None, "recall": None},
    ]


def test_confusions_are_counts_of_pairs():
    content = evaluation_of(predictions(ROWS), ["a", "b"], seed=0)
    assert content["confusions"] == [[0, 0, 2], [0, 1, 1], [1, 0, 1], [1, 1, 1]]
    many = np.array([70_000], np.int32)  # the number of a pair exceeds 32 bits
    assert pair_counts(many, many - 1, 100_000) == [[70_000, 69_999, 1]]


def test_confident_mistakes_are_sorted_by_probability():
    assert predictions(ROWS).wrong().tolist() == [3, 1]
    assert predictions(ROWS).most_wrong() == [
        {"position": 3, "label": 1, "predicted": 0, "probability": 0.95},
        {"position": 1, "label": 0, "predicted": 1, "probability": 0.7},
    ]
    assert predictions(ROWS[:1]).most_wrong() == []
    assert len(predictions(20 * ROWS).most_wrong()) == MAX_MISTAKES < len(predictions(20 * ROWS).wrong())


def test_save_writes_predictions_and_evaluation(tmp_path: Path):
    outputs = predictions(ROWS)
    save(tmp_path, outputs, evaluation_of(outputs, ["a", "b\udcff", "c", "d", "e", "f"], seed=5))
    with np.load(tmp_path / "predictions.npz") as columns:
        assert {name: columns[name].tolist() for name in columns} == {
            name: column.tolist() for name, column in outputs.columns.items()
        }
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert (content["examples"], content["classes"][1]["name"]) == (5, "b\udcff")
    assert content["intervals"] == {"percent": 95, "blocks": 5, "seed": 5}
    found = {
        figure.metric.key: figure.estimate._asdict() | {"baseline": figure.baseline} for figure in figures_in(content)
    }
    assert found == content["figures"]
    assert list(found) == ["accuracy", "top5", "calibration_error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluation.json", "predictions.npz"]


def test_the_interval_of_a_difference_is_that_of_resampled_pairs():
    ours, theirs = drawn(300, seed=1), drawn(300, seed=2)
    predicted = np.where(theirs.correct, ours.label, (ours.label + 1) % 7)
    theirs = replace(theirs, label=ours.label, predicted=predicted)
    found = ours.difference(theirs, seed=0)
    pairs = ours.correct.astype(int) - theirs.correct.astype(int)
    assert found.value == pytest.approx(pairs.mean(), abs=1e-6)
    random = np.random.default_rng(5)
    means = [pairs[random.integers(300, size=300)].mean() for _ in range(4000)]
    assert (found.low, found.high) == pytest.approx(np.percentile(means, (2.5, 97.5)), abs=0.015)
    assert ours.difference(theirs, seed=0) == found


def test_a_difference_on_different_examples_is_refused():
    one, other = drawn(30, seed=1), drawn(30, seed=2)
    with pytest.raises(ValueError, match="different examples"):
        one.difference(other, seed=0)


def test_predictions_survive_a_round_trip(tmp_path: Path):
    save(tmp_path, drawn(20), {})
    read = load_predictions(tmp_path)
    assert all(np.array_equal(read.columns[name], column) for name, column in drawn(20).columns.items())
    with pytest.raises(FileNotFoundError):
        load_predictions(tmp_path / "none")
