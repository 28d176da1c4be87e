"""Thread metrics from real threads, and from generated files of the kernel."""

import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.monitor.threads import INTERVAL_S, Threads
from tests.monitor.trees import Clock, grow
from tests.waiting import until

SECOND = 1_000_000_000
_SPIN = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"


def thread(number: int, ran_s: float, waited_s: float, state: str = "S") -> dict[str, str]:
    """Return the files of a thread of process 10."""
    folder = f"proc/10/task/{number}"
    times = f"{int(ran_s * SECOND)} {int(waited_s * SECOND)} 7\n"
    return {f"{folder}/schedstat": times, f"{folder}/stat": f"{number} (a D) name) {state} 1 1 1 0\n"}


def test_the_busiest_thread_includes_its_wait_for_a_core(tmp_path: Path) -> None:
    clock = Clock()
    source = Threads(grow(tmp_path, thread(10, 5, 1) | thread(11, 1, 0)) / "proc", 10, clock)
    assert all(math.isnan(value) for value in source().values())
    clock.now += 2
    grow(tmp_path, thread(10, 5.5, 2) | thread(11, 1.2, 0) | thread(12, 9, 9))  # thread 12 is new
    expected = {"proc/busiest_thread_pct": 75.0, "proc/core_wait_pct": 50.0, "proc/disk_wait_pct": math.nan}
    assert source() == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("states", "mean"),
    [
        (["SS"] * 10, 0.0),
        (["DS"] * 10, 100.0),
        (["DS", "SD"] * 5, 50.0),  # two threads wait in turn
        (["DS"] * 4 + ["SS"], 0.0),  # at the fifth measurement, which is the first one with a value
        (["SD"] + ["DS"] * 15, 75.0),  # the second thread used the disk, until ten measurements ago
    ],
)
def test_the_part_of_the_readers_that_waits_for_a_disk_is_measured(
    tmp_path: Path, states: list[str], mean: float
) -> None:
    clock, seen = Clock(), []
    source = Threads(tmp_path / "proc", 10, clock)
    for first, second in states:
        grow(tmp_path, thread(10, 0, 0, first) | thread(11, 0, 0, second))
        seen.append(source()["proc/disk_wait_pct"])
        clock.now += INTERVAL_S
    assert all(math.isnan(each) for each in seen[:4])
    assert sum(seen[4:]) / len(seen[4:]) == pytest.approx(mean)


def test_threads_are_measured_once_per_second(tmp_path: Path) -> None:
    clock = Clock()
    grow(tmp_path, thread(10, 5, 1))
    source = Threads(tmp_path / "proc", 10, clock)
    values = []
    for _ in range(16):
        values.append(source()["proc/core_wait_pct"])
        clock.now += INTERVAL_S / 5
    assert [not math.isnan(value) for value in values] == [False, *([False] * 4 + [True]) * 3]


def test_a_slow_reader_measures_at_the_same_interval(tmp_path: Path) -> None:
    clock = Clock()

    def slow() -> float:
        clock.now += INTERVAL_S / 2  # each reading of the clock is late by this time
        return clock.now

    source = Threads(grow(tmp_path, thread(10, 5, 1)) / "proc", 10, slow)
    assert [math.isnan(source()["proc/core_wait_pct"]) for _ in range(5)] == [True, True, False, True, False]


def test_a_kernel_without_thread_statistics_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "proc/10/task/10").mkdir(parents=True)
    with pytest.raises(OSError, match="does not count how long a thread waits"):
        Threads(tmp_path / "proc", 10)()


def test_a_thread_that_shares_its_core_waits_for_it() -> None:
    """This process and another process share a core. Each one runs part of the time and waits the rest."""
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})  # for this thread; new threads and processes inherit it
    ended = threading.Event()
    try:
        other = subprocess.Popen([sys.executable, "-c", _SPIN])
        thread = threading.Thread(target=_spin, args=(ended,))
        thread.start()
        source = Threads(Path("/proc"), os.getpid())
        # A process with many threads is measured less often.
        metrics = until(source, pause=0.5, is_expected=lambda values: not math.isnan(values["proc/core_wait_pct"]))
    finally:
        ended.set()
        os.sched_setaffinity(0, before)
        other.kill()
        other.wait()
        thread.join()
    # The other process is a child, so it is included. Two threads compete for one core.
    assert metrics["proc/busiest_thread_pct"] > 60
    assert metrics["proc/core_wait_pct"] > 50


def _spin(ended: threading.Event) -> None:
    while not ended.is_set():
        sum(range(1000))
