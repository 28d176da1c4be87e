"""How much memory this process may still take."""

from pathlib import Path

import psutil

from pipeline.system.cgroup import memory_left


def available_memory(root: Path = Path("/")) -> int:
    """Return bytes that are free on this host, or within the limit of this container where that is less.

    The host's figures alone would promise a container what it is killed for taking. `root` holds proc/ and sys/.
    """
    free, left = psutil.virtual_memory().available, memory_left(root)
    return free if left is None else min(free, int(left))
