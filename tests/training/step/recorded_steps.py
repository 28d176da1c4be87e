"""The record of a training loop whose clock the test advances."""

from collections.abc import Callable

import numpy as np

from pipeline.monitor import Monitor, Row
from pipeline.monitor.diagnosis import is_steady
from pipeline.monitor.live import table
from pipeline.monitor.load import during
from pipeline.monitor.reporter import Reporter


class _Kept:
    """A sink that keeps all rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, row: Row) -> None:
        self.rows.append(row)


def samples_that_count(train: Callable[[Monitor], None], clock: Callable[[], float]) -> float:
    """Return the share of the samples, taken each millisecond of a training, that count for its steady steps."""
    kept = _Kept()
    reporter = Reporter([kept], clock=clock)
    train(Monitor(reporter, {}, hz=5.0))
    reporter.close()
    batches = table(kept.rows)
    sampled = np.arange(batches["time"][0], clock(), 0.001)
    return float(during({"time": sampled}, batches, is_steady(batches)).mean())
