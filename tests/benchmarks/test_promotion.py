"""The simulation of the rules of promotion: its models are what it says, and the rules differ as the page says."""

import numpy as np
import pytest

from benchmarks import promotion
from benchmarks.promotion import MEAN, ROUNDS, Rounds, simulated
from pipeline.runs.promotion_rule import Rules


@pytest.mark.parametrize("accuracy", [0.5, 0.6, 0.9])
def test_a_model_is_right_as_often_as_its_true_accuracy_says(accuracy: float):
    rounds = Rounds(Rules("if_not_worse", 0.0, seed=0), new_examples=True, examples=200_000, seed=1)
    assert rounds._answers_of(accuracy).score == pytest.approx(accuracy, abs=0.005)


def test_the_champion_of_the_new_rule_is_better_and_rarely_falls():
    old, new = (simulated(rule, new_examples=False, simulations=60, examples=200) for rule in promotion.RULES)
    assert len(old.accuracy) == len(new.accuracy) == ROUNDS
    assert old.accuracy[0] == new.accuracy[0] == pytest.approx(MEAN, abs=0.01)
    assert new.accuracy[-1] > old.accuracy[-1]
    assert new.fallen < old.fallen
    assert new.promotions < old.promotions
    assert np.all(np.diff(new.measured) >= 0)


def test_the_table_has_a_row_for_each_rule():
    lines = promotion.table(
        [simulated(rule, new_examples=True, simulations=2, examples=20) for rule in promotion.RULES]
    )
    assert [line.split("|")[2].strip() for line in lines[2:]] == [f"`{rule}`" for rule in promotion.RULES]
    assert len({line.count("|") for line in lines}) == 1
