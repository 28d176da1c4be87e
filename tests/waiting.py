"""Waiting for a condition that another thread or process fulfills."""

import time
from collections.abc import Callable

PAUSES_PER_LOOK = 4
"""Minimum ratio of the pause after a check to the duration of the check."""


def until(condition: Callable[[], object], seconds: float = 180, pause: float = 0.02) -> None:
    """Wait for a condition, which is checked after each pause. Fail the test if it is not true within `seconds`.

    A slow check is followed by a longer pause, because the processes that the test waits for need the processor.
    """
    deadline = (began := time.monotonic()) + seconds
    while not condition():
        looked = time.monotonic()
        assert looked < deadline, f"the condition was not true within {seconds} seconds"
        time.sleep(max(pause, PAUSES_PER_LOOK * (looked - began)))
        began = time.monotonic()
