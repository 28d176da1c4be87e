"""The rows of a record, few enough to be drawn: windows of the overview, and closer ones where somebody looks closer.

Two tables of one shape: the means of each window, and the highest values in it.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pandas

from pipeline.monitor.aggregation import HIGHEST, aggregate_table, split_maxima, widen
from pipeline.monitor.gpu_columns import is_combined
from pipeline.monitor.overview import OVERVIEW
from pipeline.monitor.record import first_time, read_segment, segments, surviving
from pipeline.report.series import Array
from pipeline.report.utilization import PANELS

P = TypeVar("P")
MAX_ROWS = 2000
"""In a span that is looked at closely; no screen shows more."""
MAX_WINDOWS = 1500
"""Of a training as a whole: a few for each pixel of a panel."""
MAX_KEPT = 128
"""Segments; those of overviews take 0.3 MB each, and one that somebody looks closely at 1.2 MB."""
TAIL_S = 1.0
"""Width of the windows of the latest rows, of which the overview has none yet."""
NARROWEST_S = 2.0
"""As those of the overview are at first."""
_DRAWN = {curve.column for panel in PANELS for curve in panel.curves}
_SAMPLED = ("sys/", "proc/", "cgroup/", "pressure/", "gpu/", "monitor/", "servers/")
KINDS_OVER_TIME = ("samples", "batches")


class Span(NamedTuple):
    """Start and end of an interval, in Unix seconds. It is shown from the record if it is close, else the overview."""

    start: float
    end: float
    is_close: bool = True


class Windows(NamedTuple):
    """`means` and `highest` have columns time (unix s), step and the metrics; a row a window, oldest first.

    Up to the time `settled` they stay as they are; later ones are made anew each time that they are asked for.
    """

    means: pandas.DataFrame
    highest: pandas.DataFrame
    settled: float = 0.0


def windows(folder: Path, kind: str, span: Span | None = None) -> Windows:
    """Return the windows of a record in the folder of a training server, within `span` as closely as it says.

    Of batches the means also have `steps`: how many each window has.
    """
    overview = _overview(folder / OVERVIEW, kind)
    since = float(overview["time"].iloc[-1]) if len(overview) else 0.0
    evened = _evened(overview, kind)
    latest = Windows(*aggregate_table(_latest(folder / "record", kind, since), TAIL_S))
    parts = [evened, latest]
    if span:
        if span.is_close:
            closer = [_closely(_between(folder / "record", kind, span), span)]
        else:
            closer = [_within(part, span) for part in (Windows(*split_maxima(overview)), latest)]
        parts = [_cut(part, span, after=False) for part in parts] + closer + [_cut(p, span, after=True) for p in parts]
    means = pandas.concat([part.means for part in parts], ignore_index=True)
    if kind == "batches":
        means["steps"] = _steps(means)
    return Windows(means, pandas.concat([part.highest for part in parts], ignore_index=True), evened.settled)


def step_windows(folder: Path) -> pandas.DataFrame:
    """Return the means of all windows of batches, as narrow as they are stored, and the `steps` of each."""
    overview = _overview(folder / OVERVIEW, "batches")
    since = float(overview["time"].iloc[-1]) if len(overview) else 0.0
    latest = Windows(*aggregate_table(_latest(folder / "record", "batches", since), TAIL_S))
    means = pandas.concat([split_maxima(overview)[0], latest.means], ignore_index=True)
    return means.assign(steps=_steps(means))


def epochs(folder: Path) -> pandas.DataFrame:
    """The epochs that were finished, as `read` gives them."""
    return _overview(folder / OVERVIEW, "epochs")


def _overview(folder: Path, kind: str) -> pandas.DataFrame:
    tables = [_parsed(path) for path in segments(folder, kind)]
    if not tables:
        return pandas.DataFrame({"time": np.empty(0), "step": np.empty(0, dtype=np.int64)})
    table = pandas.concat(tables, ignore_index=True)
    return table if kind == "samples" else surviving(table)


def _parsed(path: Path) -> pandas.DataFrame:
    try:
        closed = path.with_name(f"{path.name}.gz").stat()
    except FileNotFoundError:  # it grows still
        return _read(path)
    return _closed(path, closed.st_mtime_ns)


@lru_cache(maxsize=MAX_KEPT)
def _closed(path: Path, _mtime_ns: int) -> pandas.DataFrame:
    """A segment that never changes again, read once for all who look at it."""
    return _read(path)


def _read(path: Path) -> pandas.DataFrame:
    """Without the samples that no figure shows. A copy: one block is worked on faster than many."""
    return read_segment(path, _is_drawn).copy()


def _is_drawn(column: str) -> bool:
    name = column.removesuffix(HIGHEST)
    return name in _DRAWN or not name.startswith(_SAMPLED) or is_combined(name)


def _evened(overview: pandas.DataFrame, kind: str) -> Windows:
    """The overview in windows as wide as each other: it begins with narrow ones, more than are seen beside the rest."""
    if not len(overview):
        return Windows(overview, overview)
    first, last = (float(overview["time"].iloc[row]) for row in (0, -1))
    width = even_width(last - first)
    if width <= NARROWEST_S:
        return Windows(*split_maxima(overview), last)
    weights = _steps(overview) if kind == "batches" else np.ones(len(overview))
    return Windows(*widen(overview, width, weights), last // width * width)


def _steps(windows: pandas.DataFrame) -> Array:
    """How many steps each has; none where a new try went back, until the overview knows of it."""
    return np.maximum(np.diff(windows["step"].to_numpy(dtype=float), prepend=0.0), 0.0)


def even_width(seconds: float) -> float:
    """Of the windows of so many seconds: doubled now and then, so that a window stays as it is while they grow."""
    return NARROWEST_S * 2.0 ** max(0, math.ceil(math.log2(max(1.0, seconds) / NARROWEST_S / MAX_WINDOWS)))


def _closely(rows: pandas.DataFrame, span: Span) -> Windows:
    if len(rows) <= MAX_ROWS:
        return Windows(rows, rows)
    return Windows(*aggregate_table(rows, (span.end - span.start) / MAX_ROWS))


def _cut(part: Windows, span: Span, after: bool) -> Windows:
    time = part.means["time"]
    kept = time > span.end if after else time < span.start
    return Windows(part.means[kept], part.highest[kept])


def _within(part: Windows, span: Span) -> Windows:
    kept = part.means["time"].between(span.start, span.end)
    return Windows(part.means[kept], part.highest[kept])


def _latest(folder: Path, kind: str, since: float) -> pandas.DataFrame:
    """The rows that came after a moment."""
    tables: list[pandas.DataFrame] = []
    for path in reversed(segments(folder, kind)):
        tables.insert(0, _parsed(path))
        if len(tables[0]) and tables[0]["time"].iloc[0] <= since:
            break
    return _joined(tables, kind, Span(np.nextafter(since, np.inf), np.inf))


def _between(folder: Path, kind: str, span: Span) -> pandas.DataFrame:
    """The rows of a span. Of a long record a few segments are read, found by the times at which they begin."""
    return _joined([_parsed(path) for path in of_span(segments(folder, kind), span, first_time)], kind, span)


def of_span(paths: Sequence[P], span: Span, first_time: Callable[[P], float | None]) -> Sequence[P]:
    """Those of the segments of a record, oldest first, that have rows of a span; few are looked into."""

    def begin(path: P) -> float:
        found = first_time(path)
        return math.inf if found is None else found

    first = bisect_right(paths, span.start, key=begin) - 1
    return paths[max(0, first) : bisect_right(paths, span.end, key=begin)]


def _joined(tables: list[pandas.DataFrame], kind: str, span: Span) -> pandas.DataFrame:
    if not tables:
        return pandas.DataFrame({"time": np.empty(0), "step": np.empty(0, dtype=np.int64)})
    table = pandas.concat(tables, ignore_index=True)
    table = table if kind == "samples" else surviving(table)
    return table[(table["time"] >= span.start) & (table["time"] <= span.end)]


def gaps(times: Array, widest: float = 5.0) -> list[int]:
    """The rows after which nothing was measured for a while, as when a training stood still between two tries.

    Windows grow wider with time; one that is four times as wide as that before it is no window.
    """
    steps = np.diff(times)
    usual = np.append(steps[:1], steps[:-1])
    return [int(row) for row in np.flatnonzero(steps > np.maximum(widest, 4 * usual))]
