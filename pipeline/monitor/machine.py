"""Sources for the host and this process, from the counters of the kernel."""

import os
import time
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pipeline.monitor import cgroup, process_tree, threads
from pipeline.monitor.sampler import Rates, Source
from pipeline.system.kernel import File, number

SECTOR_BYTES = 512
"""The unit of the counters of disks, whatever sectors a disk has."""
PRESSURES = {"cpu": ("some",), "io": ("some", "full"), "memory": ("some", "full")}
"""Kinds by resource. "full" means that all tasks wait, which does not happen for cores on a whole host."""


def sources(root: Path = Path("/"), now: Callable[[], float] = time.monotonic) -> dict[str, Source]:
    """Return all sources of this machine by name. `root` has proc/ and sys/."""
    proc = root / "proc"
    pressures = {resource: File(proc / "pressure" / resource) for resource in PRESSURES}
    return {
        "processors": Processors(File(proc / "stat")),
        "load": load,
        "memory": partial(memory, File(proc / "meminfo")),
        "disks": Disks(root / "sys/block", now),
        "network": Rates(partial(network_counters, File(proc / "net/dev"), with_device(root / "sys/class/net")), now),
        "pressure": Rates(partial(pressure_counters, pressures), now),
        **cgroup.sources(root, now),
        **process_tree.sources(os.getpid(), root, now),
        "threads": threads.Threads(proc, os.getpid(), now),
        "cores": cores,
    }


def cores() -> dict[str, float]:
    """Return the number of cores of this machine, and how many of them this process may run on."""
    return {"sys/cores": float(os.cpu_count() or 1), "proc/cores": float(len(os.sched_getaffinity(0)))}


class Times(NamedTuple):
    """Time of one core since boot, in ticks: all, idle, and idle while a task waited for storage."""

    all: int
    idle: int
    iowait: int


class Processors:
    """A source of the use of all cores, the use of the busiest core, and the wait for storage, in percent."""

    def __init__(self, stat: File) -> None:
        self._stat = stat
        self._before: Mapping[bytes, Times] = {}

    def __call__(self) -> dict[str, float]:
        """Return the use since the last call."""
        before, self._before = self._before, core_times(self._stat.read())
        grown = [_grown(before[core], times) for core, times in self._before.items() if core in before]
        # A core without a tick since the last call has no use to compute.
        grown = [each for each in grown if each.all > 0]
        if not grown:
            return {}
        busy = [100 * (each.all - each.idle - each.iowait) / each.all for each in grown]
        return {
            "sys/cpu_pct": sum(busy) / len(busy),
            "sys/cpu_max_core_pct": max(busy),
            "sys/cpu_iowait_pct": sum(100 * each.iowait / each.all for each in grown) / len(grown),
        }


def core_times(stat: bytes) -> dict[bytes, Times]:
    """Return times by the name of the core, from lines such as `cpu0 user nice system idle iowait irq softirq ...`."""
    # Only the lines of cores come before `intr`.
    rows = (line.split() for line in stat[: stat.find(b"\nintr")].splitlines()[1:])  # The first line is for all cores.
    times = {row[0]: list(map(int, row[1:9])) for row in rows}  # The guests, at the end, are in user already.
    return {core: Times(sum(ticks), ticks[3], ticks[4]) for core, ticks in times.items()}


def _grown(before: Times, after: Times) -> Times:
    """Return the ticks between two times. The kernel may take back a tick of idleness, so differences stop at zero."""
    idle, iowait = max(0, after.idle - before.idle), max(0, after.iowait - before.iowait)
    return Times(max(after.all - before.all, idle + iowait), idle, iowait)


def load() -> dict[str, float]:
    """Return how many tasks ran, or waited for a core or for storage, on average over a minute."""
    return {"sys/load_1min": os.getloadavg()[0]}


def memory(meminfo: File) -> dict[str, float]:
    """Return the memory in use on the host, without caches that the kernel can free."""
    content = meminfo.read()
    total, available = (1024 * number(content, name) for name in ("MemTotal", "MemAvailable"))
    return {"sys/mem_used_bytes": float(total - available), "sys/mem_pct": 100 * (total - available) / total}


class Disks:
    """A source of the bytes a second read and written on all disks, and of the use of the busiest disk, in percent.

    Only physical disks count, and not what is built upon them (partitions, volumes, RAID), so that no byte counts
    twice. Storage over the network does not count. Each disk has a file of its own to read, because /proc/diskstats
    also lists all loops, partitions and RAM disks.
    """

    def __init__(self, block: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._stats = {name: File(block / name / "stat") for name in with_device(block)}
        self._rates = Rates(self._counters, now)

    def __call__(self) -> dict[str, float]:
        """Return rates since the last call. Raises OSError if no disk is visible, as in some containers."""
        rates = self._rates()
        busy = [min(100.0, rates.pop(name)) for name in list(rates) if name.startswith("busy ")]
        return {**rates, "sys/disk_busy_pct": max(busy)} if busy else rates

    def _counters(self) -> dict[str, float]:
        # reads, merged, sectors read, ms, writes, merged, sectors written, ms, at work, ms busy ...
        rows: dict[str, list[bytes]] = {}
        for name, file in self._stats.items():
            with suppress(OSError):  # The disk was removed.
                if row := file.read().split():
                    rows[name] = row
        if not rows:
            raise OSError("this machine shows no disks")
        # Milliseconds over ten, so that its growth in a second is in percent.
        busy = {f"busy {name}": int(row[9]) / 10 for name, row in rows.items()}
        read, written = (SECTOR_BYTES * sum(int(row[column]) for row in rows.values()) for column in (2, 6))
        return {"sys/disk_read_Bps": read, "sys/disk_write_Bps": written, **busy}


def network_counters(dev: File, devices: Set[str]) -> dict[str, float]:
    """Return the bytes that these devices have received and sent since boot; of all but the loopback if none is named.

    A container sees no physical device. A host has bridges and tunnels upon its devices, which would count twice.
    """
    rows = [line.replace(":", " ").split() for line in dev.read().decode().splitlines()[2:]]
    shown = [row for row in rows if (row[0] in devices if devices else row[0] != "lo")]
    received, sent = (sum(int(row[column]) for row in shown) for column in (1, 9))
    return {"sys/net_recv_Bps": received, "sys/net_sent_Bps": sent}


def pressure_counters(files: Mapping[str, File]) -> dict[str, float]:
    """Return how long some or all tasks were stalled on a resource since boot, so that the growth in a second is in %.

    The kernel's own averages are over ten seconds and more. Raises OSError if the kernel has no such counters.
    """
    counters: dict[str, float] = {}
    for resource, file in files.items():
        for line in file.read().decode().splitlines():  # some avg10=0.00 avg60=0.00 avg300=0.00 total=microseconds
            kind, *_, total = line.split()
            if kind in PRESSURES[resource]:
                counters[f"pressure/{resource}_{kind}_pct"] = int(total.removeprefix("total=")) / 1e4
    return counters


def with_device(folder: Path) -> frozenset[str]:
    """Return the names in /sys/block or /sys/class/net that have a physical device."""
    return frozenset(path.parent.name for path in folder.glob("*/device"))
