"""The number of processor cores that this process may use."""

import math
import os
from pathlib import Path

from pipeline.system.cgroup import core_limit


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, at least 1: its affinity, or its container's quota.

    A quota of 1.5 cores counts as 2. If the quota were ignored, a container with 1.5 of 64 cores would start 64
    processes and hold as many images in memory. `root` is the folder that holds proc/ and sys/.

    This number limits how many tasks run at once. It never decides what a dataset or a batch holds. If a library has a
    limit of its own, the caller uses the smaller number.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = core_limit(root)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))
