"""Turns states of tasks into stages, and shows them to a person."""

import contextlib
import shutil
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TextIO

DONE = ("success", "skipped")
FAILED = ("failed", "upstream_failed")
NOT_BEGUN = (None, "scheduled", "queued", "upstream_failed", "removed", "skipped")
"""States of a task before it begins. A skipped one does not begin: the dataset was complete already, or is small."""
WORDS = {
    "running": "running",
    "up_for_retry": "failed, Airflow will retry it",
    "up_for_reschedule": "waiting",
    "deferred": "waiting",
    "restarting": "restarting",
}


class Stage(NamedTuple):
    """One task of the DAG with all it was mapped to, or one date of a backfill."""

    name: str
    text: str


class Lines:
    """A line for every change: for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: dict[str, str] = {}

    def show(self, stages: list[Stage], elapsed_s: float) -> None:
        """Print the stages that read differently from the last time."""
        for stage in stages:
            if self._shown.get(stage.name) != stage.text:
                self._shown[stage.name] = stage.text
                write(self._stream, f"{clock(elapsed_s)}  {stage.name:<14} {stage.text}\n")


class Region:
    """A few lines of a terminal, written again in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._height = 0

    def show(self, stages: list[Stage], elapsed_s: float) -> None:
        """Replace what was shown before, with as many of the last stages as there is room for."""
        # A line that wraps takes two rows, and the cursor would then go back too few rows. It cannot go back above the
        # screen either, so the number of lines is limited, too.
        columns, rows = shutil.get_terminal_size()
        width = columns - 1
        lines = [f"  {stage.name:<14} {stage.text}" for stage in stages][-max(rows - 2, 1) :]
        lines.append(f"  {clock(elapsed_s)} elapsed")
        back = f"\x1b[{self._height}F\x1b[J" if self._height else ""
        write(self._stream, back + "".join(f"{line[:width]}\n" for line in lines))
        self._height = len(lines)


Display = Lines | Region


def display_for(stream: TextIO) -> Display:
    """Return a live region in a terminal, plain lines elsewhere."""
    return Region(stream) if stream.isatty() else Lines(stream)


def write(stream: TextIO, text: str) -> None:
    """Write at once. A reader that has ended (`| head`) must not prevent Airflow from being stopped."""
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()


def say(text: str) -> None:
    """Print a line for the person."""
    write(sys.stdout, f"{text}\n")


def clock(seconds: float) -> str:
    """Return seconds as 1:05 or 1:01:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_of(text: str | None) -> datetime | None:
    """Return the time in a text of Airflow's REST API; None if there is none yet."""
    return datetime.fromisoformat(text) if text else None


def stages_of(instances: Iterable[Mapping[str, Any]], notes: Mapping[str, str]) -> list[Stage]:
    """Return the stages that have begun, in the order in which they did; `notes` says more of some that run."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    # Times of the API have one form and zone, so they sort as text. An instance without a time comes last.
    for instance in sorted(instances, key=lambda each: each["start_date"] or "9999"):
        groups.setdefault(instance["task_id"], []).append(instance)
    begun = {name: group for name, group in groups.items() if any(each["state"] not in NOT_BEGUN for each in group)}
    return [Stage(name, _text(group, notes.get(name, ""))) for name, group in begun.items()]


def _text(group: list[Mapping[str, Any]], note: str) -> str:
    states = [instance["state"] for instance in group]
    done = sum(state in DONE for state in states)
    count = f"{done} of {len(group)} tasks done" if len(group) > 1 else ""
    parts = [_state(states), count, note if "running" in states else "", _duration(group, states)]
    return ", ".join(filter(None, parts))


def _state(states: list[str]) -> str:
    if all(state in DONE for state in states):
        return "done"
    if any(state in FAILED for state in states):
        return "failed"
    return next((word for state, word in WORDS.items() if state in states), "waiting")


def _duration(group: list[Mapping[str, Any]], states: list[str]) -> str:
    begins, ends = ([time for each in group if (time := time_of(each[name]))] for name in ("start_date", "end_date"))
    if not begins or not ends or not all(state in DONE + FAILED for state in states):
        return ""
    return f"{(max(ends) - min(begins)).total_seconds():.0f} s"
