"""Promotion of models of tables: a lower error is better, and `max_worse` is a share of it."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.config.settings import settings_from
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.evaluation.table_classes import ClassPredictions
from pipeline.runs.promotion import promote_if_better
from pipeline.runs.promotion_rule import Rules, compare
from tests.runs.complete import trained

ROWS = 300


def classes(noise: float, seed: int = 1) -> ClassPredictions:
    labels = np.random.default_rng(0).integers(2, size=ROWS)
    logits = 3 * labels - 1.5 + np.random.default_rng(seed).normal(0, noise, ROWS)
    second = 1 / (1 + np.exp(-logits))
    return ClassPredictions.of_batch(labels, np.stack([1 - second, second], axis=1))


def numbers(error: float, scale: float = 1000.0, seed: int = 1) -> RegressionPredictions:
    """Return predictions whose errors are `error` times the scale of the labels, on average."""
    labels = scale * np.random.default_rng(0).normal(size=ROWS)
    errors = np.random.default_rng(seed).normal(size=ROWS)
    return RegressionPredictions.of_batch(labels, labels + scale * error * errors / np.abs(errors).mean())


@pytest.mark.parametrize(
    ("ours", "theirs", "max_worse", "promoted"),
    [
        (numbers(0.10), numbers(0.20), 0.0, True),
        (numbers(0.20), numbers(0.10), 0.0, False),
        (numbers(0.10), numbers(0.10), 0.0, True),
        (numbers(0.102, seed=2), numbers(0.10), 0.0, True),  # may be chance
        # The errors are 5% higher in each row, so there is no chance in it.
        (numbers(0.105), numbers(0.100), 0.0, False),
        (numbers(0.105), numbers(0.100), 0.06, True),
        (numbers(0.105, scale=1e-6), numbers(0.100, scale=1e-6), 0.0, False),
        (numbers(0.105, scale=1e9), numbers(0.100, scale=1e9), 0.06, True),
        (classes(0.5), classes(3.0, seed=2), 0.0, True),
        (classes(3.0), classes(0.5, seed=2), 0.0, False),
        (classes(1.0), classes(1.0, seed=2), 0.0, True),
    ],
)
def test_a_model_is_refused_only_if_its_error_is_certainly_higher(
    ours: Answers, theirs: Answers, max_worse: float, promoted: bool
):
    decision = compare(ours, theirs, "run/key", Rules("unless_surely_worse", max_worse, seed=0))
    assert decision.is_promoted == promoted, decision.sentence


def test_the_verdict_contains_all_numbers_of_the_decision():
    refused = compare(numbers(0.2), numbers(0.1), "run/key", Rules("unless_surely_worse", 0.01, seed=0))
    begin, end = refused.sentence.split(" a difference of +100.0 (+")
    assert begin == (
        "not promoted: mean absolute error 200.0 against 100.0 of run/key on the same 300 validation rows,"
    )
    assert end.endswith("). The model is worse over the whole interval, by more than max_worse=0.01 allows")
    low, high = (float(number.strip("+")) for number in end.split(")")[0].split(" to "))
    assert 85 < low < 100 < high < 115
    ours, theirs = classes(0.5), classes(3.0, seed=2)
    promoted = compare(ours, theirs, "run/key", Rules("unless_surely_worse", 0.0, seed=0)).sentence
    assert promoted.startswith(
        f"promoted: log loss {ours.score:#.4g} against {theirs.score:#.4g} of run/key on the same 300 validation rows, "
        f"a difference of {ours.score - theirs.score:#.4g} (-"
    )
    assert "chance" not in promoted
    chance = compare(numbers(0.101, seed=2), numbers(0.1), "run/key", Rules("unless_surely_worse", 0.0, seed=0))
    assert chance.sentence.endswith("It is worse, but this may be chance")


def test_the_gate_reads_the_predictions_of_tables(tmp_path: Path):
    runs = [
        trained(tmp_path, name, numbers(error), ()) for name, error in (("one", 0.2), ("better", 0.1), ("worse", 0.2))
    ]
    promotions = [promote_if_better(run, settings_from({}), output=2) for run in runs]
    assert [each["promoted"] for each in promotions] == [True, True, False]
    assert promotions[1]["why"].startswith(
        "promoted: mean absolute error 100.0 against 200.0 of one/key on the same 300"
    )
    assert promotions[2]["champion"] == str(runs[1])


@pytest.mark.parametrize(
    ("ours", "theirs", "max_worse", "promoted"),
    [
        (numbers(0.10), numbers(0.20), 0.0, True),
        (numbers(0.10), numbers(0.10), 0.0, True),
        (numbers(0.102, seed=2), numbers(0.10), 0.0, False),
        (numbers(0.102, seed=2), numbers(0.10), 0.03, True),
        (numbers(0.102, scale=1e-6), numbers(0.10, scale=1e-6), 0.01, False),
        (classes(0.5), classes(0.6, seed=2), 0.0, True),
        (classes(0.6, seed=2), classes(0.5), 0.0, False),
    ],
)
def test_by_default_a_model_is_refused_if_its_error_is_higher(
    ours: Answers, theirs: Answers, max_worse: float, promoted: bool
):
    decision = compare(ours, theirs, "run/key", Rules("if_not_worse", max_worse, seed=0))
    assert decision.is_promoted == promoted, decision.sentence


@pytest.mark.parametrize("labels_of_champion", [(), ("no", "yes")])
def test_a_model_of_another_task_is_not_promoted(tmp_path: Path, labels_of_champion: tuple[str, ...]):
    labels = () if labels_of_champion else ("no", "yes")
    answers = {(): numbers(0.1), ("no", "yes"): classes(1.0)}
    promote_if_better(
        trained(tmp_path, "one", answers[labels_of_champion], labels_of_champion), settings_from({}), output=2
    )
    promotion = promote_if_better(trained(tmp_path, "other", answers[labels], labels), settings_from({}), output=2)
    assert not promotion["promoted"]
    learned = "class" if labels_of_champion else "number"
    assert promotion["why"].startswith(
        f"a person must decide: the champion one/key predicts a {learned}, and this model does"
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (["int rooms"], "the champion one/key takes the float column 'area', which is no input of this model"),
        (["float area", "float rooms"], "the champion one/key takes the int column 'rooms', which holds float values "),
        (["float area", "int rooms", "string city"], ""),
        (None, "the champion one/key takes the rows of a table, and this model takes images"),
    ],
)
def test_a_champion_that_cannot_take_the_rows_stays(tmp_path: Path, columns: list[str] | None, reason: str):
    settings = settings_from({})
    first = trained(tmp_path, "one", numbers(0.2), (), ["float area", "int rooms"])
    promote_if_better(first, settings, output=2)
    promotion = promote_if_better(trained(tmp_path, "other", numbers(0.1), (), columns), settings, output=2)
    assert promotion["promoted"] == (not reason)
    if reason:
        assert promotion["why"].startswith(f"a person must decide: {reason}")
        assert promotion["why"].endswith(
            "so they cannot be compared. "
            f"To promote it anyway, run `python -m pipeline promote {tmp_path}/runs/other/key`"
        )
        assert promotion["champion"] == str(first)
