"""Divides the time of a training loop among the parts of a step. Each moment counts for one part.

The loop prepares the next step while the accelerator computes. A moment in which the accelerator computed counts as
compute, whatever the loop did then. Any other moment counts for what the loop did.
"""

import math
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field


@dataclass(slots=True)
class StepTimes:
    """Seconds of one step, with the time between it and the step before."""

    wait_s: float = 0.0
    """Waiting for data while the accelerator had nothing to do."""
    compute_s: float = 0.0
    """The accelerator computed."""
    host_s: float = 0.0
    """The loop itself, while the accelerator had nothing to do: callbacks, progress, monitoring."""
    checkpoint_s: float = 0.0
    """Waiting for a checkpoint, that of the end of an epoch too."""

    @property
    def whole_s(self) -> float:
        """Seconds of all parts."""
        return float(sum(astuple(self)))

    def share(self, steps: int) -> "StepTimes":
        """Return the times of one of `steps` equal steps, which took these times together."""
        return StepTimes(*(seconds / steps for seconds in astuple(self)))


@dataclass(frozen=True, slots=True)
class StepStart:
    """Steps that were sent to the accelerator."""

    time: float
    """When they were sent, in seconds."""
    spans: list[tuple[str, float, float]]
    """What the loop did since the steps before were sent: the part, its begin and its end."""


@dataclass
class StepClock:
    """Books the time of the loop, and counts the part of it in which the accelerator did not compute.

    Each `add_...` books the time since the call before. `begin` and `end` are called in the same order of steps.

    Args:
        clock: The time, in seconds.
        paused_s: Seconds for which `clock` stood still while callbacks ran. They are booked on the host.
    """

    clock: Callable[[], float] = time.perf_counter
    paused_s: Callable[[], float] = lambda: 0.0
    _spans: list[tuple[str, float, float]] = field(default_factory=list)
    _is_running: bool = False
    _booked_until: float = 0.0
    _paused_until: float = 0.0
    _free_since: float = -math.inf
    """When the accelerator had computed all steps that have ended."""

    def pause(self) -> None:
        """Leave out the time until the next call. A validation is not part of a step."""
        self._is_running = False

    def add_wait(self) -> None:
        """Book the wait for the next batch, which has come."""
        self._add("wait_s")

    def add_host(self) -> None:
        """Book the work of the loop itself."""
        self._add("host_s")

    def add_checkpoint(self) -> None:
        """Book the wait for a checkpoint."""
        self._add("checkpoint_s")

    def begin(self) -> StepStart:
        """Note that steps are sent to the accelerator now."""
        self.add_host()
        spans, self._spans = self._spans, []
        return StepStart(self._booked_until, spans)

    def end(self, begun: StepStart, time: float) -> StepTimes:
        """Return the times of steps that the accelerator had computed at `time`, in seconds of the clock."""
        times = StepTimes(compute_s=time - max(begun.time, self._free_since))
        for part, start, end in begun.spans:
            setattr(times, part, getattr(times, part) + max(0.0, end - max(start, self._free_since)))
        times.host_s += self.paused_s() - self._paused_until
        self._paused_until = self.paused_s()
        self._free_since = time
        return times

    def _add(self, part: str) -> None:
        now = self.clock()
        if not self._is_running:
            # Callbacks that ran during the pause are left out, too.
            self._is_running, self._booked_until, self._paused_until = True, now, self.paused_s()
        self._spans.append((part, self._booked_until, now))
        self._booked_until = now
