"""Ends a training that is stuck. Airflow does not notice: its heartbeats come from its supervisor, and go on."""

import faulthandler
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import TenfoldError, TrainingError

STACKS = "stacks.txt"
GRACE_S = 60.0
"""Seconds for writing the reason, after which the process ends in any case: a write to a hanging disk hangs, too."""


class Watchdog:
    """Finds out whether a training has given no heartbeat for longer than `limit_s`.

    Time in which this process did not run, because the machine slept or a person halted it, hardly counts: between two
    looks, which are `every_s` apart, at most twice `every_s` passes. `clock` returns seconds that never go back.
    """

    def __init__(self, limit_s: float, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._every_s, self._clock = limit_s, every_s, clock
        self._heartbeats = self._known_heartbeats = 0
        self._silent_s, self._looked_at = 0.0, clock()

    def heartbeat(self) -> None:
        """Note that the training goes on. Only the thread of the training calls it."""
        # A counter and no flag: the training only adds, and the watchdog only reads, so that neither needs a lock.
        self._heartbeats += 1

    def look(self) -> bool:
        """Return whether the training is stuck. A thread of the watchdog calls it every `every_s`."""
        now, heartbeats = self._clock(), self._heartbeats
        # After a sleep of the machine, the clock may have jumped by hours.
        passed_s = min(now - self._looked_at, 2 * self._every_s)
        self._silent_s = self._silent_s + passed_s if heartbeats == self._known_heartbeats else 0.0
        self._looked_at, self._known_heartbeats = now, heartbeats
        return self._silent_s > self._limit_s


@contextmanager
def watched(folder: Path, limit_s: float, leave: Callable[[TenfoldError], None]) -> Iterator[Callable[[], None]]:
    """Watch the block, which gets a function to call as a heartbeat with each of its steps.

    If no heartbeat comes for `limit_s`, a thread of the watchdog writes the stacks of all threads to stderr and into
    `folder`, and calls `leave`. That must end the process, because the main thread may be stuck within TensorFlow.
    A `limit_s` of 0 means no limit.
    """
    if not limit_s:
        yield lambda: None
        return
    # A tenth of the limit, so that a stall is noticed at most 10% late.
    every_s, has_ended = min(limit_s / 10, 10.0), threading.Event()
    watchdog = Watchdog(limit_s, every_s)

    def watch() -> None:
        while not has_ended.wait(every_s):
            if watchdog.look():
                _end(folder, limit_s, leave)
                return

    threading.Thread(target=watch, name="watchdog", daemon=True).start()
    try:
        yield watchdog.heartbeat
    finally:
        has_ended.set()


def _end(folder: Path, limit_s: float, leave: Callable[[TenfoldError], None]) -> None:
    # A thread of C, which ends the process even if `open` below hangs.
    faulthandler.dump_traceback_later(GRACE_S, exit=True)
    try:
        faulthandler.dump_traceback()
        with open(folder / STACKS, "w") as file:
            faulthandler.dump_traceback(file)
        leave(
            TrainingError(
                f"no step has ended for {limit_s / 60:g} minutes (stall_minutes). What each thread was doing is in the "
                f"lines above, and in {folder / STACKS}. Run again to continue from the last checkpoint, or set a "
                "larger stall_minutes if a step takes that long"
            )
        )
    finally:
        faulthandler.cancel_dump_traceback_later()
