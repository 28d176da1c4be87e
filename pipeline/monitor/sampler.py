"""Sources of metrics, and a thread that samples all of them at a fixed rate and measures how late it was."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

_log = logging.getLogger(__name__)

Source = Callable[[], Mapping[str, float]]


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


def ticks(period: float, now: Callable[[], float], stopped: Callable[[float], bool]) -> Iterator[tuple[float, int]]:
    """Yield (seconds late, ticks dropped so far) at start + period, start + 2 period, ...

    Due times are multiples of the period, so that a late tick does not delay the next one. Ticks that were missed
    altogether are counted, and are not made up for in a burst. `stopped` waits for at most the given seconds, and
    returns whether to end.
    """
    due, dropped = now() + period, 0
    while not stopped(max(0.0, due - now())):
        late = now() - due
        missed = max(0, int(late / period))
        dropped += missed
        yield late, dropped
        due += (missed + 1) * period


def require_rate(hz: float) -> float:
    """Return the rate. Raises ValueError if it is not one to sample at."""
    if not 0.2 <= hz <= 20:
        raise ValueError(f"hz must be between 0.2 and 20, got {hz}")
    return hz


class Sampler:
    """Reads all `sources` `hz` times a second and passes the metrics to `report`.

    Every sample also has `monitor/tick_late_ms`, `monitor/sample_ms` (how long reading the sources took) and
    `monitor/dropped`: the ticks that were dropped here, plus `lost()`, the rows that were lost after this. A source
    that raises is logged once, and is left out for as long as it raises.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        report: Callable[[Mapping[str, float]], None],
        hz: float = 5.0,
        lost: Callable[[], int] = lambda: 0,
        now: Callable[[], float] = time.monotonic,
        stopped: Callable[[float], bool] | None = None,
    ) -> None:
        require_rate(hz)
        self._sources, self._report, self._lost, self._now = sources, report, lost, now
        self._period = 1 / hz
        self._stop = threading.Event()
        self._stopped = stopped or self._stop.wait
        self._noted: set[str] = set()
        self._thread = threading.Thread(target=self.run, name="monitor-sampler", daemon=True)

    def start(self) -> None:
        """Start sampling in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop sampling. Waits at most two periods for a sample that is under way."""
        self._stop.set()
        if self._thread.is_alive():
            # A source may hang, and must not keep the training from ending.
            self._thread.join(timeout=2 * self._period)

    def run(self) -> None:
        """Sample until stopped, in this thread."""
        self._collect()  # Rates are differences, so they need a first reading.
        for late, dropped in ticks(self._period, self._now, self._stopped):
            begin = self._now()
            metrics = self._collect()
            metrics["monitor/tick_late_ms"] = 1000 * late
            metrics["monitor/sample_ms"] = 1000 * (self._now() - begin)
            metrics["monitor/dropped"] = float(dropped + self._lost())
            self._report(metrics)

    def _collect(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name, source in self._sources.items():
            try:
                metrics.update(source())
            except Exception as error:  # noqa: BLE001 - no source may stop the others, also one of users
                if name not in self._noted:
                    self._noted.add(name)
                    _log.warning("monitor: %s is left out: %s: %s", name, type(error).__name__, error)
        return metrics
