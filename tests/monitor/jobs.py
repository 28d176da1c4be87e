"""Trainings without a model: steps that only sleep, and inputs with different bottlenecks."""

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from benchmarks.harness.machine import OtherLoad
from pipeline.monitor import StepClock, open_monitor, read
from pipeline.monitor.verdict import Verdict, diagnose
from tests.waiting import simulated_cpu_work, simulated_work

STEP_S = 0.02
DISTURBED_CORES = 0.35
"""From this number of cores on, which other programs keep busy, a job has other limits than the test gave it."""
DECODED_AHEAD = 4
"""Maximum number of decoded batches that wait for a step."""
Produce = Callable[[int], None]
"""Produces the batch with a given number."""


@dataclass(frozen=True)
class Batches:
    """Batches that are produced ahead of the steps."""

    take: Callable[[], int]
    count_ready: Callable[[], int]
    capacity: int

    def ready_pct(self) -> float:
        return 100 * min(1.0, self.count_ready() / self.capacity)


def job(folder: Path, batches: Batches, steps: int = 150, host_s: float = 0.0, step_s: float = STEP_S) -> Verdict:
    """Run some steps with a record in `folder`, and return the verdict."""
    clock = StepClock()
    with open_monitor(folder) as monitor:
        clock.pause()
        for step in range(1, steps + 1):
            clock.add_host()
            ready_pct = batches.ready_pct()
            batches.take()
            clock.add_wait()
            begun = clock.begin()
            simulated_work(step_s)
            times = clock.end(begun, time.perf_counter())
            simulated_work(host_s)
            monitor.batch(step=step, epoch=1, times=times, examples=1, ready_pct=ready_pct)
    return diagnose(read(folder / "record", "batches"), read(folder / "record", "samples"))


@contextmanager
def skipped_if_disturbed() -> Iterator[None]:
    """Skip a test that fails beside other programs, because they make pauses end late.

    Steps of 20 ms then took 27 ms, so that the input was no longer the slower one. The load of other programs does not
    come from the record: a wrong number there would hide a wrong verdict.
    """
    others = OtherLoad()
    try:
        with others:
            yield
    except AssertionError as error:
        if others.cores > DISTURBED_CORES:
            pytest.skip(f"{others.sentence()} {error}")
        raise


@contextmanager
def ahead(produce: Produce, buffer: int = 4) -> Iterator[Batches]:
    """Yield batches that a thread produces, with at most `buffer` batches ready."""
    ready: queue.Queue[int] = queue.Queue(buffer)
    ended = threading.Event()

    def run() -> None:
        for number in count():
            produce(number)
            while not ended.is_set():
                try:
                    ready.put(number, timeout=0.05)
                    break
                except queue.Full:
                    continue
            if ended.is_set():
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield Batches(ready.get, ready.qsize, buffer)
    finally:
        ended.set()
        thread.join()


@contextmanager
def decoded(seconds: float) -> Iterator[Batches]:
    """Yield batches that need some seconds of a core each, produced on all cores."""
    context = multiprocessing.get_context("spawn")
    ready, ended = context.Queue(DECODED_AHEAD), context.Event()
    workers = [context.Process(target=_decode, args=(seconds, ready, ended)) for _ in range(os.cpu_count() or 1)]
    for worker in workers:
        worker.start()
    try:
        yield Batches(ready.get, ready.qsize, DECODED_AHEAD)
    finally:
        ended.set()
        for worker in workers:
            worker.join()
        ready.close()


def _decode(seconds: float, ready: "multiprocessing.Queue[int]", ended: threading.Event) -> None:
    ready.cancel_join_thread()
    while not ended.is_set():
        simulated_cpu_work(seconds)
        while not ended.is_set():
            try:
                ready.put(1, timeout=0.05)
                break
            except queue.Full:
                continue


def every(seconds: float) -> Produce:
    """Return a producer that waits some seconds per batch, without using a core."""
    return lambda _: simulated_work(seconds)


def pausing(seconds: float, after: int) -> Produce:
    """Return a producer that pauses for some seconds after every `after` batches."""
    return lambda number: simulated_work(seconds if number % after == after - 1 else 0.0)
