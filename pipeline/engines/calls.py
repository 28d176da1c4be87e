"""Calls of a task for many places, until each has succeeded. The engine makes them."""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from pipeline.engines.task import MAX_RETRIES, Outcome, Task
from pipeline.errors import EngineError
from pipeline.system.progress import Advance

_log = logging.getLogger(__name__)


class WorkersLost(Exception):
    """Processes that made calls were killed, and the engine gave up. Its text is the subject of a sentence.

    Attributes:
        fewer: Makes the calls that are left with fewer processes. None if there cannot be fewer, or if that is not for
            the engine to decide.
    """

    def __init__(self, subject: str, fewer: "Outcomes | None" = None) -> None:
        super().__init__(subject)
        self.fewer = fewer


Outcomes = Callable[[Task, Sequence[str]], Generator[Outcome]]
"""What an engine implements: a generator that calls a task for each place, at least once, in any order.

There is at least one place. Processes of this machine use `task.call`, those of a cluster `task.attempt`. The generator
yields the outcome of each call, as soon as it is known. An outcome may be yielded several times. If the generator is
closed, it stops the calls that are left.

Raises:
    WorkersLost: If the places that are left shall be called again.
    TenfoldError: For any other error of the engine, as `error_of_cluster` makes it.
"""


def call_each(outcomes: Outcomes, task: Task, places: Sequence[str], advance: Advance) -> None:
    """Call the task for each place, with an engine: see `Engine`. Lost calls are repeated."""
    left, in_vain = dict.fromkeys(places), 0
    while left:
        before = len(left)
        try:
            _call_once(outcomes, task, left, advance)
        except WorkersLost as error:
            if error.fewer:
                outcomes, in_vain = error.fewer, 0
                continue
            in_vain = in_vain + 1 if len(left) == before else 0
            if in_vain > MAX_RETRIES:
                raise EngineError(
                    f"{error} were killed {in_vain} times in a row. Perhaps memory ran out: end other programs, or use "
                    "a machine with more. Or your own script starts this work outside of `if __name__ == "
                    "'__main__':`. Then run the same command to continue from here"
                ) from error
            _log.warning("%s were killed: starting new ones for %d calls", error, len(left))


def _call_once(outcomes: Outcomes, task: Task, left: dict[str, None], advance: Advance) -> None:
    """Call the task for the places in `left`, and remove each place whose call succeeds. Raises the first error."""
    # Closed, so that after an error the engine stops the other calls at once.
    with closing(outcomes(task, list(left))) as made:
        for outcome in made:
            outcome.require_success()
            new = [place for place in outcome.places if place in left]
            if new:
                advance(outcome.count)
            for place in new:
                del left[place]
    if left:
        raise WorkersLost("some workers")
