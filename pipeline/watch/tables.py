"""The rows of a record, few enough to be drawn: intervals of the overview, and narrower ones where a page zooms in.

There are two tables of one shape: the means of each interval, and the highest values in it.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pandas

from pipeline.monitor.aggregation import HIGHEST, MIN_INTERVAL_S, ROWS, aggregate_table, split_maxima, widen
from pipeline.monitor.gpu_columns import is_combined
from pipeline.monitor.overview import OVERVIEW
from pipeline.monitor.record import closed, first_time, read_segment, segments, surviving_rows
from pipeline.report.series import Array
from pipeline.report.utilization import DRAWN
from pipeline.runs.changes import first_epoch, load_changes
from pipeline.storage import require_size

P = TypeVar("P")
MAX_ROWS = 2000
"""Maximum number of rows of a span that a page zooms into. No screen shows more."""
MAX_INTERVALS = 1500
"""Maximum number of intervals of a whole training. It is a few for each pixel of a panel."""
MAX_FILE_BYTES = 64 << 20
"""Maximum size of a segment that a page reads. A closed segment has 2 MB, but others may write into the folder."""
MAX_KEPT = 128
"""Segments in memory. A segment of an overview takes 0.3 MB, and one of a record 1.2 MB."""
TAIL_S = 1.0
"""Width of the intervals of the latest rows, which the overview does not have yet."""
_SAMPLED = ("sys/", "proc/", "cgroup/", "pressure/", "gpu/", "monitor/", "servers/")
"""Columns with these prefixes are of samples, and most are not drawn. Columns of batches and epochs are all read."""
KINDS_OVER_TIME = ("samples", "batches")


class Span(NamedTuple):
    """Start and end of the part of a training that a page zooms into, in Unix seconds."""

    start: float
    end: float
    is_close: bool = True
    """Whether it is short enough to be shown from the record. Otherwise it is shown from the overview."""


class Intervals(NamedTuple):
    """Aggregated rows of a record: one row for each interval, oldest first.

    Both tables have the columns time (Unix s, the end of the interval), step, and the metrics.
    """

    means: pandas.DataFrame
    highest: pandas.DataFrame
    settled: float = 0.0
    """Rows up to this time (Unix s) stay as they are. Later rows are computed again at each request."""

    def where(self, chosen: "pandas.Series[bool]") -> "Intervals":
        """Return the chosen intervals."""
        return Intervals(self.means[chosen], self.highest[chosen])


def intervals(folder: Path, kind: str, span: Span | None = None, steps_before: int = 0) -> Intervals:
    """Return the intervals of a record in the folder of a training server, narrower within `span`.

    The means of `kind` batches have a column `steps`: the number of steps in each interval. Those of samples have a
    column `ROWS` with their number. The record begins after `steps_before` steps.
    """
    overview = _joined(segments(folder / OVERVIEW, kind), kind)
    weights = _steps(overview, steps_before) if kind == "batches" else _rows(overview)
    evened, latest = _evened(overview, weights), _latest(folder, kind, overview)
    parts = [evened, latest]
    if span:
        if span.is_close:
            closer = [_closely(folder, kind, span)]
        else:
            stored = Intervals(*split_maxima(overview))
            closer = [part.where(part.means["time"].between(span.start, span.end)) for part in (stored, latest)]
        before = [part.where(part.means["time"] < span.start) for part in parts]
        parts = [*before, *closer, *(part.where(part.means["time"] > span.end) for part in parts)]
    means = pandas.concat([part.means for part in parts], ignore_index=True)
    if kind == "batches":
        means["steps"] = _steps(means, steps_before)
    else:
        means[ROWS] = _rows(means)
    return Intervals(means, pandas.concat([part.highest for part in parts], ignore_index=True), evened.settled)


def steps_before(folder: Path, steps_per_epoch: int) -> int:
    """Return the number of the last step before a training: 0, unless it continues another one."""
    return (first_epoch(load_changes(folder)) - 1) * steps_per_epoch


def step_intervals(folder: Path) -> pandas.DataFrame:
    """Return the means of all intervals of batches, as narrow as they are stored."""
    overview = _joined(segments(folder / OVERVIEW, "batches"), "batches")
    return pandas.concat([split_maxima(overview)[0], _latest(folder, "batches", overview).means], ignore_index=True)


def epochs(folder: Path) -> pandas.DataFrame:
    """Return the completed epochs, as `read` does."""
    return _joined(segments(folder / OVERVIEW, "epochs"), "epochs")


def _joined(paths: Sequence[Path], kind: str) -> pandas.DataFrame:
    """Return the rows of segments, without the steps that a retry has taken again."""
    if not paths:
        return pandas.DataFrame({"time": np.empty(0), "step": np.empty(0, dtype=np.int64)})
    table = pandas.concat([_parsed(path) for path in paths], ignore_index=True)
    return table if kind == "samples" else surviving_rows(table)


def _parsed(path: Path) -> pandas.DataFrame:
    try:
        modified_ns = closed(path).stat().st_mtime_ns
    except FileNotFoundError:  # The segment still grows.
        return _read(path)
    return _closed(path, modified_ns)


@lru_cache(maxsize=MAX_KEPT)
def _closed(path: Path, _mtime_ns: int) -> pandas.DataFrame:
    """Return a segment that never changes again, which is read once for all pages."""
    return _read(path)


def _read(path: Path) -> pandas.DataFrame:
    """Read a segment without the columns that no figure shows. The copy is one block of memory, which is faster.

    Raises SizeError if it is too large.
    """
    for file in filter(Path.exists, (path, closed(path))):
        require_size(file, file.stat().st_size, MAX_FILE_BYTES)
    return read_segment(path, _is_drawn).copy()


def _is_drawn(column: str) -> bool:
    name = column.removesuffix(HIGHEST)
    return name == ROWS or name in DRAWN or not name.startswith(_SAMPLED) or is_combined(name)


def _evened(overview: pandas.DataFrame, weights: Array) -> Intervals:
    """Return the overview in intervals of the same width. Stored intervals are narrow at the start of a training.

    `weights` are how much each stored interval counts in a mean.
    """
    if not len(overview):
        return Intervals(overview, overview)
    first, last = (float(overview["time"].iloc[row]) for row in (0, -1))
    width = even_width(last - first)
    if width <= MIN_INTERVAL_S:
        return Intervals(*split_maxima(overview), last)
    # The last interval of this width still grows, so it is not settled.
    return Intervals(*widen(overview, width, weights), last // width * width)


def _steps(intervals: pandas.DataFrame, before: int) -> Array:
    """Return the steps of each interval, the first of which begins after `before` steps.

    One in which a retry went back has none, until the overview is updated.
    """
    return np.maximum(np.diff(intervals["step"].to_numpy(dtype=float), prepend=float(before)), 0.0)


def _rows(intervals: pandas.DataFrame) -> Array:
    """Return the number of samples of each interval: 1 of a single sample, which a page shows closely."""
    if ROWS not in intervals:
        return np.ones(len(intervals))
    return intervals[ROWS].fillna(1.0).to_numpy(dtype=float)


def even_width(seconds: float) -> float:
    """Return the width of the intervals of a training of so many seconds. It doubles, so that most intervals stay."""
    return MIN_INTERVAL_S * 2.0 ** max(0, math.ceil(math.log2(max(1.0, seconds) / MIN_INTERVAL_S / MAX_INTERVALS)))


def _closely(folder: Path, kind: str, span: Span) -> Intervals:
    """Return the rows of a span, or narrow intervals if it has many. Only segments that have some of them are read."""
    table = _joined(segments_of_span(segments(folder / "record", kind), span, first_time), kind)
    rows = table[table["time"].between(span.start, span.end)]
    if len(rows) <= MAX_ROWS:
        # Each row is its own mean and maximum.
        return Intervals(rows, rows)
    return Intervals(*aggregate_table(rows, (span.end - span.start) / MAX_ROWS))


def _latest(folder: Path, kind: str, overview: pandas.DataFrame) -> Intervals:
    """Return intervals of the rows that the overview does not have yet."""
    since = float(overview["time"].iloc[-1]) if len(overview) else 0.0
    newest: list[Path] = []
    # From the newest segment back, because the overview is only seconds behind. Not by bisection: it would open more
    # segments, and a clock that was set back between two attempts would mislead it.
    for path in reversed(segments(folder / "record", kind)):
        newest.insert(0, path)
        begin = first_time(path)
        if begin is not None and begin <= since:
            break
    table = _joined(newest, kind)
    return Intervals(*aggregate_table(table[table["time"] > since], TAIL_S))


def segments_of_span(paths: Sequence[P], span: Span, first_time: Callable[[P], float | None]) -> Sequence[P]:
    """Return the segments of a record, oldest first, that have rows of a span. Few of them are opened."""

    def begin(path: P) -> float:
        time = first_time(path)
        return math.inf if time is None else time

    first = bisect_right(paths, span.start, key=begin) - 1
    return paths[max(0, first) : bisect_right(paths, span.end, key=begin)]


def gaps(times: Array) -> list[int]:
    """Return the rows after which nothing was measured for a while, as between two attempts of a training.

    Intervals grow wider with time. One that is four times as wide as the one before it is a gap.
    """
    steps = np.diff(times)
    usual = np.append(steps[:1], steps[:-1])
    return [int(row) for row in np.flatnonzero(steps > np.maximum(5.0, 4 * usual))]
