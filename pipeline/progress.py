"""Progress on long work: a bar in a terminal, a plain line now and then in a task log."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOG_EVERY_S = 10.0
_log = logging.getLogger(__name__)

Advance = Callable[[int], object]


def log_words() -> None:
    """Show this project's own words on stderr, and of others only warnings."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("pipeline").setLevel(logging.INFO)


@contextmanager
def progress(what: str, total: int, unit: str = "images") -> Iterator[Advance]:
    """Show how much of `total` is done; the block calls what it is given with the number of units just finished."""
    if sys.stderr.isatty():
        from tqdm import tqdm  # not for a task, which has no terminal

        with tqdm(total=total or None, desc=what, unit=f" {unit}", file=sys.stderr, leave=False) as bar:
            yield bar.update
    else:
        lines = _Lines(what, total, unit)
        yield lines.advance
        lines.say()


class _Lines:
    def __init__(self, what: str, total: int, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._done = 0
        self._start = self._said = time.monotonic()

    def advance(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._said >= LOG_EVERY_S:
            self.say()

    def say(self) -> None:
        self._said = time.monotonic()
        rate = self._done / max(self._said - self._start, 1e-9)
        left = f", {(self._total - self._done) / rate:.0f} s left" if 0 < self._done < self._total else ""
        of_all = f" of {self._total}" if self._total else ""
        _log.info("%s: %d%s %s, %.0f a second%s", self._what, self._done, of_all, self._unit, rate, left)
