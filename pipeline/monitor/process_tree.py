"""Sources for a process and for the processes that it started."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pipeline.monitor.sampler import Rates, Source
from pipeline.system.kernel import File, number

_log = logging.getLogger(__name__)

REFRESH_S = 5.0
"""Descendants are listed at this interval. A walk through them costs as much as a whole sample."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def sources(pid: int, root: Path = Path("/"), now: Callable[[], float] = time.monotonic) -> dict[str, Source]:
    """Return the sources of a process, and of its children with all their descendants. `root` has proc/."""
    proc = root / "proc"
    available: dict[str, Source] = {
        "process": Process(File(proc / f"{pid}/stat"), now),
        "reading of the process": Rates(partial(read_bytes, File(proc / f"{pid}/io")), now),
    }
    if (proc / f"{pid}/task/{pid}/children").exists():
        available["children"] = Children(proc, pid, now)
    else:
        _log.info("monitor: children of the process are left out: this kernel does not list them")
    return available


class Use(NamedTuple):
    """Use of a process so far: seconds of processors, memory, pages and bytes that had to be read from a disk."""

    cpu_s: float
    rss_bytes: int
    major_faults: int
    read_bytes: int = 0


def read_use(stat: File, io: File | None = None) -> Use:
    """Read the use of a process from /proc/<pid>/stat and /proc/<pid>/io. Raises OSError if the process has ended."""
    fields = stat.read().rpartition(b")")[2].split()  # The name of the process, before that, may have any characters.
    use = Use((int(fields[11]) + int(fields[12])) * _TICK_S, int(fields[21]) * _PAGE_BYTES, int(fields[9]))
    # A child of another user hides the bytes that it reads, and some kernels do not count them. The rest is known.
    with suppress(PermissionError, FileNotFoundError):
        return use._replace(read_bytes=number(io.read(), "read_bytes")) if io else use
    return use


def read_bytes(io: File) -> dict[str, float]:
    """Return the bytes that a process has read from disks. The page cache and storage over the network do not count."""
    return {"proc/read_Bps": number(io.read(), "read_bytes")}


class Process:
    """A source of one process: cores in percent (200 is two cores), major page faults a second, and resident memory.

    The first two are rates since the last call, so the first call does not give them.
    """

    def __init__(self, stat: File, now: Callable[[], float] = time.monotonic) -> None:
        self._stat = stat
        self._rates = Rates(self._counters, now)

    def __call__(self) -> dict[str, float]:
        """Read the use. Raises OSError if the process has ended."""
        return {**self._rates(), "proc/rss_bytes": float(self._last.rss_bytes)}

    def _counters(self) -> dict[str, float]:
        self._last = read_use(self._stat)
        return {"proc/cpu_pct": 100 * self._last.cpu_s, "proc/major_faults_per_s": float(self._last.major_faults)}


class Children:
    """A source of all descendants of a process together. They are listed every 5 s.

    A process that lives shorter may be missed. Memory that several processes share counts for each of them. Bytes that
    a child has read count for its parent, too, when the parent has waited for its end.
    """

    def __init__(self, proc: Path, pid: int, now: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._pid, self._now = proc, pid, now
        self._before: tuple[float, Mapping[int, Use]] | None = None
        self._files: Mapping[int, tuple[File, File]] = {}
        self._due = now()

    def __call__(self) -> dict[str, float]:
        """Read the use of all of them, and list them again if that is due."""
        now = self._now()
        if now >= self._due:
            self._files = {
                pid: self._files.get(pid) or (File(self._proc / f"{pid}/stat"), File(self._proc / f"{pid}/io"))
                for pid in descendants(self._proc, self._pid)
            }
            self._due = now + REFRESH_S
        uses = {}
        for pid, files in self._files.items():
            with suppress(OSError):  # The process has ended.
                uses[pid] = read_use(*files)
        self._files = {pid: self._files[pid] for pid in uses}
        rss_bytes = float(sum(each.rss_bytes for each in uses.values()))
        metrics = {"proc/children": float(len(uses)), "proc/children_rss_bytes": rss_bytes}
        before, self._before = self._before, (now, uses)
        if before is None or now <= before[0]:
            return metrics
        # Only processes of both readings: the time of a process before it was found is no use of this interval.
        known = [(use, uses[pid]) for pid, use in before[1].items() if pid in uses]

        def rate(counter: str) -> float:
            grown: float = sum(getattr(after, counter) - getattr(since, counter) for since, after in known)
            return max(0.0, grown / (now - before[0]))

        return {
            "proc/children_cpu_pct": 100 * rate("cpu_s"),
            "proc/children_read_Bps": rate("read_bytes"),
            "proc/children_major_faults_per_s": rate("major_faults"),
            **metrics,
        }


def descendants(proc: Path, pid: int) -> Iterator[int]:
    """Yield the processes that one has started, and those that they have started.

    The kernel lists them for each thread. So only a few of a machine's thousand processes are read.
    """
    children: list[int] = []
    with suppress(OSError):  # The process has ended.
        for thread in (proc / f"{pid}/task").iterdir():
            with suppress(OSError):  # The thread has ended.
                children += map(int, (thread / "children").read_bytes().split())
    for child in children:
        yield child
        yield from descendants(proc, child)
