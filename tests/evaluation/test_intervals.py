"""Intervals and baselines of all figures: of few examples, of groups, and of calibrated models."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pipeline.evaluation.answers import Answers
from pipeline.evaluation.blocks import MAX_BLOCKS, blocks_of
from pipeline.evaluation.calibration import reliability_of
from pipeline.evaluation.estimates import Estimate
from pipeline.evaluation.estimators import class_shares, wilson
from pipeline.evaluation.metrics import (
    estimates,
    evaluation_of,
    figures_in,
    headline_in,
    load_predictions,
    over_baseline,
    save_predictions,
)
from pipeline.evaluation.multilabel import MultiLabelPredictions
from pipeline.evaluation.one_label import CALIBRATION_ERROR, Predictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.evaluation.table_classes import ClassPredictions

SEEDS = range(50)


def softmax(logits: np.ndarray) -> np.ndarray:
    scores = np.exp(logits)
    return scores / scores.sum(axis=1, keepdims=True)


def one_label(count: int, random: np.random.Generator) -> Predictions:
    labels = random.integers(7, size=count)
    return Predictions.of_batch(labels, softmax(random.normal(size=(count, 7)) + 2 * np.eye(7)[labels]))


def several_labels(count: int, random: np.random.Generator) -> MultiLabelPredictions:
    labels = random.random((count, 3)) < 0.3
    return MultiLabelPredictions.of_batch(labels, 1 / (1 + np.exp(1 - 2 * labels - random.normal(size=labels.shape))))


def classes(count: int, random: np.random.Generator) -> ClassPredictions:
    labels = random.integers(3, size=count)
    return ClassPredictions.of_batch(labels, softmax(random.normal(size=(count, 3)) + np.eye(3)[labels]))


def numbers(count: int, random: np.random.Generator) -> RegressionPredictions:
    labels = random.normal(size=count)
    return RegressionPredictions.of_batch(labels, labels + random.normal(size=count) / 2)


Draw = Callable[[int, np.random.Generator], Answers]
TASKS = [one_label, several_labels, classes, numbers]
ALL_TASKS = pytest.mark.parametrize("draw", TASKS, ids=[draw.__name__ for draw in TASKS])


def all_of(outputs: Answers) -> dict[str, Estimate]:
    found = estimates(outputs, 7, outputs.blocks(seed=0))
    return {metric.key: estimate for metric, estimate in found.items()}


def correct(hits: int, examples: int) -> Predictions:
    """Return answers to images of one class, of which the first ones are correct."""
    label, sure = np.zeros(examples, np.int32), np.full(examples, 0.9, np.float32)
    predicted = (np.arange(examples) >= hits).astype(np.int32)
    return Predictions(label, predicted, sure, sure, predicted == label)


# --- every figure -----------------------------------------------------------------------------------------------------


@ALL_TASKS
@pytest.mark.parametrize("count", [1, 2, 20, 300])
def test_every_estimate_is_within_its_interval(draw: Draw, count: int):
    seen = set()
    for seed in SEEDS if count == 20 else SEEDS[:8]:
        outputs = draw(count, np.random.default_rng(seed))
        for key, found in all_of(outputs).items():
            seen.add(key)
            assert found.low <= found.value <= found.high, (key, seed, found)
        gain = outputs.difference(outputs.baseline(), seed=0)
        assert gain.low <= gain.value <= gain.high, (seed, gain)
    assert count == 1 or seen == {metric.key for metric in outputs.metrics}


@ALL_TASKS
def test_every_figure_has_its_baseline(draw: Draw):
    outputs = draw(300, np.random.default_rng(0))
    classes = outputs.label.shape[1] if outputs.label.ndim > 1 else 7
    names = [f"c{number}" for number in range(classes)]
    figures = figures_in(evaluation_of(outputs, names, seed=0))
    assert [figure.metric for figure in figures] == list(outputs.metrics)
    for figure in figures:
        assert figure.baseline is not None
        better = figure.estimate.value - figure.baseline
        assert figure.metric.key == "calibration_error" or (better < 0) == figure.metric.lower_is_better, figure.text


# --- few examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "examples", "text"), [(0, 13, "0.0% to 22.8%"), (1, 1, "20.7% to 100.0%")])
def test_the_accuracy_of_few_examples_is_not_certain(hits: int, examples: int, text: str):
    outputs = correct(hits, examples)
    [accuracy, *_] = figures_in(evaluation_of(outputs, ["a", "b"], seed=0))
    assert accuracy.interval_text == text


@pytest.mark.parametrize("hits", [0, 4, 13, 200])
def test_a_share_has_wilsons_interval(hits: int):
    expected = stats.binomtest(hits, 200).proportion_ci(method="wilson")
    assert wilson(hits / 200, 200, stats.norm.ppf(0.975))[1:] == pytest.approx((expected.low, expected.high))
    assert all_of(correct(hits, 200))["accuracy"][1:] == pytest.approx((expected.low, expected.high), abs=1e-6)


@pytest.mark.parametrize("misses", [1, 2])
def test_a_share_of_few_misses_contains_more_than_wilsons_interval(misses: int):
    """One of 20 images is missed by 4% of the models that miss 0.2% of all images."""
    found = all_of(correct(20 - misses, 20))["accuracy"]
    expected = stats.binomtest(20 - misses, 20).proportion_ci(method="wilson")
    assert found.low == pytest.approx(expected.low, abs=1e-6)
    assert found.high == pytest.approx(1 - stats.chi2.ppf(0.05, 2 * misses) / 2 / 20, abs=1e-6)
    assert found.high > expected.high


def test_a_faultless_model_of_few_rows_is_not_certain():
    labels = np.array([0, 1] * 6)
    found = all_of(ClassPredictions.of_batch(labels, np.eye(2)[labels]))
    assert found["auc"].value == found["accuracy"].value == 1
    assert found["auc"].low < 0.85
    assert found["log_loss"].high > 1
    assert found["calibration_error"].high > 0.1
    exact = all_of(RegressionPredictions.of_batch(np.arange(12.0), np.arange(12.0)))
    assert exact["mae"].high > 1
    assert exact["r2"].low < 0.9


def test_one_row_says_nothing_about_an_error():
    outputs = RegressionPredictions.of_batch(np.array([3.0]), np.array([5.0]))
    [mae, *_] = figures_in(evaluation_of(outputs, [], seed=0))
    assert (mae.estimate, mae.interval_text) == ((2.0, 0.0, np.inf), "unknown")


def test_few_pairs_do_not_prove_a_difference():
    found = correct(1, 1).difference(correct(0, 1), seed=0)
    assert found.value == 1
    assert found.low < 0
    assert correct(13, 13).difference(correct(0, 13), seed=0).low > 0.5


def test_precision_and_recall_have_intervals():
    of_class, is_hit = np.array([0, 0, 0, 1, 3]), np.array([True, True, False, True, False])
    shares, intervals = class_shares(of_class, is_hit, np.arange(5), 4)
    assert shares == [0.666667, 1.0, None, 0.0]
    for share, ends in zip((2 / 3, 1.0, None, 0.0), intervals, strict=True):
        examples = 3 if share == 2 / 3 else 1
        expected = None if share is None else list(wilson(share, examples, stats.norm.ppf(0.975))[1:])
        assert ends == (expected and pytest.approx(expected, abs=1e-6))


def test_precision_and_recall_of_copies_say_no_more_than_those_of_the_originals():
    random = np.random.default_rng(0)
    of_class, is_hit = random.integers(3, size=200), random.random(200) < 0.7
    shares, once = class_shares(of_class, is_hit, np.arange(200), 3)
    copied, often = class_shares(np.tile(of_class, 5), np.tile(is_hit, 5), np.tile(np.arange(200), 5), 3)
    assert copied == shares
    for one, other in zip(once, often, strict=True):
        assert one == pytest.approx(other, abs=0.01)


# --- groups -----------------------------------------------------------------------------------------------------------


def in_groups(outputs: Answers, copies: int) -> Answers:
    """Return each answer several times, all copies in one group."""
    columns = {name: np.repeat(column, copies, axis=0) for name, column in outputs.columns.items() if name != "group"}
    return type(outputs)(**columns, group=np.repeat(np.arange(len(outputs.label), dtype=np.int32), copies))


@ALL_TASKS
def test_copies_in_a_group_say_no_more_than_one_example(draw: Draw):
    outputs = draw(100, np.random.default_rng(0))
    once, often = all_of(outputs), all_of(in_groups(outputs, 10))
    alone = all_of(replace(in_groups(outputs, 10), group=np.zeros(0, np.int32)))
    for key, found in once.items():
        width, of_groups, without = (each[key].high - each[key].low for each in (once, often, alone))
        # The interval of a calibration error with few examples is wider than necessary.
        near = 0.35 if key == "calibration_error" else 0.15
        assert of_groups == pytest.approx(width, rel=near, abs=0.01), key
        assert without < 0.6 * width, key
        assert often[key].value == pytest.approx(found.value, abs=0.01), key


def test_the_share_of_a_class_in_one_group_is_not_certain():
    _, [interval] = class_shares(np.zeros(3, int), np.array([1.0, 1.0, 0.0]), np.zeros(3, int), classes=1)
    assert interval is not None
    assert interval[0] < 0.3
    assert interval[1] > 0.9


def test_an_area_with_one_positive_row_is_not_certain():
    labels = (np.arange(200) == 100).astype(int)
    second = np.where(labels == 1, 0.5, np.linspace(0, 1, 200))
    rows = ClassPredictions.of_batch(labels, np.stack([1 - second, second], axis=1))
    figures = {figure.metric.key: figure.estimate for figure in figures_in(evaluation_of(rows, ["no", "yes"], seed=0))}
    assert figures["auc"].high - figures["auc"].low > 0.5


@pytest.mark.parametrize("draw", TASKS)
def test_predictions_that_are_no_numbers_have_an_evaluation(draw: Draw):
    """The test split may hold the first example that a model turns into NaN."""
    found = draw(30, np.random.default_rng(0))
    columns = {
        name: np.where(np.arange(30).reshape(-1, *[1] * (column.ndim - 1)) == 3, np.nan, column)
        if column.dtype.kind == "f" and name != "label"
        else column
        for name, column in found.columns.items()
    }
    broken = type(found)(**columns)
    names = [f"class-{number}" for number in range(7 if draw is one_label else 3)]
    assert all(figure.text for figure in figures_in(evaluation_of(broken, names, seed=0)))


def test_a_group_is_never_divided():
    group = np.random.default_rng(0).integers(1000, size=5000).astype(np.int32)
    blocks = blocks_of(group, 5000, 5000, seed=0)
    assert (blocks.count, blocks.units) == (MAX_BLOCKS, len(np.unique(group)))
    assert len({*zip(group.tolist(), blocks.of_example.tolist(), strict=True)}) == blocks.units
    assert blocks_of(np.zeros(0, np.int32), 30, 30, seed=0).of_example.tolist() == list(range(30))


def test_groups_survive_a_round_trip(tmp_path: Path):
    outputs = in_groups(one_label(5, np.random.default_rng(0)), 2)
    save_predictions(tmp_path, outputs)
    assert load_predictions(tmp_path).group.tolist() == outputs.group.tolist()


# --- baselines --------------------------------------------------------------------------------------------------------


def test_the_baseline_of_one_label_is_the_most_frequent_class():
    outputs = Predictions.of_batch(np.array([2, 0, 2, 1, 2]), np.eye(3)[[0, 0, 2, 1, 1]])
    baseline = outputs.baseline()
    assert baseline.predicted.tolist() == [2] * 5
    assert baseline.probability == pytest.approx([0.6] * 5)
    assert baseline.label_probability == pytest.approx([0.6, 0.2, 0.6, 0.2, 0.6])
    assert baseline.score == 0.6


@pytest.mark.parametrize("classes", [2, 4])
def test_the_baseline_of_classes_has_the_entropy_as_its_log_loss(classes: int):
    labels = np.array([0, 0, 0, 1])  # The last classes have no row.
    outputs = ClassPredictions.of_batch(labels, np.full((4, classes), 1 / classes))
    baseline = outputs.baseline()
    assert baseline.score == pytest.approx(stats.entropy([0.75, 0.25]), rel=1e-6)
    assert all_of(baseline)["auc"].value == 0.5
    assert baseline.ranked.shape == outputs.ranked.shape


def test_the_baseline_of_several_labels_has_their_shares_as_average_precision():
    outputs = several_labels(200, np.random.default_rng(0))
    assert outputs.baseline().score == pytest.approx(outputs.label.mean())


def test_the_baseline_of_numbers_is_the_best_constant_of_each_figure():
    outputs = RegressionPredictions.of_batch(np.array([0.0, 0.0, 0.0, 10.0]), np.zeros(4))
    assert outputs.baseline().predicted.tolist() == [0.0] * 4
    mae, rmse, r2 = figures_in(evaluation_of(outputs, [], seed=0))
    assert (mae.baseline, r2.baseline) == (2.5, 0.0)
    assert rmse.baseline == pytest.approx(outputs.label.std())
    assert mae.baseline_text == "2.500 (always the median)"
    assert r2.baseline_text == "0.000 (always the mean)"


def test_a_sentence_says_whether_a_model_beats_its_baseline():
    labels = np.array([0] * 30 + [1] * 20)
    good = evaluation_of(Predictions.of_batch(labels, 0.1 + 0.8 * np.eye(2)[labels]), ["a", "b"], seed=0)
    assert over_baseline(good).startswith(
        "The model is better than its baseline, always the most frequent class: the difference in accuracy is +40.0 "
        "points (+"
    )
    assert headline_in(good).text == (
        "accuracy 100.0% (92.9% to 100.0%), baseline 60.0% (always the most frequent class)"
    )
    lazy = evaluation_of(Predictions.of_batch(labels, np.tile([0.9, 0.1], (50, 1))), ["a", "b"], seed=0)
    assert over_baseline(lazy).startswith("The model is not surely better than its baseline, always the most frequent")
    assert lazy["over_baseline"]["value"] == 0


# --- calibration ------------------------------------------------------------------------------------------------------


def calibrated(count: int, seed: int, shift: float = 0.0) -> Predictions:
    """Return answers of a model whose probabilities are too high by `shift`."""
    random = np.random.default_rng(seed)
    probability = random.uniform(0.5, 1, count)
    is_correct = random.random(count) < probability - shift
    label = np.zeros(count, np.int32)
    sure = probability.astype(np.float32)
    return Predictions(label, (~is_correct).astype(np.int32), sure, sure, is_correct)


def error_of(outputs: Predictions) -> Estimate:
    return CALIBRATION_ERROR.estimator.estimate(outputs, outputs.blocks(seed=0))


def plain_error(outputs: Predictions) -> float:
    rows = reliability_of(outputs.judged())
    known = (row for row in rows if row["count"])
    return sum(row["count"] * abs(row["accuracy"] - row["confidence"]) for row in known) / len(outputs.label)


def test_a_calibrated_model_has_nearly_no_error():
    found = [error_of(calibrated(1000, seed)) for seed in range(40)]
    plain = np.mean([plain_error(calibrated(1000, seed)) for seed in range(40)])
    assert plain > 0.025  # what chance alone gives
    assert np.mean([each.value for each in found]) < plain / 2
    assert sum(each.low == 0 for each in found) >= 38


def test_a_calibration_error_is_found_at_its_size():
    found = [error_of(calibrated(1000, seed, shift=0.1)) for seed in range(40)]
    assert np.mean([each.value for each in found]) == pytest.approx(0.1, abs=0.01)
    assert sum(each.low <= 0.1 <= each.high for each in found) >= 36


def test_beside_the_error_stands_that_of_a_calibrated_model():
    outputs = calibrated(1000, seed=1)
    *_, figure = figures_in(evaluation_of(outputs, ["a", "b"], seed=0))
    usual = np.mean([error_of(calibrated(1000, seed)).value for seed in range(40)])
    assert figure.baseline == pytest.approx(usual, abs=0.006)
    assert figure.baseline_text.endswith("(a calibrated model)")
    *_, more = figures_in(evaluation_of(calibrated(20_000, seed=1), ["a", "b"], seed=0))
    assert more.baseline < figure.baseline / 2
