"""Opening files that others may have made."""

import os


def open_at_once(path: str, flags: int) -> int:
    """Open a file as the `opener` of `open`. It never waits, as it would for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)
