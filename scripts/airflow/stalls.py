"""Give up a start of Airflow if its processes do nothing, or if it takes far too long."""

import time
from typing import Protocol

from scripts.airflow.errors import Failed

STALL_S = 180.0
"""A start fails after this many seconds without progress."""
WORK_S = 30.0
"""CPU seconds within STALL_S that count as progress. Processes that only wait take less, even if they are asked whether
they are ready. Processes that start take more, even if other programs hold the cores."""
LIMIT_S = 1800.0
"""A start fails after this many seconds in any case."""
_LOOK_S = 1.0
"""The processes are looked at no more often, because each look reads all of them."""


class Working(Protocol):
    """An Airflow whose processes take CPU time."""

    def work_s(self) -> float | None:
        """Return the CPU seconds of its processes so far; None if they cannot be seen from here."""


class Stalls:
    """Watches one start."""

    def __init__(self, airflow: Working) -> None:
        self._airflow = airflow
        self._begin = self._progress = self._looked = time.monotonic()
        self._work = airflow.work_s() or 0.0

    def check(self, goal: str) -> None:
        """Raise Failed if the start makes no progress or takes too long. `goal` says what is missing, for the error."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked, seen = now, self._airflow.work_s()
        work = seen or 0.0
        if work - self._work >= WORK_S:
            self._progress = now
        if work < self._work or self._progress == now:  # Less: a process has ended, and its seconds no longer count.
            self._work = work
        if now - self._progress > STALL_S:
            what = "Airflow was not ready for" if seen is None else "Airflow's processes did almost nothing for"
            raise Failed(f"{what} {STALL_S:.0f} s: {goal}")
        if now - self._begin > LIMIT_S:
            raise Failed(f"gave up on Airflow after {LIMIT_S:.0f} s: {goal}")
