"""Read TFRecord files that other programs wrote, as batches of rows with types of Arrow.

A record is a row, and a feature is a column. The files do not say whether a feature holds one value or a list, so they
are read twice: the first pass collects what each feature holds in all records of all files.
"""

import io
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import IO, Any, NamedTuple

import pyarrow as pa

from pipeline import storage
from pipeline.errors import DatasetError, SettingsError, SourceError
from pipeline.records.example import Parsed, Values, parse
from pipeline.records.tfrecord import HEADER_BYTES, decompressed, has_valid_header, records_of
from pipeline.storage import Place
from pipeline.tables.selection import Selection

COMPRESSED_SUFFIXES = (".gz", ".deflate", ".zlib")
"""Suffixes of files that are compressed as a whole. A file without one may be compressed, too."""
_GZIP_MAGIC = b"\x1f\x8b"
_TYPES = {"bytes": pa.string(), "int64": pa.int64(), "float": pa.float32()}
_PROBED_BYTES = 4096
"""The header of the first record is in this many bytes of a file, even if they are compressed."""
_MAX_BATCH_BYTES = 32 << 20
"""A batch ends after records of this many bytes together."""

Open = Callable[[Place], AbstractContextManager[IO[bytes]]]
"""Opens the bytes of a file, as they are stored."""


class _Record(NamedTuple):
    place: Place
    number: int
    """1 for the first record of the file."""

    def __str__(self) -> str:
        return f"record {self.number} of {self.place}"


class _Column:
    """What a feature holds in all records."""

    def __init__(self) -> None:
        self.kind = ""
        """Empty as long as no record has a value."""
        self.first: _Record | None = None
        """The first record that has a value."""
        self.of_several: _Record | None = None
        """The first record that has several values."""
        self.of_steps: _Record | None = None
        """The first record that has a value for each step, in a feature list."""
        self.of_context: _Record | None = None

    @property
    def is_list(self) -> bool:
        """Whether a record may hold several values."""
        return bool(self.of_several or self.of_steps)

    @property
    def type(self) -> pa.DataType:
        """The type of Arrow of the column."""
        kind = _TYPES.get(self.kind, pa.string() if self.is_list else pa.null())
        return pa.list_(kind) if self.is_list else kind


def starts_with_record(place: Place) -> bool:
    """Whether a file, plain or compressed, begins with the header of a record. Reads only its first bytes."""
    # A bucket answers a range of an empty object with an error.
    size = min(place.stat().st_size, _PROBED_BYTES)
    begin = storage.read_range(place, 0, size) if size else b""
    try:
        return has_valid_header(_unpacked(io.BytesIO(begin), place).read(HEADER_BYTES))
    except (zlib.error, EOFError):
        return False


def read_batches(
    files: Sequence[Place],
    opened: Open,
    max_rows: int,
    selection: Selection,
    choose: Callable[[pa.Schema], Collection[str]],
) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Yield all records of each TFRecord file as rows, with the columns ordered by name.

    A feature is a column of int64, float32 or string. It is a column of lists if any record has several values in it,
    or if it is one of the feature lists of tf.train.SequenceExample. A missing feature is null, and so is one without
    a value, unless the column holds lists.

    Args:
        files: The files.
        opened: Opens a file.
        max_rows: The largest number of rows of a batch.
        selection: The columns that may be read. What another feature holds is not looked at.
        choose: Takes all columns, and returns the ones to read.

    Raises:
        SourceError: A record is damaged or is no tf.train.Example or tf.train.SequenceExample; a selected feature holds
            bytes that are not UTF-8, values of different kinds, or lists of lists; there are records of both messages;
            or there is no record.
        SettingsError: A column that a setting names, such as the label, has several values in a record.
    """
    found = _survey(files, opened, selection)
    names = set(choose(pa.schema([(name, found[name].type) for name in sorted(found)])))
    for name in names & selection.roles.keys():
        if record := found[name].of_several or found[name].of_steps:
            raise SettingsError(
                f"{selection.roles[name]} is {name!r}, which holds lists, such as in {record}: write one value for "
                "each record, or name another column"
            )
    columns = {name: column for name, column in found.items() if name in names}
    # Without a selected column, one that holds nothing has the number of rows.
    left_out = found.keys() - set(filter(selection.includes, names))
    for place in files:
        batch = _Batch(columns)
        for record, parsed, length in _parsed(place, opened):
            batch.add(_row_of(parsed, record, lambda name: name not in left_out), record)
            batch.bytes += length
            if batch.rows == max_rows or batch.bytes >= _MAX_BATCH_BYTES:
                yield place, batch.finish()
                batch = _Batch(columns)
        if batch.rows:
            yield place, batch.finish()


class _Batch:
    """Collects the cells of the next batch, column by column: many small rows would slow down the garbage collector."""

    def __init__(self, columns: Mapping[str, _Column]) -> None:
        self.rows = self.bytes = 0
        self._columns = columns
        self._cells: dict[str, list[Any]] = {name: [] for name in sorted(columns)}

    def add(self, row: Mapping[str, Values], record: _Record) -> None:
        """Add a row. Raises SourceError if it differs from what the first pass found."""
        for name, (kind, values) in row.items():
            column = self._columns.get(name)
            if not column or (values and kind != column.kind) or (len(values) > 1 and not column.is_list):
                raise SourceError(f"{record} changed while it was read: run again when nothing changes the table")
            # A feature list without steps has no kind, but is an empty list.
            if values or (column.is_list and (kind or column.of_steps)):
                cells = self._cells[name]
                if len(cells) < self.rows:
                    cells.extend([None] * (self.rows - len(cells)))
                cells.append(values if column.is_list else values[0])
        self.rows += 1

    def finish(self) -> pa.RecordBatch:
        """Return the rows as a batch."""
        arrays, names = [], list(self._cells)
        for name, cells in self._cells.items():
            cells.extend([None] * (self.rows - len(cells)))
            arrays.append(pa.array(cells, self._columns[name].type))
        return pa.RecordBatch.from_arrays(arrays, names)


def _survey(files: Sequence[Place], opened: Open, selection: Selection) -> Mapping[str, _Column]:
    """Return what each feature holds, after a pass over all records. Features that are not selected hold nothing."""
    columns: dict[str, _Column] = {}
    includes = cache(selection.includes)
    firsts: dict[str, _Record] = {}
    has_rows = False
    for place in files:
        for record, parsed, length in _parsed(place, opened):
            has_rows = True
            if length:  # An empty record may be either message.
                firsts.setdefault(
                    "tf.train.Example" if parsed.feature_lists is None else "tf.train.SequenceExample", record
                )
                if len(firsts) > 1:
                    one, other = sorted(firsts)
                    raise SourceError(
                        f"{firsts[one]} is a {one}, but {firsts[other]} is a {other}: keep the files of one of them in "
                        "the folder"
                    )
            for name in (*parsed.features, *(parsed.feature_lists or ())):
                if name not in columns:
                    if not name.strip():
                        raise SourceError(f"{record} has a feature without a name: name it when you write the file")
                    columns[name] = _Column()
            for name, (kind, values) in _row_of(parsed, record, includes).items():
                column = columns[name]
                # An empty list may have been written with any type.
                if values and kind != column.kind:
                    _set_kind(column, kind, name, record)
                if len(values) > 1:
                    column.of_several = column.of_several or record
            for name in filter(includes, parsed.feature_lists or ()):
                columns[name].of_steps = columns[name].of_steps or record
            if parsed.feature_lists is not None:
                for name in filter(includes, parsed.features):
                    columns[name].of_context = columns[name].of_context or record
    if not has_rows:
        raise SourceError(f"{shown_files(files)} has no record: add records to the table")
    for name, column in columns.items():
        if column.of_steps and column.of_context:
            raise SourceError(
                f"{name!r} is a feature list in {column.of_steps}, but a feature of the context in "
                f"{column.of_context}: write them under different names"
            )
    if not columns:
        raise SourceError(f"{files[0]} has only records without features: write the features into the records")
    return columns


def shown_files(files: Sequence[Any]) -> str:
    """Return the files of a table in words."""
    return str(files[0]) if len(files) == 1 else f"the table of {len(files)} files ({files[0]}, ...)"


def _set_kind(column: _Column, kind: str, name: str, record: _Record) -> None:
    if column.kind:
        raise SourceError(
            f"feature {name!r} holds {kind}_list in {record}, but {column.kind}_list in "
            f"{column.first}: write it with one type, or leave it out with drop_columns"
        )
    column.kind, column.first = kind, record


def _parsed(place: Place, opened: Open) -> Iterator[tuple[_Record, Parsed, int]]:
    """Yield each record of a file with its content and its length."""
    number = 0
    with opened(place) as stored:
        try:
            for number, data in enumerate(records_of(_unpacked(stored, place), place), 1):
                record = _Record(place, number)
                try:
                    parsed = parse(data)
                except ValueError as error:
                    raise SourceError(
                        f"{record} is neither a tf.train.Example nor a tf.train.SequenceExample ({error}): a table "
                        "needs records of these messages"
                    ) from error
                yield record, parsed, len(data)
        except DatasetError as error:
            raise SourceError(
                f"{error} (record {number + 1}): write the file again, or remove it from the table"
            ) from error


def _unpacked(file: IO[bytes], place: Place) -> IO[bytes]:
    """Return the bytes of an open file, decompressed if its name or its first bytes ask for it."""
    begin = file.read(HEADER_BYTES)
    file.seek(0)
    if place.name.lower().endswith(COMPRESSED_SUFFIXES):
        return decompressed(file)
    # The length of a plain record may look like the start of a compressed stream. Its checksum decides.
    is_compressed = begin.startswith(_GZIP_MAGIC) or _is_zlib(begin)
    return decompressed(file) if is_compressed and not has_valid_header(begin) else file


def _is_zlib(begin: bytes) -> bool:
    """Whether bytes begin with the header of a zlib stream (RFC 1950)."""
    return len(begin) >= 2 and begin[0] & 15 == 8 and begin[0] >> 4 <= 7 and int.from_bytes(begin[:2]) % 31 == 0


def _row_of(parsed: Parsed, record: _Record, includes: Callable[[str], bool]) -> Mapping[str, Values]:
    """Return the values of each column that is included, with bytes as text."""
    row = {name: values for name, values in parsed.features.items() if includes(name)}
    for name, steps in (parsed.feature_lists or {}).items():
        if not includes(name):
            continue
        if name in row:
            raise SourceError(
                f"{record} has {name!r} both as a feature of the context and as a feature list: write them under "
                "different names"
            )
        row[name] = _joined(steps, name, record)
    for name, (kind, values) in row.items():
        if kind == "bytes":
            try:
                row[name] = kind, [value.decode() for value in values]
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"feature {name!r} in {record} holds bytes that are not text in UTF-8: leave it out with "
                    "drop_columns, or write it as text or numbers"
                ) from error
    return row


def _joined(steps: Sequence[Values], name: str, record: _Record) -> Values:
    """Return the values of a feature list, one for each step."""
    kinds = {kind for kind, _ in steps}
    if len(kinds) > 1 or any(len(values) != 1 for _, values in steps):
        found = "different types" if len(kinds) > 1 else "steps without exactly one value"
        raise SourceError(
            f"feature list {name!r} in {record} has {found}, and a column cannot hold lists of lists: write one value "
            "for each step, or leave the feature list out with drop_columns"
        )
    return next(iter(kinds), ""), [value for _, (value,) in steps]
