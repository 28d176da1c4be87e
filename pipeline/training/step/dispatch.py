"""Steps that were sent to the accelerator. Their results are read one step late.

The loop sends a step before it reads the result of the step before. The accelerator thus computes while the loop
reports, saves and takes the next batch.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

_About = TypeVar("_About")


class Result(Protocol):
    """The result of a step, such as a tensor."""

    @property
    def device(self) -> str:
        """The name of the device that holds it. A result on a CPU is computed already."""

    def numpy(self) -> NDArray[np.float32]:
        """Wait until the result is computed, and return it."""


@dataclass(frozen=True)
class SentSteps(Generic[_About]):
    """Steps that were sent together. `about` is what the sender notes of them."""

    about: _About
    is_late: bool
    """Whether the accelerator may still have been computing when the call of the step returned."""
    _read: Future[tuple[NDArray[np.float32], float]]

    def rows(self) -> list[list[float]]:
        """Wait until the steps are computed, and return the results of each, oldest first."""
        rows: list[list[float]] = np.atleast_2d(self._read.result()[0]).tolist()
        return rows

    @property
    def ended(self) -> float:
        """When the steps were computed, in seconds of the clock. Waits until they are."""
        return self._read.result()[1]


class InFlight(Generic[_About]):
    """The steps whose results the loop has not read yet, oldest first.

    Threads call `clock`, which returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._sent = clock, deque[SentSteps[_About]]()
        # A GPU runs the copy of a result after all work that was queued before the copy. Queued after the next step,
        # the copy would wait for that step, so a thread queues it at once. There are two threads, because one may still
        # wait for the step before.
        self._threads = ThreadPoolExecutor(2, "step-result")

    def __iter__(self) -> Iterator[SentSteps[_About]]:
        return iter([*self._sent])

    def add(self, result: Result, about: _About) -> None:
        """Add steps that were just sent, with their result: (values,) of one step, or (steps, values)."""
        is_late = "CPU" not in result.device
        read: Future[tuple[NDArray[np.float32], float]] = Future()
        if is_late:
            read = self._threads.submit(self._ended, result)
        else:
            read.set_result(self._ended(result))
        self._sent.append(SentSteps(about, is_late, read))

    def take_due(self) -> Iterator[SentSteps[_About]]:
        """Take the steps whose results are due: all but the newest, which the accelerator may be computing."""
        while self._sent and (len(self._sent) > 1 or not self._sent[0].is_late):
            yield self._sent.popleft()

    def take_all(self) -> Iterator[SentSteps[_About]]:
        """Take all steps."""
        while self._sent:
            yield self._sent.popleft()

    def _ended(self, result: Result) -> tuple[NDArray[np.float32], float]:
        values = result.numpy()
        return values, self._clock()
