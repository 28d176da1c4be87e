"""Progress of long work: a bar in a terminal, or a line every ten seconds in the log of a task."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from pipeline.system.wording import format_size

LOG_EVERY_S = 10.0
"""The log gets a line at this interval in seconds."""
MIN_RATE_S = 0.01
"""No rate is shown if the work took at most this many seconds."""
_log = logging.getLogger(__name__)


class Advance(Protocol):
    """Takes the number of units that were just finished, and their bytes if these are counted."""

    def __call__(self, count: int, size: int = 0, /) -> object:
        """Add `count` units with `size` bytes in total."""


def log_to_stderr() -> None:
    """Log the messages of this project, and the warnings of other libraries, to stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("pipeline").setLevel(logging.INFO)


@contextmanager
def progress(what: str, total: int, /, unit: str, total_bytes: int = 0) -> Iterator[Advance]:
    """Show how much of `total` is done. The block calls the function that it gets with the number of finished units.

    With `total_bytes`, bytes are shown too. The time that is left follows from them, because objects differ in size. A
    `total` of 0 means that it is unknown.
    """
    if sys.stderr.isatty():
        from tqdm import tqdm  # A task has no terminal, and does not load it.

        done = 0

        def advance(count: int, size: int = 0) -> None:
            nonlocal done
            done += count
            if total_bytes:
                bar.set_postfix_str(f"{done} of {total} {unit}", refresh=False)
            bar.update(size if total_bytes else count)

        of_unit: dict[str, Any] = {"unit": "B", "unit_scale": True} if total_bytes else {"unit": f" {unit}"}
        with tqdm(total=total_bytes or total or None, desc=what, **of_unit, file=sys.stderr, leave=False) as bar:
            yield advance
    else:
        lines = _Lines(what, total, unit, total_bytes)
        yield lines.advance
        lines.log()


class Show(Protocol):
    """Shows the progress of some work: `progress`, or a function that takes its place."""

    def __call__(self, what: str, total: int, /, unit: str, total_bytes: int = 0) -> AbstractContextManager[Advance]:
        """Return a context manager whose block reports finished units: see `progress`."""


@contextmanager
def no_progress(_what: str, _total: int, /, unit: str, total_bytes: int = 0) -> Iterator[Advance]:
    """Show nothing. It takes the place of `progress` in one of several processes, whose bars would overlap."""
    yield lambda _count, _size=0: None


class _Lines:
    def __init__(self, what: str, total: int, unit: str, total_bytes: int) -> None:
        self._what, self._total, self._unit, self._total_bytes = what, total, unit, total_bytes
        self._done = self._bytes = 0
        self._start = self._last_line = time.monotonic()

    def advance(self, count: int, size: int = 0) -> None:
        self._done += count
        self._bytes += size
        if time.monotonic() - self._last_line >= LOG_EVERY_S:
            self.log()

    def log(self) -> None:
        self._last_line = time.monotonic()
        seconds = max(self._last_line - self._start, 1e-9)
        of_all = f" of {self._total}" if self._total else ""
        line = f"{self._done}{of_all} {self._unit}"
        if seconds > MIN_RATE_S:
            line += f", {self._done / seconds:.0f} a second"
        if self._total_bytes:
            rate = format_size(self._bytes / seconds)
            line += f", {format_size(self._bytes)} of {format_size(self._total_bytes)}, {rate} a second"
        done, total = (self._bytes, self._total_bytes) if self._total_bytes else (self._done, self._total)
        if 0 < done < total:
            line += f", {(total - done) * seconds / done:.0f} s left"
        _log.info("%s: %s", self._what, line)
