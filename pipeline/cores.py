"""How many processor cores this process may use."""

import math
import os
from pathlib import Path

from pipeline.monitor.cgroup import core_limit


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, at least 1: its affinity, or its container's quota.

    A quota of 1.5 cores counts as 2. Without it, a container with 1.5 of 64 cores would start 64 processes and hold as
    many images in memory. `root` holds proc/ and sys/.

    Tasks that run at once are limited by this number; it never decides what a data set or a batch holds. Where a
    library has a limit of its own, the caller takes the smaller one.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = core_limit(root)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))
