"""How each figure is rounded, compared and written."""

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

from pipeline.evaluation.estimates import Estimate

Scale = Literal["share", "score", "amount"]
"""share: 0 to 1, written in percent. score: at most 1, without a unit. amount: of any size, for example in the unit of
the label."""

SCALES: dict[str, Scale] = {
    "mean_average_precision": "share",
    "micro_f1": "share",
    "accuracy": "share",
    "top5": "share",
    "calibration_error": "share",
    "auc": "score",
    "log_loss": "amount",
    "mae": "amount",
    "rmse": "amount",
    "r2": "score",
}
"""The scale of each figure, by its name in `evaluation.json`."""
LOWER_IS_BETTER = frozenset({"calibration_error", "log_loss", "mae", "rmse"})
STORED_DIGITS = 9
"""An amount can be of any size, so it is rounded to significant digits."""


def rounded(name: str, estimate: Estimate) -> Estimate:
    """Return the estimate of a figure as it is stored."""
    if SCALES[name] == "amount":
        return Estimate(*significant(estimate))
    return Estimate(*np.round(estimate, 6).tolist())


def significant(values: Iterable[float]) -> list[float]:
    """Return values with STORED_DIGITS significant digits."""
    return [float(f"{value:.{STORED_DIGITS}g}") for value in values]


def shown(name: str, value: float, sign: str = "") -> str:
    """Write the value of a figure: 61.2%, 0.873, or an amount with four digits.

    Args:
        name: Name of the figure.
        value: Its value.
        sign: "+" writes the sign of a positive value, too.
    """
    scale = SCALES[name]
    if scale == "share":
        return f"{value:{sign}.1%}"
    return f"{value:{sign}.3f}" if scale == "score" else four_digits(value, sign)


def four_digits(value: float, sign: str = "") -> str:
    """Write a number with four significant digits: 12.30, 1,234, 123,500, but 1.234e-05 if it is tiny."""
    four = float(f"{value:.4g}") + 0  # `+ 0` makes 0.0 of -0.0.
    if four and not 1e-4 <= abs(four) < 1e15:
        return f"{four:{sign}.4g}"
    before_point = math.floor(math.log10(abs(four))) + 1 if four else 1
    return f"{four:{sign},.{max(4 - before_point, 0)}f}"
