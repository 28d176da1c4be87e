"""Sources for the control groups of this process: their limits, their use, and throttling.

The figures of the host show a container as idle that has used up its share. Limits are read once, when monitoring
begins.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipeline.monitor.sampler import Rates, Source
from pipeline.system.cgroup import Group, memory_groups, processor_groups, tightest

_log = logging.getLogger(__name__)


def sources(root: Path = Path("/"), now: Callable[[], float] = time.monotonic) -> dict[str, Source]:
    """Return the sources that this process's groups have. A missing one is logged. `root` has proc/ and sys/."""
    available: dict[str, Source] = {}
    if processors := tightest(processor_groups(root)):
        available["cgroup processors"] = Processors(*processors, now)
    if memory := tightest(memory_groups(root)):
        available["cgroup memory"] = partial(memory_use, *memory)
    for name in ("cgroup processors", "cgroup memory"):
        if name not in available:
            _log.info("monitor: %s is left out: no control group reports it", name)
    return available


class Processors:
    """A source of the cores in use, and, if there is a limit, of how much of it is used and how often it throttles.

    These are rates since the last call, so the first call gives none.
    """

    def __init__(self, group: Group, limit: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self._rates, self._limit = Rates(group.use, now), limit

    def __call__(self) -> dict[str, float]:
        """Return the use of cores, in cores and in percent of the limit, and the percent of throttled periods."""
        rates = self._rates()
        if not rates:
            return {}
        metrics = {"cgroup/cpu_used_cores": rates["used"]} if "used" in rates else {}
        if self._limit is None:
            return metrics
        if "used" in rates:
            metrics["cgroup/cpu_pct"] = 100 * rates["used"] / self._limit
        periods, throttled = rates.get("periods", 0.0), rates.get("throttled", 0.0)
        return metrics | {
            "cgroup/cpu_limit_cores": self._limit,
            "cgroup/cpu_throttled_pct": 100 * throttled / periods if periods else 0.0,  # Without a period, it was idle.
        }


def memory_use(group: Group, limit: float | None) -> dict[str, float]:
    """Return the bytes in use, without caches that the kernel can free, and the limit if there is one."""
    used = group.use()["used"]
    metrics = {"cgroup/mem_used_bytes": used}
    if limit is None:
        return metrics
    return metrics | {"cgroup/mem_limit_bytes": limit, "cgroup/mem_pct": 100 * used / limit}
