"""The change that a training makes by itself, with advice=apply."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pipeline.evaluation.estimates import Estimate


class Predicted(Protocol):
    """A change, and what it gains."""

    @property
    def change(self) -> Mapping[str, Any]:
        """Settings and their new values."""

    @property
    def factor(self) -> Estimate:
        """Ratio of the examples per second of the whole training."""

    @property
    def at_epoch(self) -> bool:
        """Whether a training under way can make the change at its next epoch."""


def best_change(predictions: Iterable[Predicted]) -> Mapping[str, Any]:
    """Return the values of the first change that a training under way can make, and that surely makes it faster.

    `predictions` begin with the best one. If there is no such change, no value is returned.
    """
    possible = (each.change for each in predictions if each.at_epoch and each.factor.low > 1)
    return next(possible, {})
