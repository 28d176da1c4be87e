"""When the runs of a queue start, from how long the runs before them are expected to take."""

import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.watch.status import duration, remaining_s

NONE_ENDED = "no run like one before it has ended yet"
OVERDUE = "a run before it takes longer than the last ones"
MIN_SHOWN_S = 60.0
"""A shorter wait is no number, because Airflow itself takes some seconds to start a task."""
_log = logging.getLogger(__name__)


class Use(NamedTuple):
    """What a run takes of a pool."""

    slots: int
    seconds: float
    """How long it keeps them: from now on, or from its start if it waits for them. Infinite if it is not known."""
    is_usual: bool = False
    """Whether that is how long the last ones took."""
    why: str = ""
    """Why it is not known; empty if it is."""


class Start(NamedTuple):
    """When a run of the queue gets its slots, and when it gives them back."""

    seconds: float
    """From now on; infinite if it is not known."""
    end: float
    before: tuple[Use, ...]
    """What the runs before it take, those that have started included."""


def expected_starts(slots: int, started: Sequence[Use], waiting: Sequence[Use]) -> Iterator[Start]:
    """Yield when each waiting run starts. Each takes all of its slots at once, in the order of the queue.

    `started` are the runs that have their slots. They may be more than the pool has now.
    """
    ends = [each.seconds for each in started for _ in range(each.slots)]
    free_at = sorted([*[0.0] * (slots - len(ends)), *ends])[max(0, len(ends) - slots) :]
    before = [*started]
    for each in waiting:
        start = free_at[each.slots - 1] if each.slots <= len(free_at) else math.inf
        end = start + each.seconds
        yield Start(start, end, tuple(before))
        free_at = sorted([*free_at[each.slots :], *[end] * each.slots])
        before.append(each)


def start_words(start: Start) -> str:
    """Return when a run starts, as a part of a sentence, and what that depends on."""
    if math.isinf(start.seconds):
        why = next((each.why for each in start.before if each.why), "")
        return f"when it starts is unknown: {why}" if why else "when it starts is unknown"
    return f"it starts in {_about(start.seconds)}{_condition(start.before)}"


def _about(seconds: float) -> str:
    return "less than a minute" if seconds < MIN_SHOWN_S else f"about {duration(seconds)}"


def _condition(before: Sequence[Use]) -> str:
    if usual := sum(each.is_usual for each in before):
        runs = "the run before it takes" if usual == 1 else f"the {usual} runs before it take"
        return f", if {runs} as long as the last ones"
    running = "the training that runs now ends" if len(before) == 1 else "one of the trainings that run now ends"
    return f", when {running}"


def time_left_s(training: Path) -> float | None:
    """Return the time that is left of a training, as its page shows it (s); None if it cannot be known or read."""
    try:
        return remaining_s(training)
    except Exception as error:  # noqa: BLE001 - a damaged training must not hide those that wait for it
        _log.warning("the time that is left of %s is unknown: %r", training, error)
        return None
