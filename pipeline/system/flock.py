"""Locks of the kernel on files. It releases them when their process ends, however it ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.system.open_files import open_at_once


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file without waiting. Return whether this was possible. Closing the file releases the lock."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file for the block, as soon as no other process has it locked. The file is made if it is missing."""
    # The file stays: if it were removed, two processes could hold locks of different files with this name.
    with open(path, "wb", opener=open_at_once) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
