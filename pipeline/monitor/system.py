"""Sources for what psutil sees of the host and of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import psutil

from pipeline.monitor.sampler import Source


def sources() -> dict[str, Source]:
    """All sources of this machine by name; all are to be called from one thread (psutil keeps its state by thread)."""
    return {
        "processor": processor,
        "memory": memory,
        "disk": Rates(disk_counters),
        "network": Rates(network_counters),
        "process": process(psutil.Process()),
    }


def processor() -> dict[str, float]:
    """Use of all cores and of the busiest one since the last call, in percent. The first call reads 0."""
    cores = psutil.cpu_percent(percpu=True)
    return {"sys/cpu_pct": sum(cores) / len(cores), "sys/cpu_max_core_pct": max(cores)}


def memory() -> dict[str, float]:
    """Memory in use on the host."""
    use = psutil.virtual_memory()
    return {"sys/mem_used_bytes": float(use.total - use.available), "sys/mem_pct": use.percent}


def disk_counters() -> dict[str, float]:
    """Bytes read and written since boot. Raises OSError where the system counts none, as in some containers."""
    counters = psutil.disk_io_counters()
    if counters is None:
        raise OSError("this machine shows no disk counters")
    return {"sys/disk_read_Bps": counters.read_bytes, "sys/disk_write_Bps": counters.write_bytes}


def network_counters() -> dict[str, float]:
    """Bytes received and sent since boot."""
    counters = psutil.net_io_counters()
    return {"sys/net_recv_Bps": counters.bytes_recv, "sys/net_sent_Bps": counters.bytes_sent}


def process(of: psutil.Process) -> Source:
    """Use of one process: cores in percent (200 is two cores) and resident memory. The first call reads 0 percent."""
    return lambda: {"proc/cpu_pct": of.cpu_percent(), "proc/rss_bytes": float(of.memory_info().rss)}


class Rates:
    """Turns growing counters into rates a second since the last call. The first call gives nothing."""

    def __init__(self, counters: Source, now: Callable[[], float] = time.monotonic) -> None:
        self._counters, self._now = counters, now
        self._before: tuple[float, Mapping[str, float]] | None = None

    def __call__(self) -> dict[str, float]:
        before, (when, counts) = self._before, (self._now(), self._counters())
        self._before = when, counts
        if before is None or when <= before[0]:
            return {}
        # A counter that went back (an interface replaced, a disk taken out) has no rate this once.
        grown = {name: count - before[1][name] for name, count in counts.items() if count >= before[1][name]}
        return {name: growth / (when - before[0]) for name, growth in grown.items()}
