"""Ctrl-C and SIGTERM, which are obeyed only at safe points.

A handler that raises can raise between the start of a process and the line that records it, or while processes are
being stopped. Both leave processes behind. So the handler only remembers the signal, and code that waits checks for it.
"""

import signal
import time
from types import FrameType

from scripts.airflow.errors import Interrupted

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SLICE_S = 0.1
"""A pause checks for a signal at this interval. Python itself would continue a sleep after the handler."""


class Signals:
    """Remembers the first signal in the block. Further signals change nothing, because stopping has a time limit."""

    def __init__(self) -> None:
        self._first = 0

    def __enter__(self) -> "Signals":
        self._before = {signum: signal.signal(signum, self._remember) for signum in CAUGHT}
        return self

    def __exit__(self, *exception: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        self._first = self._first or signum

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self._first:
            raise Interrupted(self._first)

    def pause(self, seconds: float) -> None:
        """Sleep, but not through a signal."""
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_S))
            self.check()
