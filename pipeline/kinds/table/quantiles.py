"""Quantiles of the numbers of a column, over the training rows: the scale on which a model sees the column.

They come from a sample of the rows. Which rows it has depends on their hashes alone, so it is the same whatever the
order of the rows and the engine.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BINS = 32
"""As many training rows are between each two quantiles."""
OUTERMOST = 0.005
"""The first and the last quantile leave out this share of the rows on each side, so that no outlier decides them."""
MAX_SAMPLE = 20_000
"""The share of rows between two quantiles of so many rows is right to about 4%."""
ROWS_AT_ONCE = 65_536
MAX_CODED = 64
"""Whole numbers with at most this many different values are listed."""


class RowSample:
    """The rows with the lowest hashes. Equal rows have the same hash, so they count as one row with a weight."""

    def __init__(self, columns: int) -> None:
        self._hashes = np.empty(0, np.uint64)
        self._numbers = np.empty((0, columns), np.float32)
        self._weights: NDArray[np.float64] = np.empty(0)

    def add(self, hashes: NDArray[np.uint64], numbers: NDArray[np.float32]) -> None:
        """Add rows with their numbers, (rows, columns)."""
        for first in range(0, len(hashes), ROWS_AT_ONCE):
            block = slice(first, first + ROWS_AT_ONCE)
            self._add(hashes[block], numbers[block])

    def _add(self, hashes: NDArray[np.uint64], numbers: NDArray[np.float32]) -> None:
        if len(self._hashes) == MAX_SAMPLE:
            is_low = hashes <= self._hashes[-1]
            hashes, numbers = hashes[is_low], numbers[is_low]
        joined = np.concatenate((self._hashes, hashes))
        weights = np.concatenate((self._weights, np.ones(len(hashes))))
        unique, places, inverse = np.unique(joined, return_index=True, return_inverse=True)
        self._hashes = unique[:MAX_SAMPLE]
        self._weights = np.bincount(inverse, weights).astype(np.float64)[:MAX_SAMPLE]
        self._numbers = np.concatenate((self._numbers, numbers))[places[:MAX_SAMPLE]]

    def quantiles(self, column: int) -> NDArray[np.float64]:
        """Return the quantiles of a column; none if it has no value."""
        return quantiles_of(self._numbers[:, column].astype(np.float64), self._weights)

    def values(self, column: int) -> NDArray[np.float64]:
        """Return the different values of a column, in their order."""
        values = self._numbers[:, column]
        return np.unique(values[~np.isnan(values)]).astype(np.float64)


def quantiles_of(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return BINS + 1 ascending values of which each two have as many rows between them. NaN is left out.

    The result is empty if there is no value.
    """
    is_known = ~np.isnan(values)
    values, weights = values[is_known], weights[is_known]
    if not len(values):
        return values
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    positions = np.linspace(OUTERMOST, 1 - OUTERMOST, BINS + 1) * ends[-1]
    places = np.minimum(np.searchsorted(ends, positions), len(values) - 1)
    result: NDArray[np.float64] = values[order][places]
    return result


def joined_quantiles(quantiles: Sequence[Sequence[float]], counts: Sequence[int]) -> list[float]:
    """Return the quantiles of several versions together, from those of each and its number of values."""
    known = [(each, count) for each, count in zip(quantiles, counts, strict=True) if count and each]
    if not known:
        return []
    values = np.concatenate([np.asarray(each, np.float64) for each, _ in known])
    weights = np.concatenate([np.full(len(each), count / len(each)) for each, count in known])
    joined: list[float] = quantiles_of(values, weights).tolist()
    return joined
