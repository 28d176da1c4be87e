"""The engine of this machine: one process for each core, or fewer if memory is short."""

import logging
import os
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Self

from pipeline.engines.calls import WorkersLost
from pipeline.engines.task import Outcome, Task
from pipeline.system.arrow import ONE_THREAD, never_import_pandas
from pipeline.system.environment import environment_with
from pipeline.system.process import start_worker
from pipeline.system.resources import available_memory, usable_cores
from pipeline.system.wording import counted, format_size

WORKER_ENVIRONMENT = {**ONE_THREAD, "MALLOC_ARENA_MAX": "1", "MIMALLOC_PURGE_DELAY": "1000"}
"""Environment of the processes. Their threads allocate memory in one place: see `share_one_arena`.

Arrow's allocator returns freed memory to the system after a second, and not after 10 ms. Otherwise each batch of rows
requests it again, which took a tenth of the CPU time.
"""
_log = logging.getLogger(__name__)


def outcomes(task: Task, places: Sequence[str]) -> Generator[Outcome]:
    """Call the task for each place, in several processes, which then end: see `Outcomes`."""
    with Workers() as workers:
        yield from workers.outcomes(task, places)


class Workers:
    """Processes of this machine. They wait for further calls, because the start of a process takes a second."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._context = _Context()
        self._processes = self._memory = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def outcomes(self, task: Task, places: Sequence[str], at_most: int | None = None) -> Generator[Outcome]:
        """Call the task for each place, in several processes, and in no more than `at_most`: see `Outcomes`.

        If a process is killed, the calls that are left shall be made with half as many processes.
        """
        pool = self._pool_of(task, min(len(places), at_most or len(places)))
        calls: list[Future[Outcome]] = []
        try:
            # The libraries read it when they are loaded, which may be before the pool calls any function.
            with environment_with(WORKER_ENVIRONMENT):
                for place in places:
                    calls.append(pool.submit(task.call, place))  # noqa: PERF401 - see the first `except`
            for call in as_completed(calls):
                yield call.result()
        except BrokenProcessPool as error:
            # The pool may have more, which had nothing to do.
            processes = min(self._processes, len(places))
            # Calls that ended before the kill, also if that came between two submissions: they need not be made again.
            ended = [call for call in calls if call.done() and not call.exception()]
            self._end()
            yield from (call.result() for call in ended)
            if processes == 1:
                # A single process makes the calls in their order.
                raise WorkersLost(f"worker processes for {places[len(ended)]}, one at a time,") from error
            _log.warning(
                "a worker process was killed, perhaps because memory ran out: going on with %s instead of %d",
                counted(processes // 2, "process", "processes"),
                processes,
            )
            raise WorkersLost("worker processes", partial(self.outcomes, at_most=processes // 2)) from error
        except BaseException:
            # The first error ends the others at once, although a call may take minutes. Each file is whole or absent.
            self._kill()
            raise

    def _pool_of(self, task: Task, calls: int) -> ProcessPoolExecutor:
        """Return the processes of the last task, unless they are too few, or may have too little memory each."""
        is_enough = self._processes >= min(usable_cores(), calls) and self._memory >= task.memory
        if not self._pool or not is_enough:
            self._end()
            self._processes, self._memory = processes_for(calls, task.memory), task.memory
            # Spawned, because a fork of a process with threads may hang.
            self._context = _Context()
            self._pool = ProcessPoolExecutor(self._processes, self._context, _start, (os.getpid(),))
        return self._pool

    def _kill(self) -> None:
        for process in self._context.processes:
            if process.pid:  # Its start may have failed.
                process.kill()
        self._end()

    def _end(self) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._processes, self._memory = None, 0, 0


class _Context(SpawnContext):
    """Starts processes of a pool, and remembers them: before Python 3.14, a pool cannot end its processes."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[SpawnProcess] = []

    def Process(self, *args: Any, **options: Any) -> SpawnProcess:  # type: ignore[override]
        """Return a new process."""
        self.processes.append(SpawnProcess(*args, **options))
        return self.processes[-1]


def _start(parent: int) -> None:
    start_worker(parent)
    never_import_pandas()  # No code of a user runs here.


def processes_for(calls: int, memory: int) -> int:
    """Return how many processes make a number of calls if each takes some bytes of memory: at least one."""
    wanted = min(usable_cores(), calls)
    free = available_memory()
    processes = max(1, min(wanted, free // memory))
    if processes < wanted:
        _log.info(
            "%s instead of %d, because %s of memory are free, and each may take %s",
            counted(processes, "worker process", "worker processes"),
            wanted,
            format_size(free),
            format_size(memory),
        )
    return processes
