"""Sources for the control groups that this process is in: their limits, what is used of them, and throttling.

The host's figures call a container idle that has used up its share. Limits are read once, when monitoring begins.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.monitor.rates import Rates
from pipeline.monitor.sampler import Source
from pipeline.system.cgroup import Group, memory_groups, processor_groups, tightest

_log = logging.getLogger(__name__)


def sources(root: Path = Path("/"), now: Callable[[], float] = time.monotonic) -> dict[str, Source]:
    """What is told of this process's groups; of what is not, one line says so. `root` holds proc/ and sys/."""
    found: dict[str, Source] = {}
    if processors := tightest(processor_groups(root)):
        found["cgroup processors"] = Processors(*processors, now)
    if memory := tightest(memory_groups(root)):
        found["cgroup memory"] = Memory(*memory)
    for name in ("cgroup processors", "cgroup memory"):
        if name not in found:
            _log.info("monitor: %s is left out: no control group tells of it", name)
    return found


class Processors:
    """Cores used, of the limit where there is one, and the share of the kernel's periods in which it was reached.

    Gives rates since the last call, and so nothing at the first.
    """

    def __init__(self, group: Group, limit: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self._rates, self._limit = Rates(group.use, now), limit

    def __call__(self) -> dict[str, float]:
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
            "cgroup/cpu_throttled_pct": 100 * throttled / periods if periods else 0.0,  # no period: it stood idle
        }


class Memory:
    """Bytes in use that cannot be given back at will, and the limit where there is one."""

    def __init__(self, group: Group, limit: float | None) -> None:
        self._group, self._limit = group, limit

    def __call__(self) -> dict[str, float]:
        used = self._group.use()["used"]
        metrics = {"cgroup/mem_used_bytes": used}
        if self._limit is None:
            return metrics
        return metrics | {"cgroup/mem_limit_bytes": self._limit, "cgroup/mem_pct": 100 * used / self._limit}
