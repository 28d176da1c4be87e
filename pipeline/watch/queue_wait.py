"""When the runs of a queue start, from how long the runs before them are expected to take."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.monitor.record import last_row
from pipeline.runs.files import load_files
from pipeline.watch.heartbeats import Heartbeats
from pipeline.watch.status import duration, last_step, remaining_s, state_of
from pipeline.watch.tables import epochs, intervals, steps_before

NONE_ENDED = "no earlier run of the DAG has ended, so nothing says how long the run before it takes"
EVALUATED = "the training that runs now is being evaluated"
MIN_SHOWN_S = 60.0
"""A shorter wait is no number, because Airflow itself takes some seconds to start a task."""
KEPT_S = 10.0
"""The time that is left of a training is read again after this many seconds, for any number of pages."""
_log = logging.getLogger(__name__)


class Use(NamedTuple):
    """What a run takes of a pool."""

    slots: int
    seconds: float
    """How long it keeps them: from now on, or from its start if it waits for them. Infinite if it is not known."""
    like: str = ""
    """`dataset` or `DAG` if it is how long earlier trainings of the same one took; else empty."""
    why: str = ""
    """Why it is not known; empty if it is."""
    is_part: bool = False
    """Whether the run waits for more slots. It gives back none before it has them, and is in the queue itself."""
    held: int = 0
    """Slots that a run of the queue has already. It gives them back with the others."""


class Start(NamedTuple):
    """When a run of the queue gets its slots, and when it gives them back."""

    seconds: float
    """From now on; infinite if it is not known."""
    end: float
    before: tuple[Use, ...]
    """What the runs before it take, those that have started included."""


def expected_starts(slots: int, started: Sequence[Use], waiting: Sequence[Use]) -> Iterator[Start]:
    """Yield when each waiting run starts, in the order of the queue: when it has all of its slots.

    Airflow gives each training server its slot as one becomes free. A training starts when the last one has it.
    `started` are the runs that have slots. They may have more than the pool has now.
    """
    before = [each for each in started if not each.is_part]
    slots -= sum(each.slots for each in started if each.is_part)
    ends = [each.seconds for each in before for _ in range(each.slots)]
    free_at = sorted([*[0.0] * (slots - len(ends)), *ends])[max(0, len(ends) - slots) :]
    for each in waiting:
        start = free_at[each.slots - 1] if each.slots <= len(free_at) else math.inf
        end = start + each.seconds
        yield Start(start, end, tuple(before))
        free_at = sorted([*free_at[each.slots :], *[end] * (each.slots + each.held)])
        before.append(each)


def start_words(start: Start, subject: str = "it") -> str:
    """Return when a run starts, as a part of a sentence, and what that depends on. `subject` names the run."""
    if math.isinf(start.seconds):
        why = next((each.why for each in start.before if each.why), "")
        return f"when {subject} starts is unknown{': ' if why else ''}{why}"
    return f"{subject} starts in {_about(start.seconds)}{_condition(start.before)}"


def overdue(like: str) -> str:
    """Return why it is not known when a run ends that takes longer than earlier ones of its dataset or DAG."""
    return f"a run before it takes longer than earlier trainings of its {like}"


def _about(seconds: float) -> str:
    return "less than a minute" if seconds < MIN_SHOWN_S else f"about {duration(seconds)}"


def _condition(before: Sequence[Use]) -> str:
    if usual := [each.like for each in before if each.like]:
        is_one = len(usual) == 1
        runs = "the run before it takes" if is_one else f"the {len(usual)} runs before it take"
        # Some may be compared with those of their dataset, and others with those of their DAG.
        like = (f" of its {usual[0]}" if is_one else f" of their {usual[0]}s") if len({*usual}) == 1 else ""
        return f", if {runs} as long as earlier trainings{like}"
    running = "the training that runs now ends" if len(before) == 1 else "one of the trainings that run now ends"
    return f", when {running}"


class TimeLeft(NamedTuple):
    """The time that is left of a training, as its page shows it."""

    seconds: float
    """Infinite if it is not known."""
    why: str = ""
    """Why it is not known; empty if it is."""


class TimesLeft:
    """The time that is left of trainings under way. Any number of threads may use it."""

    def __init__(self) -> None:
        self._heartbeats = Heartbeats()
        self._kept: dict[Path, tuple[float, TimeLeft | None]] = {}
        """When the time of each folder was read, by the monotonic clock (s), and the time."""

    def find(self, training: Path) -> TimeLeft | None:
        """Return the time that is left of a training; None if its record does not say it, or cannot be read."""
        now = time.monotonic()
        if (kept := self._kept.get(training)) and now - kept[0] < KEPT_S:
            return kept[1]
        try:
            found = self._read(training)
        except Exception as error:  # noqa: BLE001 - a damaged training must not hide those that wait for it
            _log.warning("the time that is left of %s is unknown: %r", training, error)
            found = None
        recent = {folder: each for folder, each in self._kept.copy().items() if now - each[0] < KEPT_S}
        self._kept = {**recent, training: (now, found)}
        return found

    def _read(self, training: Path) -> TimeLeft | None:
        # Of the record, only what the answer needs: many pages ask for it while they wait.
        files = load_files(training)
        batches = intervals(training, "batches", steps_before=steps_before(training, files.steps_per_epoch))
        last_sample = (last_row(training / "record", "samples") or {}).get("time", 0.0)
        silent_s = self._heartbeats.silent_s(training, last_sample)
        state = state_of(files, last_step(batches), silent_s, is_over=False)
        if state == "evaluating":
            return TimeLeft(math.inf, EVALUATED)
        if state != "training":
            return None
        seconds = remaining_s(files, batches, epochs(training), last_sample)
        return TimeLeft(seconds) if seconds is not None and math.isfinite(seconds) else None
