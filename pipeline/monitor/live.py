"""The verdict on the last steps of a training that is under way, for the log and the live pages."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from pipeline.monitor.diagnosis import Table, is_steady
from pipeline.monitor.limits import Limit
from pipeline.monitor.load import Load, is_of_load
from pipeline.monitor.row import KINDS, Row
from pipeline.monitor.verdict import Verdict, diagnose, has_enough_steps, numbers
from pipeline.storage import write_json

MAX_ROWS = 20_000
"""Limit for the rows of each kind in an interval. Without it, steps of a millisecond would fill the memory."""
FIRST_S, EVERY_S = 20.0, 60.0
"""The first verdict comes soon, because people look most at the start. The next ones come at this interval."""
MAX_INTERVALS = 60
"""A verdict goes back over at most this many intervals, an hour, to find enough steps. Ten steps of six minutes fit."""
_log = logging.getLogger(__name__)


class _Interval:
    """The rows of the time between two verdicts, by kind. `begin` is in Unix seconds."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.rows: dict[str, deque[Row]] = {kind: deque(maxlen=MAX_ROWS) for kind in KINDS}

    def add(self, row: Row) -> None:
        """Add a row. Of a sample, only the columns that a verdict reads are kept: there may be an hour of them."""
        if row.kind == "samples":
            values = {name: value for name, value in row.values.items() if is_of_load(name)}
            row = Row(row.kind, row.time, row.step, values)
        self.rows[row.kind].append(row)


class LiveVerdict:
    """A sink that logs every minute what limits the training.

    A verdict is about the newest intervals that have enough steps: the last minute, or more if steps are slow. While
    there are too few steps, it says how many there are. If no step ended, it says what the training is doing, because
    the first batch or the compilation may take minutes.

    Args:
        format_verdict: Makes a text of a verdict.
        file: Where the last verdict is stored, as JSON: `sentence`, `limit`, `limits`, its `numbers`, its `time`
            (Unix s), the length of its interval in `seconds`, and the number of its steady `steps`.
        doing: What the training is doing now; empty if unknown.
    """

    def __init__(
        self, format_verdict: Callable[[Verdict], str], file: Path | None = None, doing: Callable[[], str] = lambda: ""
    ) -> None:
        self._format_verdict, self._file, self._doing, self._seconds = format_verdict, file, doing, FIRST_S
        self._open: _Interval | None = None
        """The interval that still grows."""
        self._closed: deque[_Interval] = deque(maxlen=MAX_INTERVALS)
        """The intervals that the next verdict may need, oldest first."""
        self._last_step_at = 0.0
        """When the last step ended, or before the first one, when the first interval began (Unix s)."""

    def write(self, row: Row) -> None:
        """Add a row, and judge the newest intervals if the open one is over."""
        if row.kind not in KINDS:
            return
        if self._open is None:
            self._open, self._last_step_at = _Interval(row.time), row.time
        if row.time - self._open.begin < self._seconds:
            self._open.add(row)
            return
        # The next interval begins before the verdict: an error in a sentence must not repeat with every row.
        self._closed.append(self._open)
        self._open, self._seconds = _Interval(row.time), EVERY_S
        self._open.add(row)
        self._judge(row.time)

    def _judge(self, time: float) -> None:
        steps = self._closed[-1].rows["batches"]
        if steps:
            self._last_step_at = steps[-1].time
        silent_s = time - self._last_step_at
        # A step of a minute and more is no silence.
        if not steps and silent_s > 2 * self._longest_step_s():
            if doing := self._doing():
                sentence = f"No step has ended for {silent_s:.0f} s: {doing}."
                self._publish(time, silent_s, 0, Verdict((Limit.UNKNOWN,), sentence, Load()), sentence)
            return
        judged = self._newest_with_enough_steps()
        self._closed = deque(judged, maxlen=MAX_INTERVALS)
        batches, samples, epochs = (_table_of(judged, kind) for kind in ("batches", "samples", "epochs"))
        # A verdict leaves out the first step of the process, which takes a large part of its interval.
        begin = max([judged[0].begin, *batches["time"][batches["first"] > 0]])
        verdict = diagnose(batches, samples, epochs, whole=False)
        self._publish(time, time - begin, int(is_steady(batches).sum()), verdict, self._format_verdict(verdict))

    def _longest_step_s(self) -> float:
        """Return the time of the longest step that is kept; 0 if there is none."""
        steps = chain.from_iterable(interval.rows["batches"] for interval in self._closed)
        return max((row.values["step/time_ms"] for row in steps), default=0.0) / 1000

    def _newest_with_enough_steps(self) -> Sequence[_Interval]:
        """Return the fewest of the newest intervals that have enough steps for a verdict; all if they have too few."""
        intervals = list(self._closed)
        for first in range(len(intervals) - 1, -1, -1):
            if has_enough_steps(_table_of(intervals[first:], "batches")):
                return intervals[first:]
        return intervals

    def _publish(self, time: float, seconds: float, steps: int, verdict: Verdict, sentence: str) -> None:
        _log.info("the last %.0f s: %s", seconds, sentence)
        if not self._file:
            return
        content = {
            "time": time,
            "seconds": seconds,
            "steps": steps,
            "limit": verdict.limit.value,
            "limits": [limit.value for limit in verdict.limits],
            **numbers(verdict),
            "sentence": sentence,
        }
        write_json(self._file, content)


def _table_of(intervals: Iterable[_Interval], kind: str) -> Table:
    return table(list(chain.from_iterable(interval.rows[kind] for interval in intervals)))


def table(rows: Collection[Row]) -> Table:
    """Return rows as columns: time, step and each metric, which is NaN in rows without it."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    columns = {name: np.array([row.values.get(name, np.nan) for row in rows]) for name in names}
    fixed = {"time": np.array([row.time for row in rows]), "step": np.array([row.step for row in rows])}
    return {**fixed, **columns}
