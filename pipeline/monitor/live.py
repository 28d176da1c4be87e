"""The verdict on the last minute, in the log, while a training is under way."""

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.monitor.limits import Limit
from pipeline.monitor.load import Load
from pipeline.monitor.row import KINDS, Row
from pipeline.monitor.verdict import Verdict, diagnose, numbers
from pipeline.storage import write_whole

MAX_ROWS = 20_000
"""Of a kind, the newest: steps of a millisecond would else fill the memory with what is said in one sentence."""
FIRST_S, EVERY_S = 20.0, 60.0
"""After so long for the first time, since a person looks most at the start; then each so many seconds."""
_log = logging.getLogger(__name__)

Columns = Mapping[str, NDArray[np.float64]]


class LiveVerdict:
    """A sink that says every minute what has limited the training since it said so last.

    `words` makes a text of a verdict. The last one is kept in `file`, as JSON: `sentence`, `limit`, `limits`,
    its `numbers`, its `time` (Unix s), and the length of its interval in `seconds`. If there were too few steps for
    a verdict, it says nothing. The end of the training does.
    If no step ended at all, it says what the training is `doing`, as the first batch or the compilation may take
    minutes.
    """

    def __init__(
        self,
        words: Callable[[Verdict], str] = attrgetter("sentence"),
        file: Path | None = None,
        doing: Callable[[], str] = lambda: "",
    ) -> None:
        self._words, self._file, self._doing, self._seconds = words, file, doing, FIRST_S
        self._without_step_s = 0.0
        """Seconds since the last window with a step."""
        self._rows: dict[str, deque[Row]] = {kind: deque(maxlen=MAX_ROWS) for kind in KINDS}
        self._begin: float | None = None

    def write(self, row: Row) -> None:
        if row.kind not in self._rows:
            return
        self._begin = row.time if self._begin is None else self._begin
        seconds = row.time - self._begin
        if seconds >= self._seconds:
            tables = {kind: table(rows) for kind, rows in self._rows.items()}
            # The next window begins before anything is said: an error in a sentence must not repeat with every row.
            for rows in self._rows.values():
                rows.clear()
            self._begin, self._seconds = row.time, EVERY_S
            self._rows[row.kind].append(row)
            self._say(row.time, seconds, tables)
        else:
            self._rows[row.kind].append(row)

    def _say(self, time: float, seconds: float, tables: Mapping[str, Columns]) -> None:
        batches = tables["batches"]
        if not len(batches["time"]):
            self._without_step_s += seconds
            if doing := self._doing():
                said = f"No step has ended for {self._without_step_s:.0f} s: {doing}."
                self._keep(time, seconds, Verdict((Limit.UNKNOWN,), said, Load()), said)
            return
        self._without_step_s = 0.0
        verdict = diagnose(batches, tables["samples"], os.cpu_count(), tables["epochs"], whole=False)
        if verdict.limit is not Limit.UNKNOWN:
            self._keep(time, seconds, verdict, self._words(verdict))

    def _keep(self, time: float, seconds: float, verdict: Verdict, sentence: str) -> None:
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
        with write_whole(self._file) as file:
            file.write(json.dumps(content).encode())


def table(rows: Collection[Row]) -> Columns:
    """Rows as columns: time, step and each value, NaN where a row has none."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    columns = {name: np.array([row.values.get(name, np.nan) for row in rows]) for name in names}
    fixed = {"time": np.array([row.time for row in rows]), "step": np.array([row.step for row in rows])}
    return {**fixed, **columns}
