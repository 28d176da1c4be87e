"""Ends a training that is stuck: Airflow's heartbeats come from its supervisor, and go on beside it."""

import faulthandler
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import TenfoldError, TrainingError

STACKS = "stacks.txt"
GRACE_S = 60.0
"""Seconds for saying so, after which the process ends all the same: where a disk hangs, so does who writes to it."""


class Watchdog:
    """Tells whether nothing was heard of a training for longer than `limit_s`.

    :param clock: seconds that never go back

    Time in which this process did not run, because the machine slept or somebody halted it, counts for little: two
    looks are taken to be `every_s` apart, or twice that.
    """

    def __init__(self, limit_s: float, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._every_s, self._clock = limit_s, every_s, clock
        self._heard = self._known = 0
        self._silent_s, self._looked = 0.0, clock()

    def heard(self) -> None:
        """The training goes on. Called by its thread alone."""
        self._heard += 1

    def look(self) -> bool:
        """Whether it is stuck. Called every `every_s`, by a thread of its own."""
        now, heard = self._clock(), self._heard
        passed_s = min(now - self._looked, 2 * self._every_s)
        self._silent_s = self._silent_s + passed_s if heard == self._known else 0.0
        self._looked, self._known = now, heard
        return self._silent_s > self._limit_s


@contextmanager
def watched(folder: Path, limit_s: float, leave: Callable[[TenfoldError], None]) -> Iterator[Callable[[], None]]:
    """Watch what runs in the block, which calls what it is given with each of its steps.

    Where none comes for so many seconds (0: however long), the stacks of all threads are written to stderr and into
    `folder`, and a thread of the watchdog's calls `leave`, which is to end the process: the main thread may be stuck
    within TensorFlow, and hear nothing else.
    """
    if not limit_s:
        yield lambda: None
        return
    every_s, ended = min(limit_s / 10, 10.0), threading.Event()
    watchdog = Watchdog(limit_s, every_s)

    def watch() -> None:
        while not ended.wait(every_s):
            if watchdog.look():
                _end(folder, limit_s, leave)
                return

    threading.Thread(target=watch, name="watchdog", daemon=True).start()
    try:
        yield watchdog.heard
    finally:
        ended.set()


def _end(folder: Path, limit_s: float, leave: Callable[[TenfoldError], None]) -> None:
    faulthandler.dump_traceback_later(GRACE_S, exit=True)
    try:
        faulthandler.dump_traceback()
        with open(folder / STACKS, "w") as file:
            faulthandler.dump_traceback(file)
        leave(
            TrainingError(
                f"no step for {limit_s / 60:g} minutes (stall_minutes): what each thread was at stands above, and in "
                f"{folder / STACKS}. Run again, and it goes on from the last checkpoint; set a larger stall_minutes if "
                "a step takes that long"
            )
        )
    finally:
        faulthandler.cancel_dump_traceback_later()
