"""Curves made ready to draw: broken where time breaks, smoothed, thinned without losing a peak."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def pieces(x: Array, y: Array, gap: float) -> Iterator[tuple[Array, Array]]:
    """Yield the parts of a curve between gaps wider than `gap`. A line across one would show what nobody measured."""
    known = np.isfinite(y)
    x, y = x[known], y[known]
    cuts = np.flatnonzero(np.diff(x) > gap) + 1
    return ((px, py) for px, py in zip(np.split(x, cuts), np.split(y, cuts), strict=True) if len(px))


def joined(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Join parts to one curve, with a NaN between them, where the drawn line breaks."""
    xs = [values for x, _ in parts for values in (x, [np.nan])]
    ys = [values for _, y in parts for values in (y, [np.nan])]
    return np.concatenate([[], *xs[:-1]]), np.concatenate([[], *ys[:-1]])


def smoothed(y: Array, sigma: float) -> Array:
    """Return the Gaussian mean with a standard deviation of `sigma` points; near the ends, of the points that exist."""
    reach = min(int(4 * sigma), len(y) - 1)
    if sigma <= 0.5 or reach < 1:
        return y
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    # Near the ends, a part of the kernel lies outside, so its weight there is less than one.
    weights = np.convolve(np.ones(len(y)), kernel)[reach:-reach]
    means: Array = np.convolve(y, kernel)[reach:-reach] / weights
    return means


def thinned(x: Array, y: Array, points: int) -> tuple[Array, Array]:
    """Return at most `points` points: the lowest and highest of equal parts, so that no stall and no peak vanishes."""
    if len(x) <= points:
        return x, y
    starts = np.linspace(0, len(x), points // 2 + 1).astype(int)
    spans = list(pairwise(starts))
    chosen = np.unique([begin + pick(y[begin:end]) for begin, end in spans for pick in (np.argmin, np.argmax)])
    return x[chosen], y[chosen]
