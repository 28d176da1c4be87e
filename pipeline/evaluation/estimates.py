"""Parts of the metrics that all tasks share: what a figure is, means, and shares."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
INTERVAL_PERCENT = 95
"""In this share of all evaluations, the interval of a figure contains its value for all examples that could be drawn.
"""
MAX_MISTAKES = 12
"""Limit for the list of the most wrong examples in `evaluation.json`, and for the first choice of the report."""

Array = NDArray[Any]
Statistic = Callable[[Array], float]
"""Takes how often each example counts, (n,), and returns a figure: NaN if these examples do not define it."""


class Estimate(NamedTuple):
    """A figure, and the ends of its interval. An end is infinite if too few examples say anything about it."""

    value: float
    low: float
    high: float


def mean_of(values: Array) -> Statistic:
    """Return the mean of the values of the examples, (n,), each taken as often as its weight says."""
    return lambda weights: weighted_sum(weights, values) / float(weights.sum())


def mean_over_classes(of_classes: Sequence[Statistic], unknown: float) -> Statistic:
    """Return the mean of the figures of the classes; `unknown` if no class has one, which a resample may lack."""

    def statistic(weights: Array) -> float:
        figures = np.array([of_class(weights) for of_class in of_classes])
        known = figures[~np.isnan(figures)]
        return float(known.mean()) if len(known) else unknown

    return statistic


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


def pair_counts(first: Array, second: Array, size: int) -> list[list[int]]:
    """Return [first, second, examples] of each pair of numbers below `size` that some example has, ordered."""
    # int64, because the product overflows int32 from a size of 46,341 on.
    pairs, counts = np.unique(first.astype(np.int64) * size + second, return_counts=True)
    table: list[list[int]] = np.stack([pairs // size, pairs % size, counts], axis=1).tolist()
    return table


def shares(parts: Array, wholes: Array) -> list[float | None]:
    """Return each part divided by its whole; None if the whole is 0."""
    return [round(float(part / whole), 6) if whole else None for part, whole in zip(parts, wholes, strict=True)]


def rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return columns as rows."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
