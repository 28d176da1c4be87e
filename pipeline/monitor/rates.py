"""Rates from growing counters."""

import time
from collections.abc import Callable, Mapping

from pipeline.monitor.sampler import Source


class Rates:
    """A source of rates a second since the last call, from a source of growing counters. The first call gives none."""

    def __init__(self, counters: Source, now: Callable[[], float] = time.monotonic) -> None:
        self._counters, self._now = counters, now
        self._before: tuple[float, Mapping[str, float]] | None = None

    def __call__(self) -> dict[str, float]:
        """Read the counters, and return their rates a second since the last call."""
        before, (when, counts) = self._before, (self._now(), self._counters())
        self._before = when, counts
        if before is None or when <= before[0]:
            return {}
        # A counter that is new or went back (a replaced interface, a removed disk) has no rate this time.
        known = {name: before[1][name] for name in counts if name in before[1]}
        grown = {name: counts[name] - count for name, count in known.items() if counts[name] >= count}
        return {name: growth / (when - before[0]) for name, growth in grown.items()}
