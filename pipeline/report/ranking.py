"""Which of several runs is the best by a figure, and whether that is sure.

Of many equal runs, one is always ahead by chance, and it is the one that is called the best. So each interval is
widened (Bonferroni): those of all pairs hold together in INTERVAL_PERCENT of all comparisons. Two runs are one pair, so
that their interval is an ordinary one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from pipeline.evaluation.blocks import quantile_of
from pipeline.evaluation.estimates import INTERVAL_PERCENT, Estimate
from pipeline.report.compared_run import Measured


@dataclass(frozen=True)
class Ranking:
    """Runs in the order of a figure, the best first. Runs are named by their numbers."""

    order: tuple[int, ...]
    lower_is_better: bool
    leads: Mapping[int, Estimate]
    """The figure of the best one less that of another one, with its corrected interval, by the number of the other one.
    Those that cannot be compared are left out."""

    @property
    def best(self) -> int:
        """The number of the best one."""
        return self.order[0]

    @property
    def others(self) -> tuple[int, ...]:
        """The numbers of all but the best one, in order."""
        return self.order[1:]

    @property
    def beaten(self) -> tuple[int, ...]:
        """Those that are surely worse than the best one."""
        return tuple(other for other in self.others if other in self.leads and self.is_gain(self.leads[other]))

    @property
    def undecided(self) -> tuple[int, ...]:
        """Those that may be as good as the best one."""
        return tuple(other for other in self.others if other in self.leads and other not in self.beaten)

    @property
    def incomparable(self) -> tuple[int, ...]:
        """Those that cannot be compared with the best one."""
        return tuple(other for other in self.others if other not in self.leads)

    @property
    def is_sure(self) -> bool:
        """Whether the best one is surely better than each other one."""
        return len(self.beaten) == len(self.others) > 0

    def is_gain(self, lead: Estimate) -> bool:
        """Return whether a difference from another one is surely an advantage."""
        return lead.high < 0 if self.lower_is_better else lead.low > 0


def pairs_of(count: int) -> int:
    """Return the number of pairs."""
    return count * (count - 1) // 2


def corrected_percent(count: int) -> float:
    """Return the percentage of each interval, so that those of all pairs of `count` runs hold together."""
    return 100 - (100 - INTERVAL_PERCENT) / max(1, pairs_of(count))


def ranking_of(
    values: Mapping[int, float], lower_is_better: bool, lead_of: Callable[[int, int, float], Estimate | None]
) -> Ranking | None:
    """Return the ranking of runs by their values; None if there are fewer than two.

    `lead_of` takes the numbers of two runs and the percentage of an interval, and returns the figure of the first less
    that of the second, or None if they cannot be compared.
    """
    if len(values) < 2:
        return None
    order = sorted(values, key=lambda number: values[number], reverse=not lower_is_better)
    percent = corrected_percent(len(values))
    leads = {other: lead_of(order[0], other, percent) for other in order[1:]}
    return Ranking(tuple(order), lower_is_better, {other: lead for other, lead in leads.items() if lead is not None})


def ratio(one: Measured, other: Measured, percent: float) -> Estimate:
    """Return the ratio of two measured figures of different runs, with its interval."""
    value, freedom = one.value / other.value, min(one.freedom, other.freedom)
    deviation = sqrt((one.deviation / one.value) ** 2 + (other.deviation / other.value) ** 2)
    with np.errstate(over="ignore"):
        factor = float(np.exp(quantile_of(freedom, percent) * deviation))
    return Estimate(value, value / factor, value * factor)


def difference(one: Measured, other: Measured, percent: float) -> Estimate:
    """Return the difference of two measured figures of different runs, with its interval."""
    value = one.value - other.value
    reach = quantile_of(min(one.freedom, other.freedom), percent) * sqrt(one.deviation**2 + other.deviation**2)
    return Estimate(value, value - reach, value + reach)


def widened(estimate: Estimate, freedom: float, percent: float) -> Estimate:
    """Return an estimate with an interval of `percent`, from one of INTERVAL_PERCENT."""
    value, low, high = estimate
    factor = quantile_of(freedom, percent) / quantile_of(freedom)
    return Estimate(value, value - factor * (value - low), value + factor * (high - value))


def rank_groups(scores: Sequence[Sequence[float]], lower_is_better: bool) -> Ranking | None:
    """Return the ranking of groups of runs by the means of their scores.

    The intervals are those of Welch's test: they say how much the means would differ with other seeds. Groups of one
    run are left out, because one score says nothing about others.
    """
    measured = {number: _mean(each) for number, each in enumerate(scores) if len(each) > 1}

    def lead_of(best: int, other: int, percent: float) -> Estimate | None:
        one, two = measured[best], measured[other]
        variance = one.deviation**2 + two.deviation**2
        if not variance:  # A few scores can be equal by chance, and then say nothing about their spread.
            return None
        freedom = variance**2 / sum(each.deviation**4 / each.freedom for each in (one, two))
        value, reach = one.value - two.value, quantile_of(freedom, percent) * sqrt(variance)
        return Estimate(value, value - reach, value + reach)

    return ranking_of({number: each.value for number, each in measured.items()}, lower_is_better, lead_of)


def _mean(scores: Sequence[float]) -> Measured:
    return Measured(float(np.mean(scores)), float(np.std(scores, ddof=1)) / sqrt(len(scores)), len(scores) - 1)
