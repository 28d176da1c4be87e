"""The local record: every row in full resolution, as CSV that a killed process leaves readable, then as Parquet.

    record/samples-00000.parquet  time,step,sys/cpu_pct,...      closed: never touched again
    record/samples-00001.csv      time,step,sys/cpu_pct,...      open: it grows
    record/batches-00000.csv      time,step,input/wait_ms,...
    record/epochs-00000.csv       time,step,loss,...

A segment is closed when it is full, when a new column appears, and when its process ends. The next process closes the
segments that a killed process left open. For a moment, both files of a segment exist, and the Parquet file counts. Of
Parquet, a reader of a long record takes only the columns that it needs. A row reaches the disk within two seconds after
it came (pipeline/monitor/reporter.py), so SIGKILL and a power loss lose no more than that. If an open segment is
damaged anyway, it is read up to the damage, with a warning. A damaged Parquet file has no rows.
"""

import csv
import fcntl
import io
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pipeline.monitor.row import KINDS, Row
from pipeline.rendezvous.servers import SERVERS
from pipeline.storage import sync_folder, write_whole

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import pyarrow
    from numpy.typing import NDArray

SEGMENT_BYTES = 2_000_000
"""A segment of this size is closed.

That takes a twentieth of a second, and with 8 GPUs and steps of 20 ms it happens every eight minutes.
A bucket gets the open segment again every few seconds, and a closed segment once. Only the size counts: closing by the
clock would make thousands of files of a month of epochs.
"""
CHUNK_ROWS = 20_000
"""`chunks` yields at least this many rows together: 20 MB with 8 GPUs. Many small tables would take longer."""
_PARQUET = {
    "compression": "zstd",
    "compression_level": 3,
    # Measured values hardly repeat. Bytes of equal weight do, so this is smaller than gzip, and written in a quarter of
    # the time.
    "use_dictionary": False,
    "use_byte_stream_split": True,
    "write_statistics": False,
    "write_page_checksum": True,
}
_TIME_AND_STEP = ("time", "step")
PARQUET = ".parquet"
"""Ending of the name of a closed segment."""
_HEADER = b"time,step"
_NOTHING = _HEADER + b"\n"
_NUMBER = re.compile(rb"(-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?|nan|-?inf)?")
_STEP = re.compile(rb"-?[0-9]{1,18}")
_NOT_PARSED = (ValueError, KeyError, csv.Error)
"""What Arrow and csv raise for lines that are no rows below a header."""
_TAIL_BYTES = 64 * 1024
"""More than any line has: with 8 GPUs, a line has one KB."""
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class RecordSink:
    """Writes rows into CSV segments in `folder` (made if missing), and stores closed segments as Parquet.

    The thread that writes does both, because rows can wait in the reporter's queue for a twentieth of a second.
    Raises OSError if the folder or the disk cannot be written.
    """

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._segment_bytes = folder, segment_bytes
        self._open: dict[str, _Segment] = {}
        for kind in KINDS:
            for path in segments(folder, kind):
                _store_as_parquet(path)

    def write(self, row: Row) -> None:
        """Write a row. If the disk fails, write it again into a new segment, because a part may be in the old one.

        Raises OSError if that fails, too. Then the next row begins a new segment.
        """
        before = self._open.get(row.kind)
        if before and before.can_append(row) and before.size < self._segment_bytes:
            try:
                before.append(row)
            except OSError as error:
                _log.warning("monitor: %s: trying again after %s", self._folder, error.strerror or error)
            else:
                return
        # The columns of `before` stay: a metric that comes and goes would otherwise begin a segment with each row.
        columns = dict.fromkeys((*(before.columns if before else ()), *row.values))
        segment = self._open[row.kind] = _Segment(*_create_next(self._folder, row.kind), tuple(columns))
        try:
            segment.append(row)
        finally:
            if before:
                before.close()  # After the row, which need not wait for it.

    def sync(self) -> None:
        """Bring all rows to the disk. Raises OSError if the disk fails."""
        unsynced = [segment for segment in self._open.values() if not segment.is_synced]
        for segment in unsynced:
            segment.sync()
        if any(segment.is_new for segment in unsynced):
            sync_folder(self._folder)
        for segment in unsynced:
            segment.is_new = False

    def close(self) -> None:
        """Close all segments. Raises OSError if the disk fails."""
        for segment in self._open.values():
            segment.close()
        self._open.clear()


class _Segment:
    def __init__(self, path: Path, file: IO[bytes], columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.size = 0
        self._is_torn = False
        self.is_synced = False
        self.is_new = True
        """Whether its name may be missing on the disk."""
        self._known = frozenset(columns)
        self._path, self._file = path, file
        header = io.StringIO(newline="")
        csv.writer(header, lineterminator="\n").writerow((*_TIME_AND_STEP, *columns))
        try:
            self._write(header.getvalue().encode())
        except OSError:  # The disk is full. Each row that comes tries again, and would leave a file.
            with suppress(OSError):
                file.close()
            path.unlink(missing_ok=True)
            raise

    def can_append(self, row: Row) -> bool:
        """Return whether the row can be appended: the segment has its columns, and the last line is whole."""
        return not self._is_torn and row.values.keys() <= self._known

    def append(self, row: Row) -> None:
        values = (_number(row.values.get(name)) for name in self.columns)
        line = ",".join((f"{row.time:.3f}", str(row.step), *values)) + "\n"
        self._write(line.encode())
        self.size += len(line)
        self.is_synced = False

    def _write(self, line: bytes) -> None:
        # Without a buffer: bytes that failed must not be written later, after the row was written elsewhere.
        self._is_torn = True
        while line:  # A disk that is nearly full takes a part, and the next call raises.
            line = line[self._file.write(line) :]
        self._is_torn = False

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self.is_synced = True

    def close(self) -> None:
        self._file.close()
        _store_as_parquet(self._path)


def as_recorded(value: float) -> float:
    """Return a value as `read` returns it after it was written: with seven digits."""
    return float(_number(value))


def _number(value: float | None) -> str:
    """Return whole numbers in full, and others with seven digits, as many as a 32-bit float has. None is empty."""
    if value is None:
        return ""
    value = float(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.7g}"


def _create_next(folder: Path, kind: str) -> tuple[Path, IO[bytes]]:
    """Create the next segment. No segment is continued, because the last line of an earlier process may be torn."""
    number = _numbered(folder, kind)[-1][0] + 1 if segments(folder, kind) else 0
    while True:
        path = folder / f"{kind}-{number:05d}.csv"
        number += 1
        with suppress(FileExistsError):  # Another live process was faster.
            # Not buffered: the operating system has a row before the next row comes.
            file = open(path, "xb", buffering=0)  # noqa: SIM115 - the segment closes it
            fcntl.flock(file, fcntl.LOCK_EX)  # As long as it is open, the lock shows that its process lives.
            if not closed(path).exists():
                return path, file
            file.close()  # Another process has closed its segment of this number meanwhile.
            path.unlink(missing_ok=True)


def _store_as_parquet(path: Path) -> None:
    """Close a segment, unless a live process has it open. If that fails, the segment stays as it is."""
    try:
        with open(path, "r+b") as plain:  # NFS locks only files that are open for writing.
            fcntl.flock(plain, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _stored_rows(path, _every) is None:
                write_closed(path, _rows_of_csv(path, plain.read(), _every))
                sync_folder(path.parent)  # A power loss must not keep the removal alone.
            path.unlink()
    # Another process has closed it, or a live process has it open.
    except (FileNotFoundError, BlockingIOError):
        pass
    except OSError as error:
        _log.warning("monitor: %s is not stored as Parquet: %s", path, error)


def write_closed(path: Path, rows: "pyarrow.Table", *, synced: bool = True) -> None:
    """Write the rows of one of `segments` as its Parquet file, and bring it to the disk. Raises OSError."""
    import pyarrow.parquet

    content = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(rows, content, **_PARQUET)
    with write_whole(closed(path), synced=synced) as file:
        file.write(content.getvalue())


def closed_name(name: str) -> str:
    """Return the name that a segment has once it is closed."""
    return name.removesuffix(".csv") + PARQUET


def closed(path: Path) -> Path:
    """Return the Parquet file of one of `segments`, which exists once that is closed."""
    return path.with_name(closed_name(path.name))


def of_segment(path: Path, use: Callable[[Path], _T]) -> _T:
    """Return `use` of the file of one of `segments`, which its process may close meanwhile.

    Raises FileNotFoundError if the segment has no file.
    """
    for file in (closed(path), path):
        with suppress(FileNotFoundError):
            return use(file)
    return use(closed(path))  # It was closed between the two attempts.


def segments(folder: Path, kind: str) -> list[Path]:
    """Return the segments of one kind, oldest first, by the names that they have while they are open."""
    return [path for _, path in _numbered(folder, kind)]


def _numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    matches = (re.fullmatch(rf"({kind}-(\d+))\.(csv|parquet)", path.name) for path in folder.glob(f"{kind}-*"))
    return sorted({(int(match[2]), folder / f"{match[1]}.csv") for match in matches if match})


def read(
    folder: Path, kind: str, columns: Sequence[str] | None = None, since: float | None = None
) -> "pandas.DataFrame":
    """Return all rows of one kind, oldest first; an empty table if there is no record.

    A torn last line is dropped. A step or epoch that a resumed process repeated, or that an earlier process did beyond
    the checkpoint, counts once.

    Args:
        folder: The folder of the record.
        kind: One of KINDS.
        columns: The metrics to read; None for all. A metric that was not recorded becomes a column of NaN. Damage in
            other columns of a closed segment is not noticed.
        since: Leave out the segments whose rows all came before this time (Unix s). What a process repeated since then
            is not looked for in them.

    Returns:
        A table with the columns time (Unix s), step (int64), and the metrics (float64, NaN if missing).
    """
    import pandas

    wanted = _every if columns is None else frozenset(columns).__contains__
    table = pandas.concat([*chunks(folder, kind, wanted, since)], ignore_index=True)
    if columns is not None:
        table = table.reindex(columns=[*_TIME_AND_STEP, *columns])
    return table if kind == "samples" else surviving_rows(table)


def chunks(
    folder: Path, kind: str, wanted: Callable[[str], bool], since: float | None = None
) -> "Iterator[pandas.DataFrame]":
    """Yield all rows of one kind, oldest first, CHUNK_ROWS or a few more at a time; at least one table.

    Steps that were repeated later are in them. `wanted` says whether to read a metric, by its name. `since` is that of
    `read`.
    """
    import pyarrow

    tables: list[pyarrow.Table] = []
    paths = segments(folder, kind)
    if since is not None:
        newest = (number for number in reversed(range(len(paths))) if (first_time(paths[number]) or inf) <= since)
        paths = paths[next(newest, 0) :]
    for path in paths:
        tables.append(_rows(path, wanted))
        if path == paths[-1] or sum(map(len, tables)) >= CHUNK_ROWS:
            # A column that a segment lacks becomes null there.
            yield pyarrow.concat_tables(tables, promote_options="default").to_pandas()
            tables.clear()
    if not paths:
        yield _rows_of_csv(folder, _NOTHING, _every).to_pandas()


def rows(folder: Path, kind: str) -> Iterator[Row]:
    """Yield the rows of `read`. Missing values are left out."""
    for columns in read(folder, kind).to_dict("records"):
        values = {str(name): float(value) for name, value in columns.items() if value == value}
        yield Row(kind, values.pop("time"), int(values.pop("step")), values)


def _every(_name: str) -> bool:
    return True


def read_segment(path: Path, wanted: Callable[[str], bool] = _every) -> "pandas.DataFrame":
    """Return the rows of one of `segments`, as `read` returns them, with steps that were repeated later.

    `wanted` says whether to read a metric, by its name.
    """
    rows: pandas.DataFrame = _rows(path, wanted).to_pandas()
    return rows


def read_column(path: Path, name: str) -> "NDArray[Any] | None":
    """Return a column of one of `segments` that is closed; None if the segment lacks it, or its file is damaged."""
    rows = _stored_rows(path, {name}.__contains__)
    return rows[name].to_numpy() if rows is not None and name in rows.column_names else None


def _rows(
    path: Path, metrics: Callable[[str], bool], read_open: Callable[[Path], bytes] = Path.read_bytes
) -> "pyarrow.Table":
    """Return the rows of one of `segments`. `read_open` reads lines of an open segment, with their header."""

    def wanted(name: str) -> bool:
        return name in _TIME_AND_STEP or metrics(name)

    for _ in range(2):  # It may be closed between the two attempts.
        stored = _stored_rows(path, wanted)
        if stored is not None:
            return stored
        with suppress(FileNotFoundError):
            return _rows_of_csv(path, read_open(path), wanted)
    # No open segment, and the Parquet file is damaged.
    _warn_damaged(closed(path), 0)
    return _rows_of_csv(path, _NOTHING, wanted)


def _stored_rows(path: Path, wanted: Callable[[str], bool]) -> "pyarrow.Table | None":
    """Return the rows of a closed segment; None if its Parquet file is missing, or damaged in a column that is read."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(closed(path), page_checksum_verification=True) as file:
            names = [name for name in file.schema_arrow.names if wanted(name)]
            return file.read(names, use_threads=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:  # The disk fails. Arrow has no number for damaged content.
            raise
        return None


def read_closed(path: Path) -> "pandas.DataFrame | None":
    """Return the rows of one of `segments`; None if it is open, or if a byte of its file is damaged."""
    rows = _stored_rows(path, _every)
    return None if rows is None else rows.to_pandas()


def _rows_of_csv(path: Path, content: bytes, wanted: Callable[[str], bool]) -> "pyarrow.Table":
    """Return the rows of an open segment from its content, up to a torn or damaged line."""
    whole_lines = content[: content.rfind(b"\n") + 1] or _NOTHING
    if whole_lines.startswith(_HEADER):
        with suppress(*_NOT_PARSED):  # For instance a line of zeros, as a power loss may leave it.
            return _parsed(whole_lines, wanted)
    sound = _sound_lines(whole_lines)
    _warn_damaged(path, len(sound))
    return _parsed(sound, wanted)


def _sound_lines(content: bytes) -> bytes:
    """Return the lines before the first line that is not a row of numbers in the columns of the header."""
    header, *lines = content.splitlines(keepends=True) or [b""]
    if not header.startswith(_HEADER):
        return _NOTHING
    try:
        _parsed(header, _every)
    except _NOT_PARSED:
        return _NOTHING
    return b"".join((header, *takewhile(partial(_is_row, header.count(b",")), lines)))


def _is_row(commas: int, line: bytes) -> bool:
    fields = line.rstrip(b"\n").split(b",")
    is_complete = len(fields) == commas + 1 and _STEP.fullmatch(fields[1])
    return bool(is_complete) and all(_NUMBER.fullmatch(field) for field in fields)


@cache
def _warn_damaged(path: Path, readable_bytes: int) -> None:
    """Warn once in a process: the watching pages read a segment every few seconds."""
    what_is_left = f"only its first {readable_bytes} bytes can be read" if readable_bytes else "its rows are left out"
    _log.warning("monitor: %s is damaged: %s", path, what_is_left)


def _parsed(content: bytes, wanted: Callable[[str], bool]) -> "pyarrow.Table":
    import pyarrow
    from pyarrow import csv as arrow_csv

    (names,) = csv.reader([content[: content.index(b"\n")].decode()])
    # With explicit types: they would be guessed for each segment, and differently.
    types = {name: pyarrow.int64() if name == "step" else pyarrow.float64() for name in names}
    chosen = [name for name in names if wanted(name)]
    convert = arrow_csv.ConvertOptions(column_types=types, include_columns=chosen, null_values=[""])
    read = arrow_csv.ReadOptions(use_threads=False)
    # Not read_csv, which raises ArrowCancelled if SIGTERM comes meanwhile, although this process handles that signal.
    with arrow_csv.open_csv(io.BytesIO(content), read, convert_options=convert) as reader:
        return reader.read_all()


def surviving_rows(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return the rows whose step no later row reaches or repeats."""
    return table[survives(table["step"].to_numpy())].reset_index(drop=True)


def survives(steps: "NDArray[Any]") -> "NDArray[np.bool_]":
    """Return for each row, by its step, whether no later row reaches or repeats that step."""
    import numpy as np

    # Rows are in the order in which they were written. A resumed process begins again at a lower step.
    lowest_from_here = np.minimum.accumulate(steps[::-1])[::-1]
    return np.append(steps[:-1] < lowest_from_here[1:], True)[: len(steps)]


def first_time(path: Path) -> float | None:
    """Return the time of the first row of one of `segments`; None if it has no row yet."""
    times = read_column(path, "time")
    if times is None:
        with suppress(FileNotFoundError), open(path, "rb") as file:
            file.readline()
            row = file.readline()
            time = row.partition(b",")[0]
            return float(time) if time and row.endswith(b"\n") and _NUMBER.fullmatch(time) else None
        times = read_column(path, "time")  # It was closed between the two attempts.
    return float(times[0]) if times is not None and len(times) else None


def recorded_s(folder: Path) -> float:
    """Return how many seconds the samples of a record cover, without the pauses between attempts."""
    # Each attempt begins a segment.
    times = (_rows(path, lambda _: False)["time"].to_numpy() for path in segments(folder, "samples"))
    return float(sum(each[-1] - each[0] for each in times if len(each)))


def record_folders(run_folder: Path) -> dict[int, Path]:
    """Return the folder of the record of each training server, by its index. Server 0 is always there, and first."""
    others = {int(path.name): path for path in (run_folder / SERVERS).glob("*") if path.name.isdecimal()}
    return {index: folder / "record" for index, folder in sorted({**others, 0: run_folder}.items())}


def read_servers(run_folder: Path, kind: str, columns: Sequence[str] | None = None) -> "pandas.DataFrame":
    """Return `read` of each training server of a run, one after the other. The column `server` has its index."""
    import pandas

    tables = {index: read(folder, kind, columns) for index, folder in record_folders(run_folder).items()}
    return pandas.concat(tables, names=["server"]).reset_index(level="server").reset_index(drop=True)


def last_row(folder: Path, kind: str) -> dict[str, float] | None:
    """Return the newest whole row as {"time", "step", metrics}; None if there is no row.

    Only the newest segment is read, and only its end if it is open. So this is cheap enough for every second of a run
    of any length. Metrics that the row lacks are left out.
    """
    for path in reversed(segments(folder, kind)):
        rows = _rows(path, _every, _tail)
        if len(rows):
            (last,) = rows.slice(len(rows) - 1).to_pylist()
            return {name: float(value) for name, value in last.items() if value is not None}
    return None


def last_time(folder: Path) -> float:
    """Return the time of the newest row of all kinds (Unix s); 0 if there is none."""
    return max((row["time"] for kind in KINDS if (row := last_row(folder, kind))), default=0.0)


def _tail(path: Path) -> bytes:
    """Return the header and the last whole row of an open segment."""
    with open(path, "rb") as file:
        header = file.readline()
        file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().splitlines(keepends=True)
    commas = header.count(b",")
    rows = (line for line in reversed(lines) if line.endswith(b"\n") and _is_row(commas, line))
    return _sound_lines(header + next(rows, b""))
