"""Sums of float32 numbers that are exact, and so do not depend on the order or on how the rows are divided.

A float32 is an integer of 24 bits times a power of two. The integers of each power are added exactly as float64, whose
53 bits suffice for 500 million of them.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

import numpy as np
from numpy.typing import NDArray

_UNIT = 172
"""Sums are in units of 2 to the power of minus this, of which each float32 is an integer of 24 bits, shifted."""
_MANTISSA = 2.0**24


@dataclass
class ExactSums:
    """Number, sum and sum of squares of numbers."""

    count: int = 0
    total: int = 0
    """The sum, in units of 2^-172."""
    squares: int = 0
    """The sum of the squares, in units of 2^-344."""

    def add(self, values: NDArray[np.float32]) -> None:
        """Add numbers. NaN is left out. There must be no infinite ones."""
        values = values[~np.isnan(values)]
        fractions, exponents = np.frexp(values)
        mantissas = fractions.astype(np.float64) * _MANTISSA
        powers = exponents.astype(np.intp) - 24 + _UNIT
        # A square has up to 48 bits. Its halves are added separately.
        squares = mantissas * mantissas
        high = np.floor(squares / _MANTISSA)
        low = squares - high * _MANTISSA
        self.count += len(values)
        self.total += _exact(mantissas, powers)
        self.squares += _exact(high, 2 * powers + 24) + _exact(low, 2 * powers)

    @property
    def mean(self) -> Fraction:
        """The exact mean; 0 without a number."""
        return Fraction(self.total, 2**_UNIT * max(self.count, 1))

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers as a population; 0 without a number."""
        variance = Fraction(self.squares, 2 ** (2 * _UNIT) * max(self.count, 1)) - self.mean**2
        return sqrt(variance)


def _exact(integers: NDArray[np.float64], powers: NDArray[np.intp]) -> int:
    """Return the exact sum of integers times powers of two."""
    sums = np.bincount(powers, weights=integers)
    return sum(int(sums[power]) << int(power) for power in np.flatnonzero(sums))
