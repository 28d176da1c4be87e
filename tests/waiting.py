"""For what another thread or process does in its own time."""

import time
from collections.abc import Callable

PAUSES_PER_LOOK = 4
"""The pause after a look takes at least this many times as long as the look."""


def until(condition: Callable[[], object], seconds: float = 180, pause: float = 0.02) -> None:
    """Wait for a condition, which is checked after each pause. Fails the test if it does not come in some seconds.

    A longer look is followed by a longer pause, because the processes that the test waits for need the processor.
    """
    deadline = (began := time.monotonic()) + seconds
    while not condition():
        looked = time.monotonic()
        assert looked < deadline, "it never came"
        time.sleep(max(pause, PAUSES_PER_LOOK * (looked - began)))
        began = time.monotonic()
