"""Ctrl-C and SIGTERM at moments of our choosing.

A handler that raises can raise between the birth of a process and the line that notes it, or in the middle of stopping:
both leave processes behind. So the handler only remembers, and whoever waits asks.
"""

import signal
import time
from types import FrameType

from scripts.airflow.errors import Interrupted

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SLICE_S = 0.1


class Signals:
    """Remembers the first signal while its block runs. Further ones change nothing: stopping is bounded anyway."""

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
