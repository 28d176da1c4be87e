"""Means and maxima of windows: what a tracker is sent of a run of any length, whatever tracker it is."""

import math
from collections.abc import Sequence

from pipeline.monitor.row import Row

OF_BATCHES = ("input/wait_ms", "step/compute_ms", "step/host_ms", "step/checkpoint_ms", "step/time_ms")


class Windows:
    """Rows of the monitor to rows for a tracker: windows of samples and of batches, and each epoch as it is.

    A window of a long run is a `share`-th part of the run until then. Windows of batches have the metrics
    `of_batches`.
    """

    def __init__(self, share: int = 1000, of_batches: Sequence[str] = OF_BATCHES) -> None:
        self._of_batches = of_batches
        self._open = {"samples": Window(share), "batches": Window(share)}

    def add(self, row: Row) -> list[Row]:
        """Take a row; gives those that are complete with it."""
        if row.kind == "epochs":
            return [row]
        ended = self._open[row.kind].add(self._selected(row))
        return [ended] if ended else []

    def take(self, kinds: Sequence[str] = ("samples", "batches")) -> list[Row]:
        """End the windows of these kinds now."""
        return [row for kind in kinds if (row := self._open[kind].take())]

    def _selected(self, row: Row) -> Row:
        if row.kind == "samples":
            return row
        return Row(
            row.kind, row.time, row.step, {name: row.values[name] for name in self._of_batches if name in row.values}
        )


class Window:
    """Mean and maximum of the rows of a few seconds, as a row: the maximum is there so that a stall does not vanish.

    A window lasts max(2 s, elapsed / share, series / 50), where elapsed is the time since the first row, so that
    Comet's limits (15,000 values a metric, 12,000 a minute) hold for a run of any length with a share of 1000:
    - A metric gets 1,000 values in the first 2,000 s and 1,000 ln(T / 2,000 s) after T seconds from there: 3,900 after
      10 hours, and 15,000 not within a lifetime.
    - A window sends 2 series values (mean and maximum), so at most 2 series / (series / 50 s) = 100 values a second,
      half of what Comet takes. 8 GPUs and the host are 128 series: 5,420 values a minute, batches included.
    """

    def __init__(self, share: int = 1000) -> None:
        self._share = share
        self._begin: float | None = None
        self._opened = 0.0
        self._sums: dict[str, tuple[int, float, float]] = {}
        self._last = Row("", 0.0, 0, {})

    def add(self, row: Row) -> Row | None:
        """Take a row; gives the window that ended before it, if one did."""
        if self._begin is None:
            self._begin = self._opened = row.time
        ended = None
        if row.time - self._opened >= self._width(row.time):
            ended = self.take()
            self._opened = row.time
        self._last = row
        for name, value in row.values.items():
            if math.isfinite(value):
                count, total, highest = self._sums.get(name, (0, 0.0, -math.inf))
                self._sums[name] = count + 1, total + value, max(highest, value)
        return ended

    def take(self) -> Row | None:
        """End the window now: means as NAME, maxima as NAME/max, with time and step of its last row. None if empty."""
        if not self._sums:
            return None
        values = {name: total / count for name, (count, total, _) in self._sums.items()}
        values |= {f"{name}/max": highest for name, (_, _, highest) in self._sums.items()}
        self._sums = {}
        return Row(self._last.kind, self._last.time, self._last.step, values)

    def _width(self, time: float) -> float:
        return max(2.0, (time - (self._begin or time)) / self._share, len(self._sums) / 50)
