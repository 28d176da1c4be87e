"""Threads that really run, wait for a core and sleep; and a kernel's tree where no thread can be made to."""

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.monitor.threads import INTERVAL_S, Threads
from tests.monitor.trees import Clock, grow

SECOND = 1_000_000_000
_SPIN = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"


def of(ran_s: float, waited_s: float) -> str:
    return f"{int(ran_s * SECOND)} {int(waited_s * SECOND)} 7\n"


def test_the_busiest_thread_counts_with_its_waiting(tmp_path: Path) -> None:
    clock = Clock()
    tree = "proc/10/task/{}/schedstat".format
    source = Threads(grow(tmp_path, {tree(10): of(5, 1), tree(11): of(1, 0)}) / "proc", 10, clock)
    assert all(math.isnan(value) for value in source().values())
    clock.now += 2
    grow(tmp_path, {tree(10): of(5.5, 2), tree(11): of(1.2, 0), tree(12): of(9, 9)})  # the last one is new
    assert source() == pytest.approx({"proc/busiest_thread_pct": 75.0, "proc/core_wait_pct": 50.0})


def test_it_measures_once_a_second(tmp_path: Path) -> None:
    clock = Clock()
    grow(tmp_path, {"proc/10/task/10/schedstat": of(5, 1)})
    source = Threads(tmp_path / "proc", 10, clock)
    values = []
    for _ in range(16):
        values.append(source()["proc/core_wait_pct"])
        clock.now += INTERVAL_S / 5
    assert [not math.isnan(value) for value in values] == [False, *([False] * 4 + [True]) * 3]


def test_a_reader_that_waits_for_a_core_itself_measures_as_often(tmp_path: Path) -> None:
    clock = Clock()

    def slow() -> float:
        clock.now += INTERVAL_S / 2  # whenever it looks at the clock, it has waited so long
        return clock.now

    source = Threads(grow(tmp_path, {"proc/10/task/10/schedstat": of(5, 1)}) / "proc", 10, slow)
    assert [math.isnan(source()["proc/core_wait_pct"]) for _ in range(5)] == [True, True, False, True, False]


def test_a_kernel_that_does_not_count_says_so(tmp_path: Path) -> None:
    (tmp_path / "proc/10/task/10").mkdir(parents=True)
    with pytest.raises(OSError, match="does not count how long a thread waits"):
        Threads(tmp_path / "proc", 10)()


def test_a_thread_that_shares_a_core_with_another_program_waits_for_it() -> None:
    """This process and another one on the same core: each gets a part of it, and waits for the other part."""
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})  # of this thread: those that it starts inherit it
    ended = threading.Event()
    try:
        other = subprocess.Popen([sys.executable, "-c", _SPIN])
        thread = threading.Thread(target=_spin, args=(ended,))
        thread.start()
        source = Threads(Path("/proc"), os.getpid())
        metrics = source()
        while math.isnan(metrics["proc/core_wait_pct"]):  # A process of many threads is measured less often.
            time.sleep(0.5)
            metrics = source()
    finally:
        ended.set()
        os.sched_setaffinity(0, before)
        other.kill()
        other.wait()
        thread.join()
    # The other process is a child: it is one of "all that it has started". Two threads want one core.
    assert metrics["proc/busiest_thread_pct"] > 60
    assert metrics["proc/core_wait_pct"] > 50


def _spin(ended: threading.Event) -> None:
    while not ended.is_set():
        sum(range(1000))
