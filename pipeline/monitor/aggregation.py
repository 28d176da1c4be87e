"""Means and maxima over intervals of time, so that a run of any length stays small: for trackers and for live pages.

`Intervals` aggregates rows as they come. The functions aggregate tables, which are such rows read again. Nothing else
averages a record over intervals of time.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pipeline.monitor.row import KINDS, Row

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

OF_BATCHES = ("input/wait_ms", "step/compute_ms", "step/host_ms", "step/checkpoint_ms", "step/time_ms")
"""Metrics of batches that a tracker gets."""
MIN_INTERVAL_S = 2.0
"""An interval lasts at least this many seconds. See `Interval`."""
HIGHEST = "/max"
"""Ending of the name of a maximum."""
ROWS = "monitor/rows"
"""The number of rows of an interval. A mean over several intervals needs it, because not all have equally many."""


class Intervals:
    """Turns rows of the monitor into rows for a tracker: intervals of samples and batches, and each epoch as it is.

    Args:
        share: An interval of a long run takes this part of the run so far: 1000 means a thousandth.
        of_batches: Metrics that intervals of batches have.
        all_epochs: Whether all epochs count. Otherwise, of epochs in quick succession only some do (`Spaced`).
        counts_samples: Whether intervals of samples have their number (`ROWS`).
        before_s: Seconds that earlier attempts of the run took. Without them, each retry would begin with short
            intervals again, and many retries would send more values than a tracker takes.
    """

    def __init__(
        self,
        share: int = 1000,
        of_batches: Sequence[str] = OF_BATCHES,
        all_epochs: bool = True,
        counts_samples: bool = False,
        before_s: float = 0.0,
    ) -> None:
        self._of_batches = of_batches
        self._open: dict[str, Interval | Spaced] = {
            "samples": Interval(share, counts_rows=counts_samples, before_s=before_s),
            "batches": Interval(share, before_s=before_s),
        }
        if not all_epochs:
            self._open["epochs"] = Spaced(share, before_s)

    def add(self, row: Row) -> list[Row]:
        """Add a row and return the rows that are complete now."""
        if row.kind not in self._open:
            return [row]
        if row.kind == "batches":
            values = {name: row.values[name] for name in self._of_batches if name in row.values}
            row = Row(row.kind, row.time, row.step, values)
        complete = self._open[row.kind].add(row)
        return [complete] if complete else []

    def take(self, kinds: Sequence[str] = KINDS) -> list[Row]:
        """End the intervals of these kinds now, and return them."""
        return [row for kind in kinds if kind in self._open and (row := self._open[kind].take())]


class Interval:
    """Mean and maximum of the rows of a few seconds, as one row. The maximum keeps a stall visible.

    An interval lasts max(2 s, elapsed / share, series / 50), where elapsed is `before_s` and the time since the first
    row, so that Comet's limits (15,000 values a metric, 12,000 a minute) hold for a run of any length with a share of
    1000, however many attempts it takes:
    - A metric gets 1,000 values in the first 2,000 s and 1,000 ln(T / 2,000 s) after T seconds from there: 3,900 after
      10 hours, and 15,000 not within a lifetime.
    - An interval sends 2 series values (mean and maximum), so at most 2 series / (series / 50 s) = 100 values a second,
      half of what Comet takes. 8 GPUs and the host are 136 series: 5,740 values a minute, batches included. Epochs
      send at most 50 values a second (`Spaced`).
    """

    def __init__(self, share: int = 1000, counts_rows: bool = False, before_s: float = 0.0) -> None:
        self._share, self._before_s = share, before_s
        self._counts_rows, self._rows = counts_rows, 0
        self._begin: float | None = None
        self._opened = 0.0
        self._sums: dict[str, tuple[int, float, float]] = {}
        self._last = Row("", 0.0, 0, {})

    def add(self, row: Row) -> Row | None:
        """Add a row, and return the interval before it if that is complete now."""
        if self._begin is None:
            self._begin, self._opened = row.time - self._before_s, row.time
        complete = None
        if row.time - self._opened >= _width(row.time - self._begin, self._share, len(self._sums)):
            complete = self.take()
            self._opened = row.time
        self._last = row
        self._rows += 1
        for name, value in row.values.items():
            # One NaN would make the mean of the whole interval NaN.
            if math.isfinite(value):
                count, total, highest = self._sums.get(name, (0, 0.0, -math.inf))
                self._sums[name] = count + 1, total + value, max(highest, value)
        return complete

    def take(self) -> Row | None:
        """End the interval now, and return it; None if it has no values.

        Means have the name of the metric, maxima that name and "/max". Time and step are those of the last row.
        """
        if not self._sums:
            return None
        values = {name: total / count for name, (count, total, _) in self._sums.items()}
        values |= {f"{name}{HIGHEST}": highest for name, (_, _, highest) in self._sums.items()}
        if self._counts_rows:
            values[ROWS] = float(self._rows)
        self._sums, self._rows = {}, 0
        return Row(self._last.kind, self._last.time, self._last.step, values)


class Spaced:
    """Passes rows on unchanged, but not more often than `Interval` would. Rows between are dropped, except the last.

    An epoch may be a single step of milliseconds, and means over several epochs say nothing. If a training has at most
    1,000 epochs, each of more than two seconds, a share of 1000 passes on all of them.
    """

    def __init__(self, share: int = 1000, before_s: float = 0.0) -> None:
        self._share, self._before_s = share, before_s
        self._begin: float | None = None
        self._passed = 0.0
        self._held: Row | None = None

    def add(self, row: Row) -> Row | None:
        """Add a row. Return it if enough time has passed since the row that was returned before."""
        if self._begin is None:
            self._begin, self._passed = row.time - self._before_s, -math.inf
        self._held = row
        if row.time - self._passed < _width(row.time - self._begin, self._share, len(row.values)):
            return None
        self._passed = row.time
        return self.take()

    def take(self) -> Row | None:
        """Return the last row if `add` did not."""
        held, self._held = self._held, None
        return held


def _width(elapsed: float, share: int, series: int) -> float:
    return max(MIN_INTERVAL_S, elapsed / share, series / 50)


def split_maxima(intervals: "pandas.DataFrame") -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """Return the means and the maxima of a table of intervals, as two tables with the same names of columns."""
    maxima = [name for name in intervals.columns if name.endswith(HIGHEST)]
    highest = intervals[["time", "step", *maxima]].rename(columns=lambda name: name.removesuffix(HIGHEST))
    return intervals.drop(columns=maxima), highest


def aggregate_table(rows: "pandas.DataFrame", width: float) -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """Return means and maxima of rows over intervals of `width` seconds, with time and step of the last row of each.

    The means also have the number of rows (`ROWS`).
    """
    groups = rows.groupby((rows["time"] // width).to_numpy(), sort=True)
    ends = groups[["time", "step"]].max()
    metrics = groups[[name for name in rows if name not in ends]]
    return ends.join(metrics.mean()).assign(**{ROWS: groups.size().astype(float)}), ends.join(metrics.max())


def widen(intervals: "pandas.DataFrame", width: float, weights: "Array") -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """Return means and maxima over intervals of `width` seconds, from a table of narrower ones. `ROWS` are added up.

    Args:
        intervals: The narrower intervals, oldest first, with means and maxima.
        width: Seconds.
        weights: How much each of them counts in a mean, such as the number of its steps.
    """
    import numpy as np
    import pandas

    bins = (intervals["time"] // width).to_numpy()
    # No interval has the number -1, so the first row begins one.
    starts = np.flatnonzero(np.diff(bins, prepend=-1.0))
    last_rows = np.append(starts[1:], len(intervals)) - 1

    def reduced(table: pandas.DataFrame, reduce: "Callable[[Array], Array]") -> pandas.DataFrame:
        ends = table[["time", "step"]].iloc[last_rows].reset_index(drop=True)
        values = table.drop(columns=["time", "step"])
        return ends.join(pandas.DataFrame(reduce(values.to_numpy(dtype=float)), columns=values.columns))

    def weighted(values: "Array") -> "Array":
        known = np.isfinite(values)
        sums, weight = (
            np.add.reduceat(each * weights[:, None], starts) for each in (np.where(known, values, 0.0), known)
        )
        return np.divide(sums, weight, out=np.full_like(sums, np.nan), where=weight > 0)

    means, highest = split_maxima(intervals)
    widened = reduced(means, weighted)
    if ROWS in means:
        widened[ROWS] = np.add.reduceat(means[ROWS].to_numpy(dtype=float), starts)
    # `fmax` leaves out NaN, which stands for a metric that was not measured.
    return widened, reduced(highest, lambda values: np.fmax.reduceat(values, starts))
