"""Table -> snapshot, at once or in ranges of its files, for `pipeline/stages/extract.py`.

The table is read twice, because what a column holds is known only after its last row. `list_all` does both. For a
large table, `divide` or the tasks of the engine read it for its schema. Then several tasks read the ranges again, and
list their rows.
"""

import base64
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
from pyarrow import ipc

from pipeline import storage
from pipeline.config.allowed import require_output
from pipeline.errors import SettingsError, SourceError
from pipeline.snapshot.listing import ExamineEach, Listing
from pipeline.snapshot.part import read_extracted
from pipeline.sources.key_range import range_bytes
from pipeline.storage import Place, place_of
from pipeline.system.malloc import keep_large_blocks
from pipeline.system.parallel import items_ahead
from pipeline.system.progress import Advance, Show, no_progress, progress
from pipeline.system.resources import usable_cores
from pipeline.tables import extract
from pipeline.tables.files import find_files, keys_of, note_on_splits, table_files
from pipeline.tables.infer import Inference, infer_schema, require_classes
from pipeline.tables.options import TableOptions
from pipeline.tables.pieces import FilePiece, bytes_of_each, grouped
from pipeline.tables.schema import Schema
from pipeline.tables.source import (
    BATCHES_AHEAD,
    RawBatch,
    TableReader,
    is_divisible,
    pieces_of_table,
    read_table,
)

MAX_COMPARED = 20
"""An error about a missing column compares at most this many files."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableRange:
    """Rows that one task lists. This is stored as JSON."""

    pieces: list[dict[str, Any]]
    """Fields of each `FilePiece`."""
    rows_before: int
    """Number of rows of the table before the range."""
    state: list[list[Any]]
    """What `_state_of` returned for the files."""
    schema: str
    """The file of the schema of the whole table."""


@dataclass(frozen=True)
class ExaminedRange:
    """Rows of which a task collects the facts. This is stored as JSON."""

    pieces: list[dict[str, Any]]
    """Fields of each `FilePiece`."""
    first_schema: str
    """The columns of the first file of the table: a schema of Arrow in Base64."""


class _Inferred(NamedTuple):
    """The facts of a table, and its pieces with their numbers of rows."""

    facts: Inference
    pieces: list[FilePiece]


class TableLister:
    """Lists a table. All methods but `describe` raise SourceError or SettingsError.

    SourceError: the table cannot be read, has no row that can be used, or changes meanwhile. SettingsError: a setting
    names a column that the table does not have.
    """

    examines: ClassVar[str] = "schema"
    memory: ClassVar[int] = 600_000_000
    """Processes were seen to take 430 to 540 MB, for tables of 3 to 200 columns in CSV and Parquet."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def list_all(self) -> Place:
        """List a table in this process, and return the file of the snapshot. Memory does not grow with the rows."""
        keep_large_blocks()
        started_ns = time.time_ns()
        options = self._options
        storage.sweep(options.folder)
        read = partial(read_table, dialect=options.dialect, place=options.place, split_column=options.columns.split)
        files, skipped = find_files(options.place)
        _log_splits(files, options)
        before = _state_of(files)
        with progress("schema", 0, "rows") as advance, self._explained(files):
            raws = _counted(read(files, selection=options.selection), advance)
            with closing(items_ahead(raws, BATCHES_AHEAD)) as batches:
                schema = infer_schema(batches, options.columns)
        require_classes(schema, options.source_uri)
        with progress("extract", schema.rows, "rows") as advance:
            selection = options.selection.only(schema.by_name)
            again = read(table_files(options.place), selection=selection, has_checked_quotes=True)
            listing = extract.list_rows(_counted(again, advance), schema, options)
        _require_state(table_files(options.place), before, options)
        return extract.save_listed(options, schema, started_ns, [listing], skipped)

    def divide(
        self, folder: Place, max_ranges: int, examine_each: ExamineEach | None = None, starts_quickly: bool = False
    ) -> list[Any]:
        """Return ranges of about TENFOLD_RANGE_MEGABYTES, and write the schema of the whole table into `folder`.

        The list is empty for a small table, and for one of JSON lines or TFRecord files.
        """
        keep_large_blocks()
        bytes_each = range_bytes()
        options = self._options
        files = table_files(options.place)
        if starts_quickly and (total := sum(file.stat().st_size for file in files if isinstance(file, Path))):
            bytes_each = bytes_of_each(total, bytes_each, usable_cores())
        state = _state_of(files)
        pieces = pieces_of_table(files, options.dialect, bytes_each) if is_divisible(files) else []
        # The groups may be half empty.
        group_bytes = max(bytes_each, 2 * sum(piece.size for piece in pieces) // max_ranges)
        groups = grouped(pieces, group_bytes)
        if len(groups) < 2:
            return []
        storage.sweep(options.folder)
        _log_splits(files, options)
        inferred = self._examined(groups, files, examine_each) if examine_each else None
        # The tasks number the rows of their ranges alone, so another reading finds the error of the whole table.
        inferred = inferred or self._inferred_here(pieces, files)
        pieces, schema = inferred.pieces, inferred.facts.schema()
        require_classes(schema, options.source_uri)
        _require_state(table_files(options.place), state, options)
        schema_path = folder / "schema.json"
        storage.write_json(schema_path, schema.to_json(), synced=True)
        return list(map(asdict, _ranges(grouped(pieces, group_bytes), state, str(schema_path))))

    def _inferred_here(self, pieces: Iterable[FilePiece], files: Sequence[Place]) -> _Inferred:
        """Read all pieces in this process."""
        inference, reader = Inference(self._options.columns), self._reader_of(files)
        with progress("schema", 0, "rows") as advance, self._explained(files):
            inferred = _Inferred(inference, list(_inferred(pieces, inference, reader, advance)))
        reader.require_rows()
        return inferred

    def _examined(
        self, groups: Sequence[Sequence[FilePiece]], files: Sequence[Place], examine_each: ExamineEach
    ) -> _Inferred | None:
        """Read all pieces in several processes. Return None if one of them fails, or if no row is valid."""
        columns = self._options.columns
        reader = self._reader_of(files)
        total, pieces = Inference(columns), []
        rows_before = Counter[str]()
        try:
            first = base64.b64encode(reader.first_schema().serialize()).decode()
            ranges = [ExaminedRange(list(map(asdict, group)), first) for group in groups]
            for group, found in zip(groups, examine_each(list(map(asdict, ranges))), strict=True):
                # Only the first file of a range may have begun before the range.
                moved = partial(_moved, file=reader.key_of(group[0]), rows=rows_before[group[0].file])
                total.merge(Inference.from_json(columns, found["facts"]), moved)
                for piece, rows in zip(group, found["rows"], strict=True):
                    pieces.append(
                        replace(piece, rows=rows, rows_before=rows_before[piece.file], has_checked_quotes=True)
                    )
                    rows_before[piece.file] += rows
        except (SettingsError, SourceError):
            return None
        return _Inferred(total, pieces) if total.rows else None

    def examine(self, content: Any) -> Any:
        """Return the facts of a range, with its rows numbered from its start, and the rows of each piece, as JSON."""
        keep_large_blocks()
        range_ = ExaminedRange(**content)
        reader = self._reader_of(table_files(self._options.place))
        reader.begin_with(ipc.read_schema(pa.py_buffer(base64.b64decode(range_.first_schema))))
        inference, rows_before = Inference(self._options.columns), Counter[str]()
        rows: list[int] = []
        with no_progress("schema", 0, "rows") as advance:
            for piece in (FilePiece(**each) for each in range_.pieces):
                begun = replace(piece, rows_before=rows_before[piece.file])
                rows.append(_infer(begun, inference, reader, advance))
                rows_before[piece.file] += rows[-1]
        return {"rows": rows, "facts": inference.to_json()}

    def list_range(self, content: Any, started_ns: int, show: Show) -> Listing:
        """List the rows of a range."""
        keep_large_blocks()
        range_ = TableRange(**content)
        pieces = [FilePiece(**piece) for piece in range_.pieces]
        # Anyone who can write to the workspace can write a range file. The reader refuses files outside of the table.
        options = self._options
        schema = _schema_of(range_)
        reader = self._reader_of(table_files(options.place), schema)
        files = list(dict.fromkeys(map(reader.place_of, pieces)))
        with show("extract", 0, "rows") as advance:
            raws = _counted(chain.from_iterable(map(reader.read, pieces)), advance)
            listing = extract.list_rows(raws, schema, options, first_number=range_.rows_before + 1)
        _require_state(files, range_.state, options)
        return listing

    def join(self, started_ns: int, contents: Sequence[Any], listings: Iterable[Listing]) -> Place:
        """Write the snapshot of all ranges."""
        schema = _schema_of(TableRange(**contents[0]))
        skipped = find_files(self._options.place).skipped
        return extract.save_listed(self._options, schema, started_ns, list(listings), skipped)

    def describe(self, content: Any) -> str:
        """Return the first row of a range in words."""
        first = TableRange(**content).rows_before
        return f"from row {first + 1:,}" if first else ""

    def _reader_of(self, files: Sequence[Place], schema: Schema | None = None) -> TableReader:
        """Return a reader of the columns of a schema, or of those that the settings select."""
        options = self._options
        selection = options.selection.only(schema.by_name) if schema else options.selection
        return TableReader(files, options.dialect, options.place, options.columns.split, selection)

    @contextmanager
    def _explained(self, files: Sequence[Place]) -> Iterator[None]:
        """Raise another error if only the first file lacks a column that a setting names, such as the label."""
        try:
            yield
        except SettingsError as error:
            first, *others = files[:MAX_COMPARED] if is_divisible(files) else files[:1]
            selection = self._options.selection
            reader = self._reader_of(files)
            missing = selection.unmatched(reader.names_of(first)) if others else []
            # Without a missing column, the error has another reason, so no other file is opened.
            for file in others if missing else ():
                left = selection.unmatched(reader.names_of(file))
                if found := next((name for name in missing if name not in left), None):
                    raise selection.no_column(found, first, file) from None
            if not self._options.columns.label and is_divisible(files):
                raise SettingsError(f"{error}{reader.advice()}") from None
            raise


def _log_splits(files: Sequence[Place], options: TableOptions) -> None:
    if note := note_on_splits(keys_of(files, options.place), options.columns.split):
        _log.log(logging.INFO if note.are_used else logging.WARNING, "%s", note.text)


def _state_of(files: Iterable[Place]) -> list[list[Any]]:
    """Return name, size and time of the last change of each file, as JSON."""
    stats = [(str(place), place.stat()) for place in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def _require_state(files: Iterable[Place], before: list[list[Any]], options: TableOptions) -> None:
    if _state_of(files) != before:
        raise SourceError(f"{options.source_uri} changed while it was read: run again when nothing changes it")


def _counted(raws: Iterable[RawBatch], advance: Advance) -> Iterator[RawBatch]:
    for raw in raws:
        yield raw
        advance(raw.rows)


def _inferred(
    pieces: Iterable[FilePiece], inference: Inference, reader: TableReader, advance: Advance
) -> Iterator[FilePiece]:
    """Add the rows of pieces to the schema, and yield the pieces with their numbers of rows."""
    for file, of_file in groupby(pieces, key=lambda piece: piece.file):
        known = list(of_file)
        if known[0].rows is None:
            before = 0
            for piece in known:
                rows = _infer(replace(piece, rows_before=before), inference, reader, advance)
                yield replace(piece, rows=rows, rows_before=before, has_checked_quotes=True)
                before += rows
        else:
            # Each piece of a Parquet file would decode its row group again.
            _infer(FilePiece(file), inference, reader, advance)
            yield from known


def _infer(piece: FilePiece, inference: Inference, reader: TableReader, advance: Advance) -> int:
    """Add the rows of a piece to the schema, and return their number."""
    rows = 0
    with closing(items_ahead(reader.read(piece), BATCHES_AHEAD)) as raws:
        for raw in raws:
            inference.add(raw)
            rows += raw.rows
            advance(raw.rows)
    return rows


def _moved(place: str, file: str, rows: int) -> str:
    """Return the place of a row of which `rows` rows of its file come before the range, if it is in this file."""
    prefix, _, number = place.rpartition(":")
    return f"{prefix}:{int(number) + rows}" if prefix == file else place


def _ranges(groups: Iterable[Sequence[FilePiece]], state: Iterable[list[Any]], schema: str) -> Iterator[TableRange]:
    state_of, rows_before = {each[0]: each for each in state}, 0
    for pieces in groups:
        yield TableRange(
            pieces=list(map(asdict, pieces)),
            rows_before=rows_before,
            state=[state_of[file] for file in dict.fromkeys(piece.file for piece in pieces)],
            schema=schema,
        )
        rows_before += sum(piece.rows or 0 for piece in pieces)


def _schema_of(range_: TableRange) -> Schema:
    place = place_of(range_.schema)
    require_output(place)
    return Schema.from_json(read_extracted(place))
