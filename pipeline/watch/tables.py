"""The rows of a record, few enough to be drawn: windows of the overview, and closer ones where somebody looks closer.

Two tables of one shape: the means of each window, and the highest values in it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pandas

from pipeline.monitor.overview import OVERVIEW
from pipeline.monitor.record import first_time, read_segment, segments, surviving
from pipeline.report.series import Array
from pipeline.report.utilization import PANELS

P = TypeVar("P")
MOST_ROWS = 2000
"""In a span that is looked at closely; no screen shows more."""
TAIL_S = 1.0
"""Width of the windows of the latest rows, of which the overview has none yet."""
HIGHEST = "/max"
_DRAWN = {curve.column for panel in PANELS for curve in panel.curves}
_OF_A_GPU = re.compile(r"gpu/\d+/(util_pct|power_w|power_limit_w|throttled_\w+|mem_(used|total)_bytes)")
_SAMPLED = ("sys/", "proc/", "cgroup/", "pressure/", "gpu/", "monitor/", "servers/")
KINDS_OVER_TIME = ("samples", "batches")


class Span(NamedTuple):
    """From when to when, in unix seconds."""

    start: float
    end: float


class Windows(NamedTuple):
    """``means`` and ``highest`` have columns time (unix s), step and the metrics; a row a window, oldest first.

    Up to the time ``settled`` they stay as they are; later ones are made anew each time that they are asked for.
    """

    means: pandas.DataFrame
    highest: pandas.DataFrame
    settled: float = 0.0


def windows(folder: Path, kind: str, span: Span | None = None) -> Windows:
    """All of a record in the folder of a training server; within ``span`` as closely as it was measured."""
    overview = _overview(folder / OVERVIEW, kind)
    since = float(overview["time"].iloc[-1]) if len(overview) else 0.0
    parts = [_split(overview), _grouped(_latest(folder / "record", kind, since), TAIL_S)]
    if span:
        closely = _closely(_between(folder / "record", kind, span), span)
        parts = (
            [_cut(part, span, after=False) for part in parts] + [closely] + [_cut(p, span, after=True) for p in parts]
        )
    means = pandas.concat([part.means for part in parts], ignore_index=True)
    return Windows(means, pandas.concat([part.highest for part in parts], ignore_index=True), since)


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


@lru_cache(maxsize=32)
def _closed(path: Path, _mtime_ns: int) -> pandas.DataFrame:
    """A segment that never changes again, read once for all who look at it."""
    return _read(path)


def _read(path: Path) -> pandas.DataFrame:
    """Without the samples that no figure shows. A copy: one block is worked on faster than many."""
    return read_segment(path, _is_drawn).copy()


def _is_drawn(column: str) -> bool:
    name = column.removesuffix(HIGHEST)
    return name in _DRAWN or not name.startswith(_SAMPLED) or _OF_A_GPU.fullmatch(name) is not None


def _split(overview: pandas.DataFrame) -> Windows:
    highest = [name for name in overview.columns if name.endswith(HIGHEST)]
    means = overview.drop(columns=highest)
    named = overview[["time", "step", *highest]].rename(columns=lambda name: name.removesuffix(HIGHEST))
    return Windows(means, named)


def _grouped(rows: pandas.DataFrame, width: float) -> Windows:
    """Windows of so many seconds, with the time and step of their last rows."""
    groups = rows.groupby((rows["time"] // width).to_numpy(), sort=True)
    ends = groups[["time", "step"]].max()
    rest = groups[[name for name in rows if name not in ends]]
    return Windows(ends.join(rest.mean()), ends.join(rest.max()))


def _closely(rows: pandas.DataFrame, span: Span) -> Windows:
    return _grouped(rows, (span.end - span.start) / MOST_ROWS) if len(rows) > MOST_ROWS else Windows(rows, rows)


def _cut(part: Windows, span: Span, after: bool) -> Windows:
    time = part.means["time"]
    kept = time > span.end if after else time < span.start
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
