"""The change that a training makes by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pipeline.evaluation.estimates import Estimate
from pipeline.tuning.apply import best_change


@dataclass(frozen=True)
class Predicted:
    change: Mapping[str, Any]
    factor: Estimate
    at_epoch: bool = True


RESIZED = Predicted({"prepare": "resize"}, Estimate(2.0, 1.8, 2.2), at_epoch=False)
CACHED = Predicted({"cache": "memory"}, Estimate(1.5, 1.3, 1.7))
UNSURE = Predicted({"prefetch_batches": 16}, Estimate(1.6, 0.9, 2.0))


@pytest.mark.parametrize(
    ("predictions", "change"),
    [
        ([RESIZED, UNSURE, CACHED], {"cache": "memory"}),
        ([RESIZED, UNSURE], {}),
        ([], {}),
    ],
)
def test_the_best_change_is_possible_now_and_surely_gains(predictions: list[Predicted], change: Mapping[str, Any]):
    assert best_change(predictions) == change
