"""The memory and the processor cores that this process may use, on its host and within its container."""

import math
import os
from pathlib import Path

from pipeline.system.cgroup import core_limits, limit_of, memory_groups


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that are free on this host, or within the limits of this process's groups if that is less.

    With the figures of the host alone, a container could take so much memory that it is killed. `root` is the folder
    that holds proc/ and sys/.
    """
    import psutil  # Only training, planning and the local engine ask for it.

    groups = memory_groups(root)
    left = [limit - group.use()["used"] for group in groups if (limit := limit_of(group)) is not None]
    return max(0, int(min([psutil.virtual_memory().available, *left])))


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, at least 1: its affinity, or its container's quota.

    A quota of 1.5 cores counts as 2. If the quota were ignored, a container with 1.5 of 64 cores would start 64
    processes and hold as many images in memory. `root` is the folder that holds proc/ and sys/.

    This number limits how many tasks run at once. It never decides what a dataset or a batch holds. If a library has a
    limit of its own, the caller uses the smaller number.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *map(math.ceil, core_limits(root))]))
