"""The local record: every row in full resolution, as CSV that a killed process leaves readable.

    record/samples-00000.csv.gz   time,step,sys/cpu_pct,...      closed: compressed, never touched again
    record/samples-00001.csv      time,step,sys/cpu_pct,...      open: it grows
    record/batches-00000.csv      time,step,input/wait_ms,...
    record/epochs-00000.csv       time,step,loss,...

A segment is closed when it is full, when a new column appears, and when its process ends; what a killed process left
open, the next one compresses. Both files of a segment are there for a moment: they are one, and the compressed one
counts. A row reaches the operating system within a second after it came (pipeline/monitor/reporter.py), in one
write: SIGKILL loses no more than that.
"""

from __future__ import annotations

import csv
import fcntl
import gzip
import io
import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pipeline.monitor.row import KINDS, Row
from pipeline.servers import SERVERS
from pipeline.storage import write_whole

if TYPE_CHECKING:
    import pandas

SEGMENT_BYTES = 2_000_000
"""Closes a segment: compressed in a tenth of a second, every eight minutes with 8 GPUs and 20 ms steps.

A bucket gets what is open again every few seconds, and what is closed once. By size alone: by the clock, a month of
epochs would be thousands of files.
"""
_LEVEL = 4  # 6 takes twice the time for 5% less
_OF_ALL = ("time", "step")
_NOTHING = b"time,step\n"
_TAIL_BYTES = 64 * 1024  # more than any line: 8 GPUs make lines of one KB
log = logging.getLogger(__name__)


class RecordSink:
    """Writes rows into CSV segments in ``folder`` (made if missing), and compresses those that are closed.

    Compression is done by whoever writes: rows have their time, and wait in the reporter's queue for a tenth of a
    second. Raises OSError where the folder or the disk cannot be written.
    """

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._segment_bytes = folder, segment_bytes
        self._open: dict[str, _Segment] = {}
        for kind in KINDS:
            for path in segments(folder, kind):
                _compress(path)

    def write(self, row: Row) -> None:
        before = self._open.get(row.kind)
        if before and before.holds(row) and before.size < self._segment_bytes:
            before.append(row)
            return
        segment = self._open[row.kind] = self._next_segment(row, before)
        segment.append(row)
        if before:
            before.close()  # after the row: that need not wait for the compression

    def close(self) -> None:
        for segment in self._open.values():
            segment.close()
        self._open.clear()

    def _next_segment(self, row: Row, before: _Segment | None) -> _Segment:
        # The columns of before are kept: a metric that comes and goes would otherwise start a segment a row.
        columns = dict.fromkeys((*(before.columns if before else ()), *row.values))
        return _Segment(*_create_next(self._folder, row.kind), tuple(columns))


class _Segment:
    def __init__(self, path: Path, file: TextIO, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.size = 0
        self._known = frozenset(columns)
        self._path, self._file = path, file
        try:
            csv.writer(file, lineterminator="\n").writerow((*_OF_ALL, *columns))
        except OSError:  # a full disk: each row that comes tries again, and would leave a file
            with suppress(OSError):
                file.close()
            path.unlink(missing_ok=True)
            raise

    def holds(self, row: Row) -> bool:
        return row.values.keys() <= self._known

    def append(self, row: Row) -> None:
        values = (_number(row.values.get(name)) for name in self.columns)
        line = ",".join((f"{row.time:.3f}", str(row.step), *values)) + "\n"
        self._file.write(line)
        self.size += len(line)

    def close(self) -> None:
        self._file.close()
        _compress(self._path)


def as_recorded(value: float) -> float:
    """What `read` gives for a value: the same to seven digits."""
    return float(_number(value))


def _number(value: float | None) -> str:
    """Whole numbers in full, others to seven digits, a 32-bit float's worth. Missing is empty, never zero."""
    if value is None:
        return ""
    value = float(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.7g}"


def _create_next(folder: Path, kind: str) -> tuple[Path, TextIO]:
    """Open a segment nobody wrote before: the last line of an earlier process may be torn, so none is continued."""
    number = _numbered(folder, kind)[-1][0] + 1 if segments(folder, kind) else 0
    while True:
        path = folder / f"{kind}-{number:05d}.csv"
        number += 1
        with suppress(FileExistsError):  # a live twin was faster
            # Line-buffered: a row is in the hands of the operating system before the next one is taken.
            file = open(path, "x", buffering=1, encoding="utf-8", newline="")  # noqa: SIM115 - the segment closes it
            fcntl.flock(file, fcntl.LOCK_EX)  # says that its process lives, for as long as it is open
            if not _compressed(path).exists():
                return path, file
            file.close()  # of a twin that has closed its own of this number meanwhile
            path.unlink(missing_ok=True)


def _compress(path: Path) -> None:
    """Have a segment compressed unless it is, or a live process has it open; where that fails it stays as it is."""
    try:
        with open(path, "r+b") as plain:  # to lock it needs that it might be written, on NFS
            fcntl.flock(plain, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _compressed(path).exists():
                with write_whole(_compressed(path)) as file:
                    file.write(gzip.compress(plain.read(), _LEVEL, mtime=0))
            path.unlink()
    except (FileNotFoundError, BlockingIOError):
        pass
    except OSError as error:
        log.warning("monitor: %s is not compressed: %s", path, error)


def _compressed(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


def segments(folder: Path, kind: str) -> list[Path]:
    """The segments of one kind, oldest first, by their names without ".gz"."""
    return [path for _, path in _numbered(folder, kind)]


def _numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    matches = (re.fullmatch(rf"({kind}-(\d+)\.csv)(\.gz)?", path.name) for path in folder.glob(f"{kind}-*.csv*"))
    return sorted({(int(match[2]), folder / match[1]) for match in matches if match})


def read(folder: Path, kind: str, columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """All rows of one kind, oldest first: columns time (unix s), step, then the metrics (float64, NaN where missing).

    With ``columns``, of the metrics only these, each of them. A torn last line is dropped. Of batches and epochs only
    the surviving line of steps is kept: what a resumed process repeated, or an earlier one did beyond the checkpoint,
    counts once. Empty where there is no record.
    """
    import pandas

    wanted = _every if columns is None else frozenset(columns).__contains__
    tables = [read_segment(path, wanted) for path in segments(folder, kind)]
    table = pandas.concat(tables or [_parsed(_NOTHING, wanted)], ignore_index=True)
    if columns is not None:
        table = table.reindex(columns=[*_OF_ALL, *columns])
    return table if kind == "samples" else surviving(table)


def rows(folder: Path, kind: str) -> Iterator[Row]:
    """What `read` gives, as rows; a value that is missing is left out."""
    for found in read(folder, kind).to_dict("records"):
        values = {str(name): float(value) for name, value in found.items() if value == value}
        yield Row(kind, values.pop("time"), int(values.pop("step")), values)


def _every(_name: str) -> bool:
    return True


def read_segment(path: Path, wanted: Callable[[str], bool] = _every) -> pandas.DataFrame:
    """The rows of one of `segments`, as `read` gives them, before it is known which of them survive.

    Of the metrics only those whose names are ``wanted``.
    """
    with _opened(path) as file:
        content = file.read()
    return _parsed(content[: content.rfind(b"\n") + 1] or _NOTHING, wanted)


def _parsed(content: bytes, wanted: Callable[[str], bool]) -> pandas.DataFrame:
    import pandas

    # Types are told: each segment would guess for itself, and not the same.
    types = defaultdict(lambda: "float64", step="int64")
    return pandas.read_csv(io.BytesIO(content), dtype=types, usecols=lambda name: name in _OF_ALL or wanted(name))


def _opened(path: Path) -> io.BufferedIOBase:
    """The text of a segment, which may be compressed at any moment."""
    with suppress(FileNotFoundError):
        return _unpacked(path)
    with suppress(FileNotFoundError):
        return open(path, "rb")
    return _unpacked(path)  # compressed between the two looks


def _unpacked(path: Path) -> io.BufferedIOBase:
    return gzip.open(_compressed(path))  # whoever looks for its first row unpacks no more than that


def surviving(table: pandas.DataFrame) -> pandas.DataFrame:
    """Rows whose step no later row reaches or repeats."""
    import numpy as np

    steps = table["step"].to_numpy()
    lowest_from_here = np.minimum.accumulate(steps[::-1])[::-1]
    kept = np.append(steps[:-1] < lowest_from_here[1:], True)[: len(steps)]
    return table[kept].reset_index(drop=True)


def first_time(path: Path) -> float | None:
    """The time of the first row of one of `segments`; None where it has none yet."""
    with _opened(path) as file:
        file.readline()
        row = file.readline()
    return float(row.partition(b",")[0]) if row.endswith(b"\n") else None


def record_folders(run_folder: Path) -> dict[int, Path]:
    """Where each training server of a run has its record, by its index; server 0 comes first, and always."""
    others = {int(path.name): path for path in (run_folder / SERVERS).glob("*") if path.name.isdecimal()}
    return {index: folder / "record" for index, folder in sorted({**others, 0: run_folder}.items())}


def read_servers(run_folder: Path, kind: str, columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """`read` of each training server of a run, one after the other: a first column ``server`` has their index."""
    import pandas

    tables = {index: read(folder, kind, columns) for index, folder in record_folders(run_folder).items()}
    return pandas.concat(tables, names=["server"]).reset_index(level="server").reset_index(drop=True)


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
    with _opened(path) as file:
        header = file.readline()
        file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        tail = file.read()
    return [line.decode() for line in (header, *tail.splitlines(keepends=True)) if line.endswith(b"\n")]
