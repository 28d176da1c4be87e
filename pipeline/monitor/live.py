"""The verdict on the last minute, in the log, while a training is under way."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from pipeline.monitor.row import Row
from pipeline.monitor.verdict import Limit, Verdict, diagnose

MOST_ROWS = 20_000
"""Of a kind, the newest: steps of a millisecond would else fill the memory with what is said in one sentence."""
log = logging.getLogger(__name__)


class LiveVerdict:
    """A sink that says every ``seconds`` what has limited the training since it said so last.

    ``words`` makes a text of a verdict. Where there were too few steps to say, it is silent: the end of the training
    says so.
    """

    def __init__(self, words: Callable[[Verdict], str] = attrgetter("sentence"), seconds: float = 60.0) -> None:
        self._words, self._seconds = words, seconds
        self._rows: dict[str, deque[Row]] = {kind: deque(maxlen=MOST_ROWS) for kind in ("samples", "batches")}
        self._begin: float | None = None

    def write(self, row: Row) -> None:
        if row.kind not in self._rows:
            return
        self._begin = row.time if self._begin is None else self._begin
        if row.time - self._begin >= self._seconds:
            self._say(row.time - self._begin)
            self._begin = row.time
        self._rows[row.kind].append(row)

    def _say(self, seconds: float) -> None:
        samples, batches = (table(rows) for rows in self._rows.values())
        for rows in self._rows.values():
            rows.clear()
        verdict = diagnose(batches, samples, os.cpu_count())
        if verdict.limit is not Limit.UNKNOWN:
            log.info("the last %.0f s: %s", seconds, self._words(verdict))


def table(rows: Collection[Row]) -> Mapping[str, NDArray[np.float64]]:
    """Rows as columns: time, step and each value, NaN where a row has none."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    columns = {name: np.array([row.values.get(name, np.nan) for row in rows]) for name in names}
    fixed = {"time": np.array([row.time for row in rows]), "step": np.array([row.step for row in rows])}
    return {**fixed, **columns}
