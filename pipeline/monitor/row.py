"""The one thing monitoring passes around: a row, and who takes it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

KINDS = ("samples", "batches", "epochs")


@dataclass(frozen=True, slots=True)
class Row:
    """Values taken together at one moment.

    `kind` is one of KINDS; `time` is in unix seconds; `step` is the training step, in "epochs" the epoch from 1.
    Time and step are those of the moment the values were taken, however much later the row is written.
    """

    kind: str
    time: float
    step: int
    values: Mapping[str, float]


class Sink(Protocol):
    """Whoever keeps rows. Called from one thread only; may raise: the reporter notes it and goes on."""

    def write(self, row: Row) -> None: ...


def steady_clock() -> Callable[[], float]:
    """A clock in unix seconds that never jumps: the wall clock is read once, the rest is monotonic progress.

    A clock set by NTP or by hand in mid-run would otherwise put batches before the samples they belong to.
    """
    origin = time.time() - time.monotonic()
    return lambda: origin + time.monotonic()
