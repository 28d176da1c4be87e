"""The row, which is all that the parts of monitoring pass to each other, and the sink, which takes rows."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

KINDS = ("samples", "batches", "epochs")


@dataclass(frozen=True, slots=True)
class Row:
    """Values taken together at one moment.

    `kind` is one of KINDS, `time` is in Unix seconds, and `step` is the training step; in "epochs" it is the epoch,
    from 1. Time and step are those of the moment at which the values were taken, however late the row is written.
    """

    kind: str
    time: float
    step: int
    values: Mapping[str, float]


class Sink(Protocol):
    """Takes rows. It is called from one thread only. If it raises, the reporter logs that and goes on."""

    def write(self, row: Row) -> None:
        """Take a row."""


def steady_clock(not_before: float = 0.0) -> Callable[[], float]:
    """Return a clock in Unix seconds that never jumps: it reads the wall clock once, and adds monotonic time.

    If NTP or a person sets the wall clock during a run, batches would otherwise come before their samples. If the wall
    clock is behind `not_before`, the clock begins there. That is the last time in the record: another worker, whose
    clock was ahead, may have written it, and the times of a record must not go back.
    """
    origin = max(time.time(), not_before) - time.monotonic()
    return lambda: origin + time.monotonic()
