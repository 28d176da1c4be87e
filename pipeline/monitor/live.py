"""The verdict on the last minute of a training that is under way, for the log and the live pages."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np

from pipeline.monitor.diagnosis import Table
from pipeline.monitor.limits import Limit
from pipeline.monitor.load import Load
from pipeline.monitor.row import KINDS, Row
from pipeline.monitor.verdict import Verdict, diagnose, numbers
from pipeline.storage import write_json

MAX_ROWS = 20_000
"""Limit for the rows of each kind. Without it, steps of a millisecond would fill the memory for one sentence."""
FIRST_S, EVERY_S = 20.0, 60.0
"""The first verdict comes soon, because people look most at the start. The next ones come at this interval."""
_log = logging.getLogger(__name__)


class LiveVerdict:
    """A sink that logs every minute what has limited the training since the verdict before.

    If there were too few steps for a verdict, it logs nothing: the verdict at the end of the training covers them. If
    no step ended at all, it logs what the training is doing, because the first batch or the compilation may take
    minutes.

    Args:
        format_verdict: Makes a text of a verdict.
        file: Where the last verdict is stored, as JSON: `sentence`, `limit`, `limits`, its `numbers`, its `time`
            (Unix s), and the length of its interval in `seconds`.
        doing: What the training is doing now; empty if unknown.
    """

    def __init__(
        self, format_verdict: Callable[[Verdict], str], file: Path | None = None, doing: Callable[[], str] = lambda: ""
    ) -> None:
        self._format_verdict, self._file, self._doing, self._seconds = format_verdict, file, doing, FIRST_S
        self._without_step_s = 0.0
        """Seconds without a step, up to the end of the last interval."""
        self._rows: dict[str, deque[Row]] = {kind: deque(maxlen=MAX_ROWS) for kind in KINDS}
        self._begin: float | None = None

    def write(self, row: Row) -> None:
        """Add a row, and judge the interval if it is over."""
        if row.kind not in self._rows:
            return
        self._begin = row.time if self._begin is None else self._begin
        seconds = row.time - self._begin
        if seconds < self._seconds:
            self._rows[row.kind].append(row)
            return
        tables = {kind: table(rows) for kind, rows in self._rows.items()}
        # The next interval begins before the verdict: an error in a sentence must not repeat with every row.
        for rows in self._rows.values():
            rows.clear()
        self._begin, self._seconds = row.time, EVERY_S
        self._rows[row.kind].append(row)
        self._judge(row.time, seconds, tables)

    def _judge(self, time: float, seconds: float, tables: Mapping[str, Table]) -> None:
        batches = tables["batches"]
        if not len(batches["time"]):
            self._without_step_s += seconds
            if doing := self._doing():
                sentence = f"No step has ended for {self._without_step_s:.0f} s: {doing}."
                self._publish(time, seconds, Verdict((Limit.UNKNOWN,), sentence, Load()), sentence)
            return
        self._without_step_s = 0.0
        verdict = diagnose(batches, tables["samples"], tables["epochs"], whole=False)
        if verdict.limit is not Limit.UNKNOWN:
            self._publish(time, seconds, verdict, self._format_verdict(verdict))

    def _publish(self, time: float, seconds: float, verdict: Verdict, sentence: str) -> None:
        _log.info("the last %.0f s: %s", seconds, sentence)
        if not self._file:
            return
        content = {
            "time": time,
            "seconds": seconds,
            "limit": verdict.limit.value,
            "limits": [limit.value for limit in verdict.limits],
            **numbers(verdict),
            "sentence": sentence,
        }
        write_json(self._file, content)


def table(rows: Collection[Row]) -> Table:
    """Return rows as columns: time, step and each metric, which is NaN in rows without it."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    columns = {name: np.array([row.values.get(name, np.nan) for row in rows]) for name in names}
    fixed = {"time": np.array([row.time for row in rows]), "step": np.array([row.step for row in rows])}
    return {**fixed, **columns}
