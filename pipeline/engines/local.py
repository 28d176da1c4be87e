"""The engine of this machine: one process for each core."""

import logging
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from pipeline.engines.task import MAX_RETRIES, Task
from pipeline.errors import BadInput, EngineError
from pipeline.system.cores import usable_cores
from pipeline.system.process import start_worker
from pipeline.system.progress import Advance

_log = logging.getLogger(__name__)


def run(task: Task, places: Sequence[str], advance: Advance) -> None:
    """Call the task for each place, in several processes: see `Engine`.

    Calls that failed, or whose process was killed, are repeated together after all others.
    """
    left, in_vain = list(places), 0
    while left:
        errors = _call_all(task, left, advance)
        in_vain = in_vain + 1 if len(errors) == len(left) else 0
        if in_vain > MAX_RETRIES:
            raise next(iter(errors.values()))
        left = list(errors)


def _call_all(task: Task, places: Sequence[str], advance: Advance) -> dict[str, Exception]:
    """Call the task once for each place. Return the errors that a retry may repair, by place."""
    errors: dict[str, Exception] = {}
    # Spawned, because a fork of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    workers = min(usable_cores(), len(places))
    with ProcessPoolExecutor(workers, context, start_worker, (os.getpid(),)) as pool:
        under_way = {pool.submit(task, place): place for place in places}
        try:
            for future in as_completed(under_way):
                try:
                    advance(future.result())
                except BadInput:
                    raise
                except BrokenProcessPool:  # This also ends all calls that have not begun.
                    errors[under_way[future]] = EngineError(
                        "a process that writes shards was killed, perhaps because memory ran out: run the same command "
                        "to continue; finished shards stay"
                    )
                except Exception as error:  # noqa: BLE001 - it is raised after the last retry
                    _log.warning("%s will be tried again: %s", under_way[future], error)
                    errors[under_way[future]] = error
        except BaseException:
            pool.shutdown(cancel_futures=True)  # The first error ends the others at once.
            raise
    return errors
