"""The ranking of runs: which one is the best, and whether that is sure."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from pipeline.evaluation.estimates import Estimate
from pipeline.report.compare import Comparison, difference_of_models
from pipeline.report.compared_run import Measured, ratios_of_blocks
from pipeline.report.ranking import (
    Ranking,
    corrected_percent,
    difference,
    pairs_of,
    rank_groups,
    ranking_of,
    ratio,
    widened,
)
from tests.report.compared_runs import run_with
from tests.report.evaluated import predictions

FALSE_ALARMS = 0.05
"""The share of comparisons of equal runs that may call one of them surely the best."""


def ranked(values: dict[int, float], ends: dict[int, float], lower_is_better: bool = False) -> Ranking:
    """Rank runs whose lead over each other run reaches `ends` to both sides."""

    def lead_of(best: int, other: int, _: float) -> Estimate | None:
        lead = values[best] - values[other]
        return Estimate(lead, lead - ends[other], lead + ends[other]) if other in ends else None

    ranking = ranking_of(values, lower_is_better, lead_of)
    assert ranking is not None
    return ranking


def test_the_best_run_is_sure_if_it_surely_beats_each_other_run():
    found = ranked({0: 1.0, 1: 3.0, 2: 2.0}, {0: 0.5, 2: 0.5})
    assert (found.order, found.best, found.others) == ((1, 2, 0), 1, (2, 0))
    assert found.is_sure


def test_one_run_that_may_be_as_good_makes_the_best_one_unsure():
    found = ranked({0: 1.0, 1: 3.0, 2: 2.0}, {0: 0.5, 2: 1.5})
    assert (found.beaten, found.undecided, found.is_sure) == ((0,), (2,), False)


def test_a_run_that_cannot_be_compared_makes_the_best_one_unsure():
    found = ranked({0: 1.0, 1: 3.0, 2: 2.0}, {0: 0.5})
    assert (found.incomparable, found.is_sure) == ((2,), False)


def test_the_lowest_error_is_the_best():
    found = ranked({0: 1.0, 1: 3.0, 2: 2.0}, {1: 0.5, 2: 0.5}, lower_is_better=True)
    assert (found.order, found.is_sure) == ((0, 2, 1), True)


def test_one_run_has_no_rank():
    assert ranking_of({4: 1.0}, False, lambda *_: None) is None


@pytest.mark.parametrize(("runs", "pairs", "percent"), [(2, 1, 95), (3, 3, 98.333), (5, 10, 99.5), (20, 190, 99.9737)])
def test_the_intervals_of_all_pairs_hold_together(runs: int, pairs: int, percent: float):
    assert pairs_of(runs) == pairs
    assert corrected_percent(runs) == pytest.approx(percent, abs=1e-3)


def test_an_interval_of_two_runs_is_not_widened():
    estimate = Estimate(1.0, 0.5, 2.0)
    assert widened(estimate, 50, corrected_percent(2)) == estimate
    value, low, high = widened(estimate, 1e6, corrected_percent(5))
    assert (value, low, high) == pytest.approx((1.0, 1 - 0.5 * 2.807 / 1.96, 1 + 2.807 / 1.96), abs=1e-3)


def test_a_ratio_has_the_interval_of_both_runs():
    one, other = Measured(200.0, 2.0, 1e9), Measured(100.0, 1.0, 1e9)
    found = ratio(one, other, 95)
    reach = np.exp(1.96 * 0.01 * 2**0.5)
    assert found == pytest.approx((2.0, 2 / reach, 2 * reach), rel=1e-4)


def lead_of(measured: list[Measured], one: int, other: int, percent: float) -> Estimate:
    return difference(measured[one], measured[other], percent)


@pytest.mark.parametrize("count", [2, 5, 20])
def test_equal_runs_are_rarely_called_surely_the_fastest(count: int):
    """Among many equal runs, one is always far ahead by chance. The two best runs may also be equal among slow ones."""
    random = np.random.default_rng(0)
    for slow in (0, count - 2):
        alarms, rounds = {"best": 0, "any": 0}, 300
        for _ in range(rounds):
            speeds = random.normal(100 - 50 * (np.arange(count) < slow), 1)
            measured = [Measured(float(speed), 1.0, 200) for speed in speeds]
            found = ranking_of(dict(enumerate(speeds)), False, partial(lead_of, measured))
            alarms["best"] += found.is_sure
            alarms["any"] += any(other >= slow for other in found.beaten)
        assert max(alarms.values()) <= rounds * FALSE_ALARMS + 2 * (rounds * FALSE_ALARMS) ** 0.5, alarms


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 6])
def test_equal_models_are_rarely_called_surely_the_best(count: int):
    """The models are right for the same share of 400 images. Half of their mistakes are on the same images."""
    random, rounds, alarms = np.random.default_rng(0), 150, 0
    for _ in range(rounds):
        is_hard = random.random(400) < 0.1
        models = [run_with(predictions(answers(is_hard | (random.random(400) < 0.1)))) for _ in range(count)]
        ranking = Comparison(models).quality
        alarms += ranking is not None and ranking.is_sure
    assert alarms <= rounds * FALSE_ALARMS + 2 * (rounds * FALSE_ALARMS) ** 0.5


def answers(is_wrong: np.ndarray) -> list[tuple[int, int, float]]:
    return [(0, int(wrong), 0.9) for wrong in is_wrong]


def test_a_much_better_model_is_surely_the_best_of_twenty():
    random = np.random.default_rng(1)
    models = [run_with(predictions(answers(random.random(400) < share))) for share in (0.02, *([0.3] * 19))]
    ranking = Comparison(models).quality
    assert ranking is not None
    assert (ranking.best, ranking.is_sure) == (0, True)


def test_models_on_other_images_have_no_difference():
    one, other = (run_with(predictions([(label, 0, 0.9)] * 50)) for label in (0, 1))
    metric = Comparison([one, other]).metric
    assert metric is not None
    assert difference_of_models(metric, one, other, 95) is None
    assert difference_of_models(metric, one, one, 95) is not None


def test_groups_are_ranked_by_the_spread_over_their_seeds():
    found = rank_groups([[0.80, 0.81, 0.82], [0.90, 0.91, 0.92], [0.7]], lower_is_better=False)
    assert found is not None
    assert (found.order, found.is_sure) == ((1, 0), True)  # One run says nothing about other seeds.
    wide = rank_groups([[0.70, 0.81, 0.92], [0.80, 0.91, 1.02]], lower_is_better=False)
    assert wide is not None
    assert not wide.is_sure
    # Welch's interval with 4 degrees of freedom: 2.776 times the deviation of the difference.
    reach = 2.776 * (2 * 0.11**2 / 3) ** 0.5
    assert wide.leads[0] == pytest.approx((0.1, 0.1 - reach, 0.1 + reach), abs=1e-3)


def test_equal_scores_do_not_make_a_group_sure():
    found = rank_groups([[0.8, 0.8], [0.9, 0.9]], lower_is_better=False)
    assert found is not None
    assert (found.incomparable, found.is_sure) == ((0,), False)


@pytest.mark.parametrize(("count", "seeds"), [(2, 2), (4, 3), (6, 5)])
def test_equal_settings_are_rarely_called_surely_the_best(count: int, seeds: int):
    random, rounds = np.random.default_rng(0), 300
    found = [rank_groups(random.normal(size=(count, seeds)).tolist(), lower_is_better=False) for _ in range(rounds)]
    alarms = sum(each is not None and bool(each.beaten) for each in found)
    assert alarms <= rounds * FALSE_ALARMS + 2 * (rounds * FALSE_ALARMS) ** 0.5


def test_block_resampling_covers_the_mean_of_correlated_values():
    """For correlated series with mean 0, most intervals from single rows would not contain 0."""
    covered = {"blocks": 0, "rows": 0}
    for seed in range(60):
        random = np.random.default_rng(seed)
        series = correlated(random, 600)
        drawn = {
            "blocks": ratios_of_blocks(series, np.ones(600), random),
            "rows": random.choice(series, (1000, 600)).mean(axis=1),
        }
        for name, means in drawn.items():
            covered[name] += abs(series.mean()) < 1.96 * means.std()
    assert covered["blocks"] > 48
    assert covered["rows"] < 36


def correlated(random: np.random.Generator, count: int) -> np.ndarray:
    """Return a series in which each value is 0.9 times the previous one, plus noise."""
    values = [random.normal() / (1 - 0.9**2) ** 0.5]
    for noise in random.normal(size=count - 1):
        values.append(0.9 * values[-1] + noise)
    return np.array(values)


def test_blocks_are_drawn_whole_and_wrap_around():
    values = np.array([1.0, 10.0, 100.0, 1000.0])
    drawn = ratios_of_blocks(values, np.ones(4), np.random.default_rng(0))
    sums = {one + other for one, other in pairwise([*values, values[0]])}
    assert set(drawn.tolist()) == {(one + other) / 4 for one in sums for other in sums}
