"""Blocks of examples, one of which is left out at a time: how much a figure depends on its examples (jackknife).

If a customer has ten rows, these say less than the rows of ten customers. So the examples of a group are always in the
same block. The variance of a figure follows from its values without each block. This takes at most MAX_BLOCKS
evaluations of the figure, whatever their number of examples.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from pipeline.evaluation.estimates import INTERVAL_PERCENT, Array, Estimate, Statistic

MAX_BLOCKS = 200
MIN_BLOCKS = 30
"""With fewer blocks, the variance would be a guess."""
ANSWERS_LEFT_OUT = 200_000_000
"""Limit for the answers of all evaluations together, which take some seconds. A larger evaluation has fewer blocks."""
ROUNDING = 1e-12
"""Figures that differ by less than this share of their size are equal."""
NORMAL = NormalDist().inv_cdf(0.5 + INTERVAL_PERCENT / 200)
"""An interval reaches this many standard deviations to both sides, if the variance is known."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of some examples."""

    of_example: Array
    """The block of each example, from 0."""
    count: int
    units: int
    """Number of groups, or of examples if they have no groups: how many observations do not depend on each other."""

    @property
    def are_grouped(self) -> bool:
        """Whether some examples are in one group."""
        return self.units < len(self.of_example)

    @property
    def share_of_units(self) -> float:
        """The number of units for each example."""
        return self.units / len(self.of_example)

    def without_each(self, statistic: Statistic) -> Array:
        """Return a figure without each of the blocks; an empty array if there is only one."""
        blocks = range(self.count) if self.count > 1 else ()
        return np.array([statistic((self.of_example != block).astype(float)) for block in blocks])


def blocks_of(group: Array, examples: int, answers: int, seed: int) -> Blocks:
    """Return the blocks of some examples.

    Args:
        group: The number of the group of each example, (n,), or empty if there are no groups.
        examples: Number of examples.
        answers: Number of answers that a figure reads: of several labels, one for each label of each example.
        seed: Decides the blocks if there are more units than blocks.
    """
    unit, units = np.arange(examples), examples
    if len(group):
        numbers, unit = np.unique(group, return_inverse=True)
        units = len(numbers)
    most = int(np.clip(ANSWERS_LEFT_OUT // max(answers, 1), MIN_BLOCKS, MAX_BLOCKS))
    if units <= most:
        return Blocks(unit, units, units)
    of_unit = np.random.default_rng(seed).permutation(units) % most
    return Blocks(of_unit[unit], most, units)


def variance_of(without_each: Array) -> float:
    """Return the variance of a figure from its values without each block; NaN if fewer than two are known."""
    known = without_each[~np.isnan(without_each)]
    if len(known) < 2:
        return float("nan")
    # Rounding alone moves the mean of equal values.
    is_constant = np.ptp(known) <= ROUNDING * np.abs(known).max()
    return 0.0 if is_constant else float((len(known) - 1) * known.var())


def student(without_each: Array) -> float:
    """Return how many standard deviations an interval reaches to both sides, if the variance is that of these values.

    It is the quantile of Student's t. There are fewer degrees of freedom if some blocks differ much from the others, so
    that they decide the variance: those with outliers, or with large groups.
    """
    known = without_each[~np.isnan(without_each)]
    if not variance_of(known) > 0:
        return NORMAL
    squares = (known - known.mean()) ** 2
    kurtosis = (squares**2).mean() / squares.mean() ** 2
    freedom = len(known) - 1
    if kurtosis > 1:
        freedom = np.clip(2 * len(known) / (kurtosis - 1), 1, freedom)
    return quantile_of(freedom)


def quantile_of(freedom: float, percent: float = INTERVAL_PERCENT) -> float:
    """Return the quantile of Student's t for an interval of `percent`; the normal one for no degrees of freedom."""
    from scipy.special import stdtrit  # Every command imports this module, and SciPy takes a third of such a start.

    tail = 0.5 + percent / 200
    return float(stdtrit(freedom, tail)) if freedom else NormalDist().inv_cdf(tail)


def correlation_of(one: Array, other: Array) -> float:
    """Return the correlation of two figures of the same examples, from their values without each block."""
    known = ~(np.isnan(one) | np.isnan(other))
    one, other = one[known], other[known]
    # A figure that does not vary, such as an accuracy of 100%, tells nothing about the other one.
    if len(one) < 3 or not variance_of(one) or not variance_of(other):
        return 0.0
    return float(np.clip(np.corrcoef(one, other)[0, 1], -1, 1))


def geometric_mean(values: Array) -> Estimate:
    """Return the geometric mean of one value for each round, with its 95% interval.

    The interval is that of Student's t for the mean of the logarithms. A round is one observation, because a slow
    minute of the machine slows all of its steps.
    """
    logs, count = np.log(values), len(values)
    mean = logs.mean()
    margin = quantile_of(count - 1) * logs.std(ddof=1) / count**0.5
    return Estimate(*np.exp([mean, mean - margin, mean + margin]).tolist())
