"""Parts of the metrics that both tasks share: bootstrap intervals, bins of confidence, and shares."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS = 15
"""Probabilities are divided into this many bins of equal width."""
RESAMPLES = 1000
INTERVAL_PERCENT = 95
"""An interval holds this share of the resamples."""
MAX_MISTAKES = 12
"""Limit for the list of wrong examples. If the dataset is in a bucket, the report copies a whole shard for each."""

Array = NDArray[Any]
Statistic = Callable[[Array], Array]
"""Takes how often each example counts, (n,), and returns the figures, (k,)."""


class Estimate(NamedTuple):
    """A figure of 0 to 1, and the ends of its interval."""

    value: float
    low: float
    high: float


def bootstrapped(statistic: Statistic, examples: int, resamples: int, seed: int) -> list[Estimate]:
    """Return the figures of all examples, each with its interval.

    Args:
        statistic: Computes the figures.
        examples: Number of examples. Each resample draws as many of them, with replacement.
        resamples: Number of resamples.
        seed: Seed of the resamples.
    """
    random = np.random.default_rng(seed)
    # A resample is only a count for each example, so `statistic` need not copy the predictions.
    drawn = (np.bincount(random.integers(examples, size=examples), minlength=examples) for _ in range(resamples))
    low, high = interval([statistic(weights) for weights in drawn])
    columns = np.stack([statistic(np.ones(examples)), low, high], axis=1).round(6)
    return [Estimate(*values) for values in columns.tolist()]


def interval(resampled: Array | Sequence[Array]) -> Array:
    """Return the two ends of the interval that holds INTERVAL_PERCENT of the resamples, along the first axis."""
    ends: Array = np.percentile(resampled, (50 - INTERVAL_PERCENT / 2, 50 + INTERVAL_PERCENT / 2), axis=0)
    return ends


def bins_of(probabilities: Array) -> Array:
    """Return the bin of each probability, from 0."""
    # A probability of 1 belongs to the last bin.
    bins: Array = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    return bins


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
