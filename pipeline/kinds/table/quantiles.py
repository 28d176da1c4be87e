"""Quantiles of the numbers of a column, over the training rows: the scale on which a model sees the column.

They come from a sample: the first rows of the order of the training rows. It is the same whatever the order of the
source and the engine. Equal rows are numbered in this order, so a frequent row is as frequent in the sample.
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
MAX_CODED = 64
"""Whole numbers with at most this many different values are listed."""


class RowSample:
    """The numbers of a sample of the rows. They are found by the hashes of the rows.

    Args:
        hashes: The hash of each row of the sample (`pipeline/tables/order_hash.py`). Equal rows have the same hash.
        columns: The number of columns.
    """

    def __init__(self, hashes: NDArray[np.uint64], columns: int) -> None:
        self._hashes, self._copies = np.unique(hashes, return_counts=True)
        self._numbers = np.full((len(self._hashes), columns), np.nan, np.float32)

    def add(self, hashes: NDArray[np.uint64], numbers: NDArray[np.float32]) -> None:
        """Take the numbers, (rows, columns), of those rows that belong to the sample."""
        is_sampled = np.isin(hashes, self._hashes)
        self._numbers[np.searchsorted(self._hashes, hashes[is_sampled])] = numbers[is_sampled]

    def count(self, column: int) -> int:
        """Return the number of rows with a value in a column."""
        return int(self._copies[~np.isnan(self._numbers[:, column])].sum())

    def quantiles(self, column: int) -> NDArray[np.float64]:
        """Return the quantiles of a column; none if it has no value."""
        return quantiles_of(self._numbers[:, column].astype(np.float64), self._copies.astype(np.float64))


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
