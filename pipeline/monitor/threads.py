"""A source for the threads of a process: the busiest one, and how long they wait for a core or for a disk.

The use of all cores says who has them, but not who lacks them. The kernel counts for each thread how long it ran and
how long it was ready to run without a core (`schedstat` in Documentation/scheduler/sched-stats.rst of Linux). It counts
how long a thread waited for a disk only if an administrator turns that on (`task_delayacct`), so the state of each
thread is read instead.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.monitor import process_tree

INTERVAL_S = 1.0
MAX_SHARE = 0.004
"""Reading may take this share of one core. The interval grows with the number of threads to stay within it."""
MEASUREMENTS, MIN_MEASUREMENTS = 10, 5
"""A thread uses a disk if it waited for one in the last MEASUREMENTS. At the beginning, MIN_MEASUREMENTS are enough."""
_NS = 1e-9
_NAMES = ("proc/busiest_thread_pct", "proc/core_wait_pct", "proc/disk_wait_pct")
_DISK_WAIT = b"D"
"""State of a thread that waits for a disk or a network file system, and that no signal wakes."""


class Times(NamedTuple):
    """Seconds that a thread ran, and that it waited for a core, since it began; and whether it waits for a disk now."""

    ran_s: float
    waited_s: float
    is_on_disk: bool


class Threads:
    """Measures the threads of a process and of all that it has started, about once a second.

    A sample has `proc/busiest_thread_pct`, the percent of the time in which the busiest thread ran or was ready to run,
    and `proc/core_wait_pct`, which is 100 if one thread waits for a core all the time and 200 if two do.
    `proc/disk_wait_pct` is the percent of the threads that use a disk which wait for it now: many threads that wait now
    and then are no bottleneck. All are NaN in the samples between two measurements. Raises OSError if the kernel does
    not count the waiting.
    """

    def __init__(self, proc: Path, pid: int, now: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._pid, self._now = proc, pid, now
        self._before: tuple[float, Mapping[str, Times]] | None = None
        self._pids = [pid]
        self._on_disk: deque[set[str]] = deque(maxlen=MEASUREMENTS)
        """Threads that waited for a disk in each of the last measurements."""
        self._listing_due = self._due = now()

    def __call__(self) -> dict[str, float]:
        """Measure if a measurement is due."""
        now = self._now()
        if self._before and now < self._due:
            return dict.fromkeys(_NAMES, math.nan)
        if now >= self._listing_due:
            self._pids = [self._pid, *process_tree.descendants(self._proc, self._pid)]
            self._listing_due = now + process_tree.REFRESH_S
        cpu_s = time.thread_time()  # Not the wall clock, which also counts the wait for a core.
        times = dict(self._read())
        if not times:
            raise OSError("this kernel does not count how long a thread waits for a core")
        self._due = now + max(INTERVAL_S, (time.thread_time() - cpu_s) / MAX_SHARE)
        before, self._before = self._before, (now, times)
        self._on_disk.append({thread for thread, each in times.items() if each.is_on_disk})
        if before is None or now <= before[0]:
            return dict.fromkeys(_NAMES, math.nan)
        seconds = now - before[0]
        # A new thread counts from the next measurement on.
        known = [(before[1][thread], each) for thread, each in times.items() if thread in before[1]]
        # With the waiting: beside other programs, a thread that is busy all the time gets a part of a core.
        busiest_s = max((sum(each[:2]) - sum(since[:2]) for since, each in known), default=0.0)
        waited_s = sum(each.waited_s - since.waited_s for since, each in known)
        values = 100 * busiest_s / seconds, 100 * waited_s / seconds, self._disk_wait_pct()
        return dict(zip(_NAMES, values, strict=True))

    def _disk_wait_pct(self) -> float:
        if len(self._on_disk) < MIN_MEASUREMENTS:
            return math.nan
        return 100 * len(self._on_disk[-1]) / max(1, len(set[str]().union(*self._on_disk)))

    def _read(self) -> Iterator[tuple[str, Times]]:
        for pid in self._pids:
            with suppress(OSError):  # The process has ended.
                for thread in (self._proc / f"{pid}/task").iterdir():
                    with suppress(OSError):  # The thread has ended.
                        ran, waited, _ = (thread / "schedstat").read_bytes().split()
                        # After the name, which may have any characters.
                        state = (thread / "stat").read_bytes().rpartition(b")")[2][1:2]
                        yield f"{pid}/{thread.name}", Times(int(ran) * _NS, int(waited) * _NS, state == _DISK_WAIT)
