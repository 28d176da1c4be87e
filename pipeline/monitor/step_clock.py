"""Divides the time of a training loop among the parts of a step. Each moment counts for one part."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class StepTimes:
    """Seconds of one step, with the time between it and the step before."""

    wait_s: float = 0.0
    """Waiting for data."""
    compute_s: float = 0.0
    """Until the accelerator was ready."""
    host_s: float = 0.0
    """The loop itself: callbacks, progress, monitoring."""
    checkpoint_s: float = 0.0
    """Waiting for a checkpoint, that of the end of an epoch too."""


class StepClock:
    """Books time on the parts of a step. Each `add_...` books the time since the call before on one part.

    Args:
        clock: The time, in seconds.
        paused_s: Seconds for which `clock` stood still while callbacks ran. They are booked on the host.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, paused_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._clock, self._paused_s = clock, paused_s
        self._times = StepTimes()
        self._is_running = False
        self._booked_until = self._paused_until = 0.0

    def pause(self) -> None:
        """Leave out the time until the next call. A validation is not part of a step."""
        self._is_running = False

    def add_wait(self) -> None:
        """Book the wait for the next batch, which has come."""
        self._times.wait_s += self._passed()

    def add_compute(self) -> None:
        """Book the work of the accelerator, which is ready."""
        self._times.compute_s += self._passed()

    def add_host(self) -> None:
        """Book the work of the loop itself."""
        self._times.host_s += self._passed()

    def add_checkpoint(self) -> None:
        """Book the wait for a checkpoint."""
        self._times.checkpoint_s += self._passed()

    def take(self) -> StepTimes:
        """Return the times that were booked since the last call."""
        self._times.host_s += self._paused_s() - self._paused_until
        self._paused_until = self._paused_s()
        times, self._times = self._times, StepTimes()
        return times

    def _passed(self) -> float:
        now = self._clock()
        if not self._is_running:
            # Callbacks that ran during the pause are left out, too.
            self._is_running, self._booked_until, self._paused_until = True, now, self._paused_s()
        before, self._booked_until = self._booked_until, now
        return now - before
