"""For what another thread or process does in its own time."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 90, pause: float = 0.02) -> None:
    """Wait for a condition, looked at again after each pause. Fails the test where it does not come in some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(pause)
