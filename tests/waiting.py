"""Waiting for what another thread or process does. A slower machine gets more time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
PAUSES_PER_LOOK = 4
"""Minimum ratio of the pause after a look to the duration of the look, because others need the processor."""
FIRST_PROBE_S, PROBE_EVERY_S = 1.0, 5.0
"""When and how often the speed is measured. Most waits end before the first measurement."""
PROBE_S = 0.05
"""How long a measurement takes on a quiet machine: 1% of a core. Beside four busy programs on two cores, work took 7.5
times as long, measurements of 0.05 s gave 6 to 11, and those of 0.01 s gave 2 to 14."""
simulated_work = time.sleep
"""A pause that stands for work, such as a slow step or a slow server. To wait for something, call `until`."""


def simulated_cpu_work(seconds: float) -> None:
    """Keep a core busy for some CPU seconds."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def slowness() -> float:
    """Return how many times as long as on a quiet machine a piece of work takes now, at least 1."""
    began = time.perf_counter()
    sum(range(5_000_000))
    return max(1.0, (time.perf_counter() - began) / PROBE_S)


@dataclass(frozen=True)
class Machine:
    """The clock and the speed of the machine that runs the tests."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], object] = time.sleep
    slowness: Callable[[], float] = slowness


def until(
    look: Callable[[], T],
    seconds: float = 180,
    pause: float = 0.02,
    *,
    is_expected: Callable[[T], object] = bool,
    errors: type[Exception] | tuple[type[Exception], ...] = (),
    machine: Machine = Machine(),
) -> T:
    """Call `look` until its value is as expected, and return the value. A failure shows the last value or error.

    Args:
        look: Returns a value.
        seconds: Patience, in seconds of a quiet machine. One such second takes N seconds while the machine is N times
            slower. The time by which a pause ends late does not count.
        pause: Minimum seconds between two looks.
        is_expected: Whether a value ends the wait. By default, any true value does.
        errors: Errors of `look` that do not end the wait.
        machine: The clock and the speed of the machine.

    Raises:
        AssertionError: No value was as expected in time.
    """
    began = machine.now()
    next_probe = began + FIRST_PROBE_S
    seen: object = None
    quiet, factor = 0.0, 1.0
    try:
        while True:
            looked = machine.now()
            try:
                if is_expected(found := look()):
                    return found
                seen = found
            except errors as error:
                seen = error
            took = machine.now() - looked
            assert quiet < seconds, f"not as expected within {seconds:g} seconds of a quiet machine"
            if machine.now() >= next_probe:
                factor, next_probe = machine.slowness(), machine.now() + PROBE_EVERY_S
            machine.sleep(rest := max(pause, PAUSES_PER_LOOK * took))
            quiet += (took + rest) / factor
    except BaseException as error:  # also of the time limit of pytest
        waited = f"waited {machine.now() - began:.1f} s, counted {quiet:.1f} s as quiet"
        error.add_note(f"last seen: {seen!r:.2000}; {waited}")
        raise
