"""Parts of the metrics that all tasks share: bootstrap intervals, bins of confidence, and shares."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS = 15
"""Probabilities are divided into this many bins of equal width."""
RESAMPLES = 1000
RESAMPLED_ANSWERS = 500_000_000
"""Limit for the answers in all resamples together, which take some seconds. A larger evaluation has fewer resamples."""
MIN_RESAMPLES = 100
"""With fewer, the ends of an interval would depend on two or three resamples."""
INTERVAL_PERCENT = 95
"""An interval holds this share of the resamples."""
MAX_MISTAKES = 12
"""Limit for the list of wrong examples. If the dataset is in a bucket, the report copies a whole shard for each."""

Array = NDArray[Any]
Statistic = Callable[[Array], float]
"""Takes how often each example counts, (n,), and returns a figure: NaN if these examples do not define it."""


class Estimate(NamedTuple):
    """A figure, and the ends of its interval."""

    value: float
    low: float
    high: float


def bootstrapped(statistics: Sequence[Statistic], examples: int, resamples: int, seed: int) -> list[Estimate]:
    """Return the figures of all examples, each with its interval.

    Each resample draws as many examples as there are, with replacement.
    """
    random = np.random.default_rng(seed)

    def figures(weights: Array) -> Array:
        return np.array([statistic(weights) for statistic in statistics])

    # A resample is only a count for each example, so no statistic need copy the predictions.
    drawn = (np.bincount(random.integers(examples, size=examples), minlength=examples) for _ in range(resamples))
    low, high = interval([figures(weights) for weights in drawn])
    columns = np.stack([figures(np.ones(examples)), low, high], axis=1)
    return [Estimate(*values) for values in columns.tolist()]


def affordable_resamples(answers: int) -> int:
    """Return the number of resamples for an interval, if each of them goes through this many answers."""
    return int(np.clip(RESAMPLED_ANSWERS // max(answers, 1), MIN_RESAMPLES, RESAMPLES))


def mean_of(values: Array) -> Statistic:
    """Return the mean of the values of the examples, (n,), each taken as often as its weight says."""
    return lambda weights: weighted_sum(weights, values) / len(values)


def mean_over_classes(of_classes: Sequence[Statistic], unknown: float) -> Statistic:
    """Return the mean of the figures of the classes; `unknown` if no class has one, which a resample may lack."""

    def statistic(weights: Array) -> float:
        figures = np.array([of_class(weights) for of_class in of_classes])
        known = figures[~np.isnan(figures)]
        return float(known.mean()) if len(known) else unknown

    return statistic


def difference_of(one: Statistic, other: Statistic) -> Statistic:
    """Return the figure of one model less that of another."""
    return lambda weights: one(weights) - other(weights)


def weighted_sum(weights: Array, values: Array) -> float:
    """Return the sum of the values, each taken as often as its weight says.

    `weights @ values` takes much longer between other calculations, because it wakes the sleeping threads of BLAS.
    """
    return float((weights * values).sum())


def interval(resampled: Array | Sequence[Array]) -> Array:
    """Return the two ends of the interval that holds INTERVAL_PERCENT of the resamples, along the first axis.

    A resample in which a figure is NaN says nothing about that figure.
    """
    percentile = np.nanpercentile if np.isnan(resampled).any() else np.percentile
    ends: Array = percentile(resampled, (50 - INTERVAL_PERCENT / 2, 50 + INTERVAL_PERCENT / 2), axis=0)
    return ends


def bins_of(probabilities: Array) -> Array:
    """Return the bin of each probability, from 0."""
    # A probability of 1 belongs to the last bin.
    bins: Array = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    return bins


def calibration_error(probabilities: Array, correct: Array) -> Statistic:
    """Return the expected calibration error: the mean distance, in each bin, between probability and accuracy."""
    # The error is the sum over bins of |correct - confidence| of the bin's examples together, over all examples.
    surplus, bins = correct - probabilities, bins_of(probabilities)
    return lambda weights: np.abs(np.bincount(bins, weights * surplus)).sum() / len(bins)


def reliability_of(probabilities: Array, correct: Array) -> list[dict[str, Any]]:
    """Return each bin of confidence: its ends, its answers, mean confidence and accuracy (None without answers)."""
    bins, edges = bins_of(probabilities), np.arange(BINS + 1) / BINS
    counts = np.bincount(bins, minlength=BINS)
    confidence, accuracy = (shares(np.bincount(bins, values, BINS), counts) for values in (probabilities, correct))
    low, high = edges[:-1].round(6).tolist(), edges[1:].round(6).tolist()
    return rows({"low": low, "high": high, "count": counts.tolist(), "confidence": confidence, "accuracy": accuracy})


def shares(parts: Array, wholes: Array) -> list[float | None]:
    """Return each part divided by its whole; None if the whole is 0."""
    return [round(float(part / whole), 6) if whole else None for part, whole in zip(parts, wholes, strict=True)]


def rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return columns as rows."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
