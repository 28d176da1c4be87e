"""From counters that grow to what they grow by in a second."""

import time
from collections.abc import Callable, Mapping

from pipeline.monitor.sampler import Source


class Rates:
    """Turns growing counters into rates a second since the last call. The first call gives nothing."""

    def __init__(self, counters: Source, now: Callable[[], float] = time.monotonic) -> None:
        self._counters, self._now = counters, now
        self._before: tuple[float, Mapping[str, float]] | None = None

    def __call__(self) -> dict[str, float]:
        before, (when, counts) = self._before, (self._now(), self._counters())
        self._before = when, counts
        if before is None or when <= before[0]:
            return {}
        # A counter that is new or went back (an interface replaced, a disk taken out) has no rate this once.
        known = {name: before[1][name] for name in counts if name in before[1]}
        grown = {name: counts[name] - count for name, count in known.items() if counts[name] >= count}
        return {name: growth / (when - before[0]) for name, growth in grown.items()}
