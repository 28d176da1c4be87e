"""How a figure and its interval follow from predictions, by the kind of figure. The intervals hold for few examples.

Share      a share of the examples, such as an accuracy: Wilson's interval
Bounded    any other figure from 0 to 1, such as an area: Wilson's interval for as many examples as give its variance
Amount     a mean of errors, which is not below 0: Student's t of its logarithm
Explained  R²: Student's t of the logarithm of the unexplained share

calibration.py has the calibration error. The variances are those of blocks.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, sqrt
from typing import Any

import numpy as np
from typing_extensions import override

from pipeline.evaluation.blocks import NORMAL, Blocks, correlation_of, quantile_of, student, variance_of
from pipeline.evaluation.estimates import INTERVAL_PERCENT, Array, Estimate, Statistic

FEW = 3
"""Wilson's interval is too narrow if at most this many examples count, but not none."""
MAX_EXPONENT = 50.0
"""Beyond this, the end of an interval says nothing, and might be too large for a float."""


class Estimator(ABC):
    """Computes a figure and its interval. Predictions are those of `Answers`."""

    @abstractmethod
    def value(self, of: Any) -> float | None:
        """Return the figure; None if the predictions do not define it."""

    @abstractmethod
    def estimate(self, of: Any, blocks: Blocks) -> Estimate | None:
        """Return the figure with its interval; None if the predictions do not define it."""

    @abstractmethod
    def difference(self, of: Any, other: Any, blocks: Blocks) -> Estimate:
        """Return the figure less that of another model on the same examples, which defines it, too."""

    def baseline(self, of: Any) -> float | None:
        """Return the figure that a model without any input has."""
        return self.value(of.baseline())


@dataclass(frozen=True)
class Sampled(Estimator):
    """A figure that changes little if one example is left out."""

    statistic: Callable[[Any], Statistic | None]
    """Takes predictions. It returns None if they do not define the figure."""

    @abstractmethod
    def with_ends(self, of: Any, value: float, without_each: Array, blocks: Blocks) -> Estimate:
        """Return the figure with its interval, from its values without each block."""

    @override
    def value(self, of: Any) -> float | None:
        statistic = self.statistic(of)
        return None if statistic is None else float(statistic(np.ones(len(of.label))))

    @override
    def estimate(self, of: Any, blocks: Blocks) -> Estimate | None:
        statistic = self.statistic(of)
        return None if statistic is None else self._estimate(of, statistic, blocks)[0]

    @override
    def difference(self, of: Any, other: Any, blocks: Blocks) -> Estimate:
        (ours, without_ours), (theirs, without_theirs) = (
            self._estimate(each, self._defined(each), blocks) for each in (of, other)
        )
        return difference_of(ours, theirs, correlation_of(without_ours, without_theirs))

    def _defined(self, of: Any) -> Statistic:
        statistic = self.statistic(of)
        if statistic is None:
            raise ValueError("these examples do not define the figure")
        return statistic

    def _estimate(self, of: Any, statistic: Statistic, blocks: Blocks) -> tuple[Estimate, Array]:
        value, without_each = float(statistic(np.ones(len(of.label)))), blocks.without_each(statistic)
        return self.with_ends(of, value, without_each, blocks), without_each


class Share(Sampled):
    """A share of the examples."""

    @override
    def estimate(self, of: Any, blocks: Blocks) -> Estimate | None:
        value = self.value(of)
        if value is None or blocks.are_grouped:
            return super().estimate(of, blocks)
        return wilson(value, len(blocks.of_example), NORMAL)  # The values without each block are not needed.

    @override
    def with_ends(self, of: Any, value: float, without_each: Array, blocks: Blocks) -> Estimate:
        if not blocks.are_grouped:
            return wilson(value, len(blocks.of_example), NORMAL)
        return bounded(value, without_each, blocks.units, quantile_of(blocks.count - 1))


@dataclass(frozen=True)
class Bounded(Sampled):
    """A figure from 0 to 1 that is no share of the examples."""

    trials: Callable[[Any], float]
    """How many examples make a share as sure as this figure, if it does not vary. Without it, the figure of 13 examples
    that are all ranked well would seem to be certain."""

    @override
    def with_ends(self, of: Any, value: float, without_each: Array, blocks: Blocks) -> Estimate:
        trials = min(self.trials(of) * blocks.share_of_units, blocks.units)
        return bounded(value, without_each, trials, student(without_each))


@dataclass(frozen=True)
class Amount(Sampled):
    """A mean of errors, from 0 to any size."""

    largest: Callable[[Any], float]
    """The largest error to expect of an example. It limits what the examples of others may be like if all of these have
    the same error."""
    constant: Callable[[Any], Any] = lambda of: of.baseline()
    """Takes predictions, and returns those of the best model without any input."""
    largest_again: float = 0.0
    """How many more times the upper end counts the block with the largest errors. If errors are squared, a few decide
    the mean, and most validation sets contain none of the largest errors that there are."""

    @override
    def baseline(self, of: Any) -> float | None:
        return self.value(self.constant(of))

    @override
    def with_ends(self, of: Any, value: float, without_each: Array, blocks: Blocks) -> Estimate:
        variance = variance_of(without_each)
        if np.isnan(variance):
            return Estimate(value, 0.0, inf)
        if not variance or not value:
            return Estimate(value, value, value + self._unseen(of, blocks))
        factor = exp(min(student(without_each) * sqrt(variance) / value, MAX_EXPONENT))
        high = value * factor
        if self.largest_again:
            has_largest = blocks.of_example == np.nanargmin(without_each)
            high *= self._defined(of)(1 + self.largest_again * has_largest) / value
        return Estimate(value, value / factor, high)

    @override
    def difference(self, of: Any, other: Any, blocks: Blocks) -> Estimate:
        ours, theirs = self._defined(of), self._defined(other)
        ones = np.ones(len(of.label))
        value = ours(ones) - theirs(ones)
        without_each = blocks.without_each(lambda weights: ours(weights) - theirs(weights))
        variance = variance_of(without_each)
        if np.isnan(variance):
            return Estimate(value, -inf, inf)
        reach = student(without_each) * sqrt(variance)
        if value and not variance:
            reach = self._unseen(of, blocks)
        return Estimate(value, value - reach, value + reach)

    def _unseen(self, of: Any, blocks: Blocks) -> float:
        """Return by how much the mean may change with examples unlike all of these."""
        return wilson(0.0, blocks.units, NORMAL).high * self.largest(of)


class Explained(Amount):
    """The share of a variance that is explained: at most 1, and below 0 for a bad model."""

    @override
    def with_ends(self, of: Any, value: float, without_each: Array, blocks: Blocks) -> Estimate:
        if np.isnan(without_each).any() or len(without_each) < 2:
            return Estimate(value, -inf, 1.0)
        _, low, high = super().with_ends(of, 1 - value, without_each, blocks)
        return Estimate(value, 1 - high, 1 - low)


def wilson(share: float, examples: float, quantile: float) -> Estimate:
    """Return a share with Wilson's interval, which holds for few examples, and for shares of 0 and 1.

    If only a few examples count, or only a few do not, the end at their side is that of the Poisson distribution, as
    Brown, Cai and DasGupta (2001) recommend.
    """
    from scipy.special import gammaincinv  # As in `quantile_of`.

    square = quantile**2
    center = (share + square / (2 * examples)) / (1 + square / examples)
    reach = quantile / (1 + square / examples) * sqrt(share * (1 - share) / examples + square / (4 * examples**2))
    low, high = center - reach, center + reach
    hits, misses = share * examples, (1 - share) * examples
    if 0 < hits <= min(FEW, misses):
        low = min(low, float(gammaincinv(hits, 1 - INTERVAL_PERCENT / 100)) / examples)
    if 0 < misses <= min(FEW, hits):
        high = max(high, 1 - float(gammaincinv(misses, 1 - INTERVAL_PERCENT / 100)) / examples)
    # The exact ends are never on the wrong side of the share, but rounded ones may be.
    return Estimate(share, max(0.0, min(low, share)), min(1.0, max(high, share)))


def bounded(value: float, without_each: Array, trials: float, quantile: float) -> Estimate:
    """Return a figure from 0 to 1 with its interval: Wilson's for as many examples as give its variance.

    If the figure does not vary, or is not defined without one of the blocks, its variance is not known. The interval is
    then that of a share of `trials` examples.
    """
    variance = variance_of(without_each)
    is_known = variance > 0 and 0 < value < 1 and not np.isnan(without_each).any()
    examples = value * (1 - value) / variance if is_known else max(trials, 1.0)
    return wilson(value, examples, quantile)


def difference_of(one: Estimate, other: Estimate, correlation: float) -> Estimate:
    """Return the difference of two figures of the same examples, from their intervals.

    This is the method of Newcombe (1998). It keeps what the intervals of the figures know about few examples.
    """
    value = one.value - other.value
    below = _distance(one.value - one.low, other.high - other.value, correlation)
    above = _distance(one.high - one.value, other.value - other.low, correlation)
    return Estimate(value, value - below, value + above)


def _distance(one: float, other: float, correlation: float) -> float:
    return sqrt(max(one**2 + other**2 - 2 * correlation * one * other, 0.0))


def class_shares(
    of_class: Array, is_hit: Array, unit: Array, classes: int
) -> tuple[list[float | None], list[list[float] | None]]:
    """Return the share of the answers of each class that are hits, and its interval; None for a class without answers.

    Args:
        of_class: The class of each answer, (n,).
        is_hit: Whether the answer counts, (n,).
        unit: The example of each answer, or its group, (n,).
        classes: Number of classes.
    """
    counts = np.bincount(of_class, minlength=classes)
    hits = np.bincount(of_class, is_hit, classes)
    share = hits / np.maximum(counts, 1)
    # What the answers of a unit add to a class, less what they would on average.
    cells, cell = np.unique(of_class.astype(np.int64) * (int(unit.max(initial=0)) + 1) + unit, return_inverse=True)
    surplus = np.bincount(cell, is_hit - share[of_class], len(cells))
    class_of_cell = cells // (int(unit.max(initial=0)) + 1)
    units = np.bincount(class_of_cell, minlength=classes)
    squares = np.bincount(class_of_cell, surplus**2, classes)
    values: list[float | None] = [None] * classes
    intervals: list[list[float] | None] = [None] * classes
    for number, (count, of_units, value, square) in enumerate(zip(counts, units, share.tolist(), squares, strict=True)):
        if not count:
            continue
        examples = float(count)
        if of_units < count:
            variance = square / count**2 * of_units / max(of_units - 1, 1)
            # A unit that is not at the average differs by 1 / count or more from it. Rounding alone gives less.
            is_known = of_units > 1 and square * count**2 > 0.5
            examples = value * (1 - value) / variance if is_known else of_units
        _, low, high = wilson(value, examples, quantile_of(of_units - 1) if of_units < count else NORMAL)
        values[number], intervals[number] = round(value, 6), [round(low, 6), round(high, 6)]
    return values, intervals
