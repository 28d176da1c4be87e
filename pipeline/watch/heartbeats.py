"""How long a training has been silent, whatever the clock of its machine says."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import NamedTuple

MAX_SKEW_S = 900.0
"""Seconds that the clock of a training may differ from the clock here. Nobody lets clocks differ by more."""
MAX_KEPT = 5000
"""Maximum number of trainings in memory. The one that was requested least recently is forgotten first."""


class _Change(NamedTuple):
    last_sample: float
    time: float
    """Time of the first answer with this sample, by the monotonic clock here, in seconds."""


class Heartbeats:
    """Notes when the newest sample of each training changed. Any number of threads may use it.

    The sample has the time of another machine, so its time is only compared with that of the sample before. Only at
    the first look at a training there is none before. Then a sample older than MAX_SKEW_S is believed to be old, and
    any other one counts as new until it has not changed for long enough.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._monotonic, self._wall_clock = monotonic, wall_clock
        self._changes: dict[Hashable, _Change] = {}
        self._lock = threading.Lock()

    def silent_s(self, training: Hashable, last_sample: float) -> float:
        """Return the seconds since the newest sample of a training changed.

        `training` is the key of one source of samples. `last_sample` is the time of the newest sample (Unix s), by the
        clock of its own machine.
        """
        with self._lock:
            now = self._monotonic()
            change = self._changes.pop(training, None)
            if change is None:
                age = self._wall_clock() - last_sample
                change = _Change(last_sample, now - age if age > MAX_SKEW_S else now)
            elif change.last_sample != last_sample:
                change = _Change(last_sample, now)
            self._changes[training] = change  # The last one was requested most recently.
            while len(self._changes) > MAX_KEPT:
                del self._changes[next(iter(self._changes))]
            return now - change.time
