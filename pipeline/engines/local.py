"""The engine of this machine: one process for each core."""

import logging
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from pipeline.engines.task import MAX_RETRIES, Task
from pipeline.errors import EngineError
from pipeline.system.cores import usable_cores
from pipeline.system.process import start_worker
from pipeline.system.progress import Advance

_log = logging.getLogger(__name__)


def run(task: Task, places: Sequence[str], advance: Advance) -> None:
    """Call the task for each place, in several processes: see `Engine`.

    If a process is killed, new processes make the calls that are left.
    """
    left, in_vain = list(places), 0
    while left:
        remaining = _call_all(task, left, advance)
        in_vain = in_vain + 1 if len(remaining) == len(left) else 0
        if in_vain > MAX_RETRIES:
            raise EngineError(
                f"worker processes were killed {in_vain} times in a row, perhaps because memory ran out: run the same "
                "command to continue from here"
            )
        if remaining:
            _log.warning("a worker process was killed: starting new ones for %d calls", len(remaining))
        left = remaining


def _call_all(task: Task, places: Sequence[str], advance: Advance) -> list[str]:
    """Call the task once for each place. Return the places that are left because a process was killed."""
    done: set[str] = set()
    # Spawned, because a fork of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(usable_cores(), len(places)), context, start_worker, (os.getpid(),)) as pool:
        under_way: dict[Future[int], str] = {}
        try:
            for place in places:
                under_way[pool.submit(task.retried, place)] = place
            for future in as_completed(under_way):
                advance(future.result())
                done.add(under_way[future])
        except BrokenProcessPool:
            # Calls that ended before the kill, and were not counted yet.
            finished = [future for future in under_way if future.done() and not future.exception()]
            for future in finished:
                if under_way[future] not in done:
                    advance(future.result())
                    done.add(under_way[future])
        except BaseException:
            pool.shutdown(cancel_futures=True)  # The first error ends the others at once.
            raise
    return [place for place in places if place not in done]
