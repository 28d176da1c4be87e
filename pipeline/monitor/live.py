"""The verdict on the last minute, in the log, while a training is under way."""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.monitor.row import Row
from pipeline.monitor.verdict import Limit, Verdict, diagnose
from pipeline.storage import write_whole

MOST_ROWS = 20_000
"""Of a kind, the newest: steps of a millisecond would else fill the memory with what is said in one sentence."""
FIRST_S, EVERY_S = 20.0, 60.0
"""After so long for the first time, since a person looks most at the start; then each so many seconds."""
log = logging.getLogger(__name__)


class LiveVerdict:
    """A sink that says every minute what has limited the training since it said so last.

    ``words`` makes a text of a verdict, and ``file`` is where the last one is kept, as JSON, for those who look on:
    ``sentence``, ``limit``, ``wait_fraction``, the ``time`` that it was said (unix s) and of how many ``seconds`` it
    tells. Where there were too few steps to say, it is silent: the end of the training says so.
    """

    def __init__(self, words: Callable[[Verdict], str] = attrgetter("sentence"), file: Path | None = None) -> None:
        self._words, self._file, self._seconds = words, file, FIRST_S
        self._rows: dict[str, deque[Row]] = {kind: deque(maxlen=MOST_ROWS) for kind in ("samples", "batches")}
        self._begin: float | None = None

    def write(self, row: Row) -> None:
        if row.kind not in self._rows:
            return
        self._begin = row.time if self._begin is None else self._begin
        if row.time - self._begin >= self._seconds:
            self._say(row.time, row.time - self._begin)
            self._begin, self._seconds = row.time, EVERY_S
        self._rows[row.kind].append(row)

    def _say(self, time: float, seconds: float) -> None:
        samples, batches = (table(rows) for rows in self._rows.values())
        for rows in self._rows.values():
            rows.clear()
        verdict = diagnose(batches, samples, os.cpu_count())
        if verdict.limit is not Limit.UNKNOWN:
            sentence = self._words(verdict)
            log.info("the last %.0f s: %s", seconds, sentence)
            self._keep(
                {
                    "time": time,
                    "seconds": seconds,
                    "limit": verdict.limit.value,
                    "wait_fraction": round(verdict.wait_fraction, 4),
                    "sentence": sentence,
                }
            )

    def _keep(self, content: Mapping[str, float | str]) -> None:
        if self._file:
            with write_whole(self._file) as file:
                file.write(json.dumps(content).encode())


def table(rows: Collection[Row]) -> Mapping[str, NDArray[np.float64]]:
    """Rows as columns: time, step and each value, NaN where a row has none."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    columns = {name: np.array([row.values.get(name, np.nan) for row in rows]) for name in names}
    fixed = {"time": np.array([row.time for row in rows]), "step": np.array([row.step for row in rows])}
    return {**fixed, **columns}
