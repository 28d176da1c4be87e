"""Where the time of a training loop goes: each moment of it is booked on one part of a step."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class StepTimes:
    """Seconds of one step and of what came between it and the step before."""

    wait_s: float = 0.0
    """For data."""
    compute_s: float = 0.0
    """Until the accelerator was ready."""
    host_s: float = 0.0
    """The loop itself: callbacks, progress, monitoring."""
    checkpoint_s: float = 0.0
    """Standing still for a checkpoint, that of the end of an epoch too."""


class StepClock:
    """Call what has just ended; the time since the call before is booked there.

    `aside` are seconds for which `clock` stood still, as callbacks were at work: the host's.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, aside: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._clock, self._aside = clock, aside
        self._times = StepTimes()
        self._running = False
        self._booked_until = self._aside_until = 0.0

    def pause(self) -> None:
        """Leave out what is until the next call: a validation is no part of a step."""
        self._running = False

    def waited(self) -> None:
        """The next batch has come."""
        self._times.wait_s += self._passed()

    def computed(self) -> None:
        """The accelerator is ready."""
        self._times.compute_s += self._passed()

    def hosted(self) -> None:
        """The loop is done with what it does itself."""
        self._times.host_s += self._passed()

    def stood_still(self) -> None:
        """A checkpoint is on its way."""
        self._times.checkpoint_s += self._passed()

    def take(self) -> StepTimes:
        """The times booked since the last step was taken."""
        self._times.host_s += self._aside() - self._aside_until
        self._aside_until = self._aside()
        times, self._times = self._times, StepTimes()
        return times

    def _passed(self) -> float:
        now = self._clock()
        if not self._running:
            self._running, self._booked_until, self._aside_until = True, now, self._aside()
        before, self._booked_until = self._booked_until, now
        return now - before
