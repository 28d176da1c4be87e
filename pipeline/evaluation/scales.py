"""How numbers of each scale are rounded and written."""

import math
from collections.abc import Iterable
from typing import Literal

Scale = Literal["share", "score", "amount"]
"""share: 0 to 1, written in percent. score: at most 1, without a unit. amount: of any size, for example in the unit of
the label."""

STORED_DIGITS = 9
"""An amount can be of any size, so it is rounded to significant digits."""


def significant(values: Iterable[float]) -> list[float]:
    """Return values with STORED_DIGITS significant digits."""
    return [float(f"{value:.{STORED_DIGITS}g}") for value in values]


def four_digits(value: float, sign: str = "") -> str:
    """Write a number with four significant digits: 12.30, 1,234, 123,500, but 1.234e-05 if it is tiny."""
    four = float(f"{value:.4g}") + 0  # `+ 0` makes 0.0 of -0.0.
    if four and not 1e-4 <= abs(four) < 1e15:
        return f"{four:{sign}.4g}"
    before_point = math.floor(math.log10(abs(four))) + 1 if four else 1
    return f"{four:{sign},.{max(4 - before_point, 0)}f}"
