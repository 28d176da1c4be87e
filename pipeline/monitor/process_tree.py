"""Sources for a process and for those that it started."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pipeline.monitor.rates import Rates
from pipeline.monitor.sampler import Source
from pipeline.system.kernel import File, number

_log = logging.getLogger(__name__)

REFRESH_S = 5.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def sources(pid: int, root: Path = Path("/"), now: Callable[[], float] = time.monotonic) -> dict[str, Source]:
    """What is told of a process with its threads, and of its children together with theirs. `root` holds proc/."""
    proc = root / "proc"
    found: dict[str, Source] = {
        "process": Process(File(proc / f"{pid}/stat"), now),
        "reading of the process": Rates(partial(read_bytes, File(proc / f"{pid}/io")), now),
    }
    if (proc / f"{pid}/task/{pid}/children").exists():
        found["children"] = Children(proc, pid, now)
    else:
        _log.info("monitor: children of the process are left out: this kernel does not list them")
    return found


class Use(NamedTuple):
    """What a process has used so far: seconds of processors, memory, and pages that the disk had to bring back."""

    cpu_s: float
    rss_bytes: int
    major_faults: int


def use(stat: File) -> Use:
    """Read it from a process's /proc/<pid>/stat. Raises OSError where the process has ended."""
    told = stat.read().rpartition(b")")[2].split()  # its name, before, may hold anything
    return Use((int(told[11]) + int(told[12])) * _TICK_S, int(told[21]) * _PAGE, int(told[9]))


def read_bytes(io: File) -> dict[str, float]:
    """Bytes that it read from storage so far: not what came out of memory, nor from storage over the network."""
    return {"proc/read_Bps": number(io.read(), "read_bytes")}


class Process:
    """Use of one process: cores in percent (200 is two cores), major page faults a second, and resident memory.

    The first two come from the second call on.
    """

    def __init__(self, stat: File, now: Callable[[], float] = time.monotonic) -> None:
        self._stat, self._now = stat, now
        self._busy = Busy()
        self._faults = Rates(lambda: {"proc/major_faults_per_s": float(self._last.major_faults)}, now)

    def __call__(self) -> dict[str, float]:
        now, self._last = self._now(), use(self._stat)
        busy = self._busy.of("proc/cpu_pct", now, {0: self._last})
        return {**busy, **self._faults(), "proc/rss_bytes": float(self._last.rss_bytes)}


class Children:
    """Use of all that a process has started and that they have started, together; the list is made every 5 s.

    One that lives for less may be missed. Memory that several share counts for each.
    """

    def __init__(self, proc: Path, pid: int, now: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._pid, self._now = proc, pid, now
        self._busy = Busy()
        self._files: Mapping[int, File] = {}
        self._due = now()

    def __call__(self) -> dict[str, float]:
        now = self._now()
        if now >= self._due:
            found = descendants(self._proc, self._pid)
            self._files = {pid: self._files.get(pid) or File(self._proc / f"{pid}/stat") for pid in found}
            self._due = now + REFRESH_S
        uses = {pid: told for pid, file in self._files.items() if (told := _use_or_none(file))}
        self._files = {pid: self._files[pid] for pid in uses}
        return {
            **self._busy.of("proc/children_cpu_pct", now, uses),
            "proc/children": float(len(uses)),
            "proc/children_rss_bytes": float(sum(each.rss_bytes for each in uses.values())),
        }


class Busy:
    """Cores in percent that processes used together since the last call. One that is new counts from the next call."""

    def __init__(self) -> None:
        self._before: tuple[float, Mapping[int, Use]] | None = None

    def of(self, name: str, now: float, uses: Mapping[int, Use]) -> dict[str, float]:
        """The metric of this name; nothing at the first call."""
        before, self._before = self._before, (now, uses)
        if before is None or now <= before[0]:
            return {}
        grown = sum(uses[pid].cpu_s - told.cpu_s for pid, told in before[1].items() if pid in uses)
        return {name: max(0.0, 100 * grown / (now - before[0]))}


def descendants(proc: Path, pid: int) -> Iterator[int]:
    """Processes that one has started, and that those have started.

    By the lists that the kernel keeps for each thread: of a machine with a thousand processes only a few are looked at.
    """
    for child in _started(proc, pid):
        yield child
        yield from descendants(proc, child)


def _started(proc: Path, pid: int) -> list[int]:
    try:
        threads = list((proc / f"{pid}/task").iterdir())
    except OSError:  # it has ended
        return []
    return [int(child) for thread in threads for child in _list_of(thread).split()]


def _list_of(thread: Path) -> bytes:
    try:
        return (thread / "children").read_bytes()
    except OSError:  # it has ended
        return b""


def _use_or_none(stat: File) -> Use | None:
    try:
        return use(stat)
    except OSError:  # it has ended
        return None
