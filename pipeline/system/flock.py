"""Locks of the kernel on files. It releases them when their process ends, however it ends."""

import fcntl


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file without waiting. Return whether this was possible. Closing the file releases the lock."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
