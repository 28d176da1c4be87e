"""The memory that this process may still take."""

from pathlib import Path

import psutil

from pipeline.system.cgroup import memory_left


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that are free on this host, or within the limit of this container if that is less.

    With the figures of the host alone, a container could take so much memory that it is killed. `root` is the folder
    that holds proc/ and sys/.
    """
    free, left = psutil.virtual_memory().available, memory_left(root)
    return free if left is None else min(free, int(left))
