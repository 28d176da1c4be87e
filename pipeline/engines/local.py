"""The engine of this machine: one process for each core."""

import multiprocessing
import os
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from pipeline.engines.calls import WorkersLost
from pipeline.engines.task import Outcome, Task
from pipeline.system.process import start_worker
from pipeline.system.resources import usable_cores


def outcomes(task: Task, places: Sequence[str]) -> Generator[Outcome]:
    """Call the task for each place, in several processes: see `Outcomes`."""
    # Spawned, because a fork of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    calls: list[Future[Outcome]] = []
    with ProcessPoolExecutor(min(usable_cores(), len(places)), context, start_worker, (os.getpid(),)) as pool:
        try:
            for place in places:
                calls.append(pool.submit(task.call, place))  # noqa: PERF401 - some are submitted if a kill stops this
            for call in as_completed(calls):
                yield call.result()
        except BrokenProcessPool as error:
            # Calls that ended before the kill: they need not be made again.
            yield from (call.result() for call in calls if call.done() and not call.exception())
            raise WorkersLost("worker processes") from error
        except BaseException:
            pool.shutdown(cancel_futures=True)  # The first error ends the others at once.
            raise
