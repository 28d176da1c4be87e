"""The local record: every row in full resolution, as CSV that a killed process leaves readable.

    record/samples-00000.csv   time,step,sys/cpu_pct,...      a segment a process, and one more
    record/batches-00000.csv   time,step,input/wait_ms,...    whenever a new column appears
    record/epochs-00000.csv    time,step,loss,...

Each row is one write to the operating system when it comes, so SIGKILL loses at most the row being written. Ten hours
with 8 GPUs and 20 ms steps are about 160 MB of text (90 of batches, 70 of samples), a third of it compressed.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pipeline.monitor.row import KINDS, Row

if TYPE_CHECKING:
    import pandas

_TAIL_BYTES = 64 * 1024  # more than any line: 8 GPUs make lines of half a KB


class RecordSink:
    """Writes rows into CSV segments in ``folder`` (made if missing).

    Raises OSError where the folder or the disk cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._open: dict[str, _Segment] = {}

    def write(self, row: Row) -> None:
        segment = self._open.get(row.kind)
        if segment is None or not segment.holds(row):
            segment = self._open[row.kind] = self._next_segment(row, segment)
        segment.append(row)

    def close(self) -> None:
        for segment in self._open.values():
            segment.close()
        self._open.clear()

    def _next_segment(self, row: Row, before: _Segment | None) -> _Segment:
        # The columns of before are kept: a metric that comes and goes would otherwise start a segment a row.
        columns = dict.fromkeys((*(before.columns if before else ()), *row.values))
        if before:
            before.close()
        return _Segment(_create_next(self._folder, row.kind), tuple(columns))


class _Segment:
    def __init__(self, file: TextIO, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self._known = frozenset(columns)
        self._file = file
        csv.writer(file, lineterminator="\n").writerow(("time", "step", *columns))

    def holds(self, row: Row) -> bool:
        return row.values.keys() <= self._known

    def append(self, row: Row) -> None:
        values = (_number(row.values.get(name)) for name in self.columns)
        self._file.write(",".join((f"{row.time:.3f}", str(row.step), *values)) + "\n")

    def close(self) -> None:
        self._file.close()


def as_recorded(value: float) -> float:
    """What `read` gives for a value: the same to seven digits."""
    return float(_number(value))


def _number(value: float | None) -> str:
    """Whole numbers in full, others to seven digits, a 32-bit float's worth. Missing is empty, never zero."""
    if value is None:
        return ""
    value = float(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.7g}"


def _create_next(folder: Path, kind: str) -> TextIO:
    """Open a segment nobody wrote before: the last line of an earlier process may be torn, so none is continued."""
    number = _numbered(folder, kind)[-1][0] + 1 if segments(folder, kind) else 0
    while True:
        try:
            # Line-buffered: a row is in the hands of the operating system before the next one is taken.
            return open(folder / f"{kind}-{number:05d}.csv", "x", buffering=1, encoding="utf-8", newline="")
        except FileExistsError:  # a live twin was faster
            number += 1


def segments(folder: Path, kind: str) -> list[Path]:
    """The segments of one kind, oldest first."""
    return [path for _, path in _numbered(folder, kind)]


def _numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    found = ((re.fullmatch(rf"{kind}-(\d+)\.csv", path.name), path) for path in folder.glob(f"{kind}-*.csv"))
    return sorted((int(match[1]), path) for match, path in found if match)


def read(folder: Path, kind: str) -> pandas.DataFrame:
    """All rows of one kind, oldest first: columns time (unix s), step, then the metrics (NaN where missing).

    A torn last line is dropped. Of batches and epochs only the surviving line of steps is kept: what a resumed
    process repeated, or an earlier one did beyond the checkpoint, counts once. Empty where there is no record.
    """
    import pandas

    frames = [_read_segment(path) for path in segments(folder, kind)]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pandas.DataFrame({"time": pandas.Series(dtype=float), "step": pandas.Series(dtype=int)})
    table = pandas.concat(frames, ignore_index=True)
    return table if kind == "samples" else _surviving(table)


def _read_segment(path: Path) -> pandas.DataFrame:
    import pandas

    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    return pandas.read_csv(io.BytesIO(whole)) if whole else pandas.DataFrame()


def _surviving(table: pandas.DataFrame) -> pandas.DataFrame:
    """Rows whose step no later row reaches or repeats."""
    import numpy as np

    steps = table["step"].to_numpy()
    lowest_from_here = np.minimum.accumulate(steps[::-1])[::-1]
    kept = np.append(steps[:-1] < lowest_from_here[1:], True)
    return table[kept].reset_index(drop=True)


def last_row(folder: Path, kind: str) -> dict[str, float] | None:
    """The newest whole row as {"time", "step", metrics}, from the end of the newest segment; None where there is none.

    Cheap enough to be asked every second of a run of any length. Metrics missing in that row are left out.
    """
    for path in reversed(segments(folder, kind)):
        lines = _header_and_tail(path)
        if len(lines) > 1:
            header, last = csv.reader((lines[0], lines[-1]))
            return {name: float(text) for name, text in zip(header, last, strict=True) if text}
    return None


def _header_and_tail(path: Path) -> Sequence[str]:
    """The header line, then the whole lines among the last bytes of the file."""
    with open(path, "rb") as file:
        header = file.readline()
        start = max(file.tell(), os.fstat(file.fileno()).st_size - _TAIL_BYTES)
        file.seek(start)
        tail = file.read()
    return [line.decode() for line in (header, *tail.splitlines(keepends=True)) if line.endswith(b"\n")]
