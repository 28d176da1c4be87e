"""Read a table: files of CSV, JSON lines, Parquet, Arrow or TFRecord, as batches of rows, which are always the same.

The types of CSV columns are not guessed here: every value stays the text of its field. `pipeline.tables.infer` decides
the types from all rows.
"""

import codecs
import csv
import io
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import accumulate, islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute, ipc, parquet
from pyarrow import csv as arrow_csv

from pipeline import storage
from pipeline.errors import FileSystemError, SettingsError, SourceError
from pipeline.sources.compression import MAGIC_BYTES, UNPACK_ERRORS, compression_of, require_plain, unpacked
from pipeline.sources.csv_quotes import require_quotes_of_lines
from pipeline.sources.text_delimiter import delimiter_of_text
from pipeline.storage import Place
from pipeline.system.os_errors import cause_of, retried
from pipeline.system.wording import shortened
from pipeline.tables.dialect import DEFAULT_DIALECT, Dialect, advice_on
from pipeline.tables.files import (
    ARROW,
    JSON_LINES,
    PARQUET,
    FileFacts,
    facts_of_files,
    format_of,
    is_of_records,
    keys_of,
)
from pipeline.tables.json_lines import read_json_lines
from pipeline.tables.pieces import FilePiece, PieceStream, csv_pieces, parquet_pieces, whole
from pipeline.tables.selection import Chooser, Selection
from pipeline.tables.structs import flat_batch, flat_schema, paths_to
from pipeline.tables.tfrecords import read_batches, shown_files
from pipeline.tables.values import TEXT

MAX_BATCH_ROWS = 20_000
"""A batch has at most this many rows."""
BATCHES_AHEAD = 4
"""A thread reads this many batches ahead, because Arrow parses a block of several batches of CSV at once."""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_BLOCK = 16 << 20
"""Arrow parses this many bytes of a CSV file at once. A row must fit into a block.

Tables of 10,000 columns need large blocks. The cost of a batch is that of its columns if the batch has few rows.
"""
_CHUNK = 1 << 20
_BATCH_BYTES = 16 << 20
"""A batch of a Parquet file takes about this many bytes."""
_PARQUET_BUFFERS = 64 << 20
"""The columns of a Parquet file share buffers of this many bytes."""
_ARROW_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"
_ALL = Selection()
_MAX_SHOWN = 80
"""A reason shows at most this many characters of a row."""
_ENCODING_ADVICE = "save it as UTF-8, or name its encoding in list_encoding (latin-1, cp1252, utf-16, ...)"


class RejectedRow(NamedTuple):
    """A row that cannot be split into fields."""

    key: str
    """Name of the file relative to the table, a colon, and the number of the row. The header is row 1."""
    reason: str
    advice: str
    after: int
    """Number of the rows before it in the same batch."""


class RawBatch(NamedTuple):
    """Rows of one file, with the columns in the order of the first file, and the other rows among them."""

    batch: pa.RecordBatch
    rejected: list[RejectedRow]
    split: str = ""
    """The split of all rows, if the files of the table state their splits."""
    left_out: Mapping[str, str] = MappingProxyType({})
    """The types of the columns of the table that are not read, because their types are not supported."""
    empty: Sequence[int] = ()
    """For each row without any value, which is left out: the number of the rows before it in `batch`."""
    prefix: str = "row "
    """What comes before the number of a row in its name, such as the name of its file and a colon."""
    first_number: int = 1
    """The number of the first row."""

    @property
    def rows(self) -> int:
        """Number of all rows."""
        rows: int = self.batch.num_rows + len(self.rejected) + len(self.empty)
        return rows

    @property
    def file(self) -> str:
        """The path of the file, relative to the table."""
        return self.prefix.removesuffix(":")

    def place_of(self, row: int) -> str:
        """Return the name of a row of `batch`."""
        [name] = self.places_of([row])
        return name

    def places_of(self, rows: Iterable[int]) -> list[str]:
        """Return the names of some rows of `batch`. The numbers count the other rows, too."""
        return [f"{self.prefix}{number}" for number in self.numbers_of(rows)]

    def numbers_of(self, rows: Iterable[int]) -> list[int]:
        """Return the numbers of some rows of `batch`."""
        others = sorted([*self.empty, *(each.after for each in self.rejected)])
        return [self.first_number + row + bisect_right(others, row) for row in rows]


_Choose = Callable[[pa.Schema], Sequence[str]]
"""Returns the columns to read of a file with a schema."""
_Read = Callable[[Path, Place, FilePiece, _Choose], Iterator[RawBatch]]
"""Yields the rows of a piece from a local copy of its file, after a batch without rows that has all columns."""


def pieces_of_table(files: Sequence[Place], dialect: Dialect, max_bytes: int) -> list[FilePiece]:
    """Divide the files of a table into pieces of about `max_bytes` each.

    Raises:
        SourceError: A file cannot be read, or has a stray quote.
    """
    pieces: list[FilePiece] = []
    for place in files:
        with _explained(place):
            pieces += _pieces_of_file(place, dialect, max_bytes)
    return pieces


def _pieces_of_file(place: Place, dialect: Dialect, max_bytes: int) -> list[FilePiece]:
    if isinstance(place, Path) and format_of(place.name) == PARQUET:
        require_plain(place)
        return parquet_pieces(place, max_bytes)
    file = whole(place)
    # A quote in a line that is skipped would hide where rows start.
    is_whole = format_of(place.name) == ARROW or dialect.skipped_lines
    if not isinstance(place, Path) or is_whole or file.size <= max_bytes:
        return [file]
    if not _is_like_ascii(dialect.encoding) or compression_of(storage.read_range(place, 0, MAGIC_BYTES)):
        return [file]
    # A stray quote would hide the ends of all rows after it.
    _require_quotes(place, file, _delimiter_of(place, place.name, dialect), dialect)
    return csv_pieces(place, max_bytes)


def _is_like_ascii(encoding: str) -> bool:
    """Whether the bytes of a line break and of a quote are those of ASCII, and never a part of another character."""
    is_stateful = codecs.lookup(encoding).name.startswith(("iso2022", "hz", "utf-7"))
    return '\n"'.encode(encoding).endswith(b'\n"') and not is_stateful


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")


def _text_encoding(dialect: Dialect) -> str:
    """Return the encoding to read text with. Excel writes a byte order mark, which is no part of the header."""
    return "utf-8-sig" if _is_utf8(dialect.encoding) else dialect.encoding


def is_divisible(files: Sequence[Place]) -> bool:
    """Whether several tasks can read a table. Otherwise, its types are known only after a pass over all records."""
    return not is_of_records(files) and format_of(files[0].name) != JSON_LINES


def read_table(
    files: Sequence[Place],
    dialect: Dialect = DEFAULT_DIALECT,
    *,
    place: Place | None = None,
    split_column: str = "",
    selection: Selection = _ALL,
    has_checked_quotes: bool = False,
    keeps_empty: bool = False,
) -> Iterator[RawBatch]:
    """Yield all rows of a table, file by file, in batches of at most MAX_BATCH_ROWS.

    All columns of CSV are strings. A field without any character is null, but a quoted empty field is an empty string.
    The columns of other files have their own types. A row of CSV with too few or too many fields is rejected. Folders
    such as `country=de/` become columns of strings, unless the files have columns of their names. The fields of structs
    become columns such as `geo.lat`. Columns that are not selected are not read, nor are those of a type that is not
    supported, unless a setting selects them. A row without any value in its file is left out.

    Args:
        files: The files that `table_files` returned.
        dialect: How CSV files are written.
        place: The table, whose folders may be columns. None is the folder that holds all files.
        split_column: The column that decides the split. Without it, the names of files and folders may do so.
        selection: The columns to read.
        has_checked_quotes: Whether an earlier pass checked the quotes of the CSV files.
        keeps_empty: Whether rows without any value are kept.

    Raises:
        SettingsError: The selection names no column of the table, or leaves none to learn from.
        SourceError: A file cannot be read, has other columns than the first file, or has columns without a name or with
            equal names; the type of a selected column is not supported; or the table has no row.
        FileSystemError: The file system failed. A later attempt may work.
    """
    if not is_divisible(files):
        keys = dict(zip(files, keys_of(files, place), strict=True))
        facts_of = facts_of_files(list(keys.values()), split_column, selection.includes)
        facts = dict(zip(files, facts_of, strict=True))
        chooser = Chooser(selection)
        of_folders = list(dict.fromkeys(name for each in facts.values() for name in each.values))
        choose = partial(chooser.choose, place=shown_files(files), of_folders=of_folders)
        if is_of_records(files):
            read = read_batches(files, _opened_records, MAX_BATCH_ROWS, selection, choose)
        else:
            read = _json_batches(files, selection, choose)
        numbers = Counter[Place]()
        for file, batch in read:
            raw = RawBatch(batch, [], prefix=f"{keys[file]}:", first_number=numbers[file] + 1)
            numbers[file] += raw.rows
            yield _finished(raw if keeps_empty else without_empty_rows(raw, chooser.names), facts[file], chooser)
        return
    reader = TableReader(files, dialect, place, split_column, selection, keeps_empty=keeps_empty)
    for file in files:
        with _explained(file):
            piece = whole(file, has_checked_quotes=has_checked_quotes)
        yield from reader.read(piece)
    reader.require_rows()


def _json_batches(
    files: Sequence[Place], selection: Selection, choose: _Choose
) -> Iterator[tuple[Place, pa.RecordBatch]]:
    for file, batch in read_json_lines(files, _opened_json, MAX_BATCH_ROWS, selection, choose):
        _require_utf8(batch, file)  # Arrow does not check it.
        yield file, batch


def without_empty_rows(raw: RawBatch, names: Collection[str]) -> RawBatch:
    """Leave out the rows without any value in the columns `names`. Without such a column, all rows are kept."""
    batch, names = raw.batch, set(names)
    is_text = batch.schema.metadata == TEXT
    is_empty = None
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in names:
            continue
        if is_text and pa.types.is_string(column.type):
            is_blank = compute.or_(compute.equal(compute.binary_length(column), 0), compute.utf8_is_space(column))
            of_column = compute.fill_null(is_blank, True)
        else:
            of_column = compute.is_null(column, nan_is_null=True)
        is_empty = of_column if is_empty is None else compute.and_(is_empty, of_column)
        if not compute.any(is_empty, min_count=0).as_py():  # Most often after the first column.
            return raw
    if is_empty is None:
        return raw
    mask = is_empty.to_numpy(zero_copy_only=False)
    kept = np.cumsum(~mask)
    rejected = [each._replace(after=int(kept[each.after - 1]) if each.after else 0) for each in raw.rejected]
    return raw._replace(batch=batch.filter(pa.array(~mask)), rejected=rejected, empty=kept[mask].tolist())


def _finished(raw: RawBatch, facts: FileFacts, chooser: Chooser) -> RawBatch:
    """Return a batch with the columns of the table, also those that the path of its file states."""
    batch, known, chosen = raw.batch, set(raw.batch.schema.names), set(chooser.names)
    for name, value in facts.values.items():
        # A column of the file comes before one of a folder.
        if name in chosen and name not in known:
            field = pa.field(name, pa.string(), metadata=TEXT)
            batch = batch.append_column(field, pa.repeat(pa.scalar(value, pa.string()), batch.num_rows))
    return raw._replace(batch=batch.select(chooser.names), split=facts.split, left_out=chooser.left_out)


class TableReader:
    """Reads pieces of a table of CSV, Parquet or Arrow files, as `read_table` does. All must have the same columns."""

    def __init__(
        self,
        files: Sequence[Place],
        dialect: Dialect = DEFAULT_DIALECT,
        place: Place | None = None,
        split_column: str = "",
        selection: Selection = _ALL,
        *,
        keeps_empty: bool = False,
    ) -> None:
        """Raise SourceError if the names of folders state other columns for one file than for another one."""
        self._files, self._dialect = {str(file): file for file in files}, dialect
        self._keeps_empty = keeps_empty
        keys = keys_of(files, place)
        self._keys = dict(zip(map(str, files), keys, strict=True))
        self._facts = dict(zip(map(str, files), facts_of_files(keys, split_column, selection.includes), strict=True))
        self._chooser = Chooser(selection, self._names_of_others)
        self._rows = 0
        self._rejection: RejectedRow | None = None

    def place_of(self, piece: FilePiece) -> Place:
        """Return the file of a piece. Raises SourceError unless it is one of the table."""
        if piece.file not in self._files:
            raise SourceError(
                f"{piece.file} is no file of the table any more: run again when nothing changes the table"
            )
        return self._files[piece.file]

    def first_schema(self) -> pa.Schema:
        """Return the columns of the first file, by which the columns of the table are chosen."""
        place = next(iter(self._files.values()))
        with closing(self._batches(whole(place, has_checked_quotes=True))) as batches:
            without_rows = next(batches).batch
            if format_of(place.name) not in _READERS:
                return pa.schema([(name, pa.string()) for name in without_rows.schema.names])
            next(batches, None)  # The columns are chosen before the first rows are read.
        return self._chooser.first_schema

    def begin_with(self, schema: pa.Schema) -> None:
        """Choose the columns of the table by those of the first file, which `first_schema` returned."""
        place = next(iter(self._files.values()))
        self._chooser.choose(schema, place, list(self._facts[str(place)].values))

    def key_of(self, piece: FilePiece) -> str:
        """Return the path of the file of a piece, relative to the table."""
        return self._keys[piece.file]

    def names_of(self, place: Place) -> set[str]:
        """Return the names of the columns of a file."""
        with closing(self._batches(whole(place, has_checked_quotes=True))) as batches:
            return {*next(batches).batch.schema.names, *self._facts[str(place)].values}

    def read(self, piece: FilePiece) -> Iterator[RawBatch]:
        """Yield the rows of a piece."""
        is_csv = format_of(self.place_of(piece).name) not in _READERS
        number = piece.rows_before + 1 + (self._dialect.header_lines if is_csv else 0)
        for read in self._batches(piece):
            if read.rows:  # Not the batch of `_without_rows`, which has all columns.
                raw = read._replace(prefix=f"{self._keys[piece.file]}:", first_number=number)
                number += raw.rows
                raw = raw if self._keeps_empty else without_empty_rows(raw, self._chooser.names)
                self._rows += raw.batch.num_rows
                self._rejection = self._rejection or next(iter(raw.rejected), None)
                yield _finished(raw, self._facts[piece.file], self._chooser)

    def _batches(self, piece: FilePiece) -> Generator[RawBatch, None, None]:
        """Yield the rows of a piece, and before them a batch without rows."""
        place = self.place_of(piece)
        choose = partial(self._chooser.choose, place=place, of_folders=list(self._facts[piece.file].values))
        read_csv: _Read = partial(_read_csv, key=self._keys[piece.file], dialect=self._dialect)
        read = _READERS.get(format_of(place.name), read_csv)
        # A CSV file is read several times, but a bucket should send it only once.
        with _explained(place), storage.local_copy(place) as file:
            yield from read(file, place, piece, choose)

    def _names_of_others(self) -> Iterator[Collection[str]]:
        """Yield the names of the columns of each file. The last one is often the newest, and may have other columns."""
        return map(self.names_of, reversed(self._files.values()))

    def require_rows(self) -> None:
        """Raise SourceError if no piece had a valid row."""
        if not self._rows:
            rejection = self._rejection
            reason = f"the first is {rejection.key}: {rejection.reason}" if rejection else "there is only the header"
            raise SourceError(
                f"{shown_files(list(self._files))} has no valid row ({reason}): add rows to the table, or repair them"
                f"{self.advice()}"
            )

    def advice(self) -> str:
        """Return the setting that the header of the first file asks for, in words. Empty if it looks like a header."""
        place = next(iter(self._files.values()))
        if format_of(place.name) in _READERS:
            return ""
        with _explained(place), storage.local_copy(place) as file:
            return _advice(file, _delimiter_of(file, place.name, self._dialect), self._dialect)


def _without_rows(names: Sequence[str]) -> RawBatch:
    """Return the batch that comes first, so that the columns of a file are compared before its rows are read."""
    return RawBatch(pa.RecordBatch.from_arrays([pa.nulls(0)] * len(names), list(names)), [])


def _read_csv(
    file: Path, place: Place, piece: FilePiece, choose: _Choose, key: str, dialect: Dialect
) -> Iterator[RawBatch]:
    parse = arrow_csv.ParseOptions(delimiter=_delimiter_of(file, place.name, dialect))
    parse.newlines_in_values = _has_quotes(file, _text_encoding(dialect), piece)
    if not piece.has_checked_quotes:
        # After a stray quote, Arrow would read the following rows as one field.
        _require_quotes(file, piece, parse.delimiter, dialect)
    names, has_rows = _header(file, parse.delimiter, dialect)
    if not names:
        raise SourceError(f"{place} is empty: write a header and rows into the file, or remove it")
    yield _without_rows(names)
    try:
        included = list(choose(pa.schema([(name, pa.string()) for name in names])))
    except (SettingsError, SourceError) as error:
        raise type(error)(f"{error}{_advice(file, parse.delimiter, dialect)}") from None
    # Arrow refuses a header without a line break. An engine may write one for an empty partition.
    if not has_rows:
        return
    # Without threads, Arrow numbers the rows and calls the handler in their order.
    read = arrow_csv.ReadOptions(block_size=_BLOCK, use_threads=False)
    # Only with "utf8" does Arrow keep the bytes unchanged, which is faster.
    read.encoding = "utf8" if _is_utf8(dialect.encoding) else dialect.encoding
    if piece.begin or dialect.names:
        read.column_names = names
    if not piece.begin:
        read.skip_rows = dialect.skipped_lines
    # The first row of the stream is line 1 of the file, or follows the header and the rows before the piece.
    offset = piece.rows_before + dialect.header_lines if piece.begin else 0
    ragged = _RaggedRows(key, offset, header_rows=0 if piece.begin else dialect.header_lines)
    parse.invalid_row_handler = ragged.reject
    convert = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(included, pa.string()),
        include_columns=included,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    with _opened(file, piece) as stream, arrow_csv.open_csv(stream, read, parse, convert) as reader:
        schema = reader.schema.with_metadata(TEXT)
        for batch in reader:
            for start in range(0, max(batch.num_rows, 1), MAX_BATCH_ROWS):
                part = batch.slice(start, MAX_BATCH_ROWS)
                yield RawBatch(part.replace_schema_metadata(TEXT), ragged.before_end_of(part))
    if rest := ragged.rest():
        yield RawBatch(pa.RecordBatch.from_pylist([], schema), rest)


class _RaggedRows:
    """Rows that Arrow refuses. It parses ahead, so a refused row may arrive before the batch that it belongs to."""

    def __init__(self, key: str, offset: int, header_rows: int) -> None:
        """Add `offset` to the number of a row of the stream, of which `header_rows` are the header."""
        self._key, self._offset, self._header_rows = key, offset, header_rows
        self._rejected = self._position = 0
        self._waiting: list[RejectedRow] = []
        """Rows that are in no batch yet. Their field `after` counts from the start of the stream."""

    def reject(self, row: arrow_csv.InvalidRow) -> str:
        """Take a row that Arrow refuses."""
        text = shortened(row.text, _MAX_SHOWN)
        reason = f"the row has {row.actual_columns} fields, but the header has {row.expected_columns} ({text!r})"
        advice = "correct the row; a field with a delimiter must be quoted"
        after = row.number - 1 - self._header_rows - self._rejected
        self._waiting.append(RejectedRow(f"{self._key}:{self._offset + row.number}", reason, advice, after))
        self._rejected += 1
        return "skip"

    def before_end_of(self, batch: pa.RecordBatch) -> list[RejectedRow]:
        """Return the refused rows before the last row of the next batch."""
        begin, self._position = self._position, self._position + batch.num_rows
        return self._taken(sum(row.after < self._position for row in self._waiting), begin)

    def rest(self) -> list[RejectedRow]:
        """Return the refused rows after the last batch."""
        return self._taken(len(self._waiting), self._position)

    def _taken(self, count: int, begin: int) -> list[RejectedRow]:
        # Arrow may append further rows at any time.
        taken = self._waiting[:count]
        del self._waiting[:count]
        return [row._replace(after=row.after - begin) for row in taken]


def _read_parquet(file: Path, place: Place, piece: FilePiece, choose: _Choose) -> Iterator[RawBatch]:
    require_plain(file)
    with retried(lambda: file.open("rb"), file) as stream:
        schema = flat_schema(parquet.read_schema(stream))
        yield _without_rows(schema.names)
        names = choose(schema)
        buffer_size = min(max(_PARQUET_BUFFERS // max(len(names), 1), 4096), _CHUNK)
        # Without buffers, Arrow would hold all bytes of a row group, which may be the whole file.
        with parquet.ParquetFile(
            stream, buffer_size=buffer_size, pre_buffer=False, page_checksum_verification=True
        ) as reader:
            for batch in map(flat_batch, _batches_of(reader, piece, names)):
                # Parquet files are read without checking that strings are UTF-8.
                _require_utf8(batch, place)
                yield RawBatch(batch, [])


def _read_arrow(file: Path, place: Place, _: FilePiece, choose: _Choose) -> Iterator[RawBatch]:
    require_plain(file)
    # A program may write a whole table as one batch. Its columns are then not copied into memory.
    with retried(lambda: pa.memory_map(os.fsencode(file)), file) as stream:
        # Some programs write a stream of batches, which has no footer.
        begin = stream.read(len(_ARROW_MAGIC))
        stream.seek(0)
        if begin.startswith(_FEATHER_1_MAGIC):
            raise ValueError("its format is version 1 of Feather: write it with version 2, or as Parquet")
        is_stream = begin != _ARROW_MAGIC
        with (ipc.open_stream if is_stream else ipc.open_file)(stream) as reader:
            schema = flat_schema(reader.schema)
            yield _without_rows(schema.names)
            names = choose(schema)
            batches = reader if is_stream else map(reader.get_batch, range(reader.num_record_batches))
            # With `included_fields`, Arrow would copy the columns of a whole batch.
            for batch in (flat_batch(each).select(names) for each in batches):
                _require_utf8(batch, place)
                for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
                    yield RawBatch(batch.slice(start, MAX_BATCH_ROWS), [])


_READERS: Mapping[str, _Read] = {PARQUET: _read_parquet, ARROW: _read_arrow}
"""How files are read that are not CSV."""


def _batches_of(reader: parquet.ParquetFile, piece: FilePiece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece. The rows before it in its first row group are decoded, too."""
    metadata = reader.metadata
    end = metadata.num_rows if piece.end is None else piece.end
    starts = [0, *accumulate(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))]
    groups = [number for number, (first, after) in enumerate(pairwise(starts)) if first < end and after > piece.begin]
    position = starts[groups[0]] if groups else 0
    for batch in reader.iter_batches(_batch_rows(metadata, names), row_groups=groups, columns=names):
        first, last = max(piece.begin - position, 0), min(end - position, batch.num_rows)
        position += batch.num_rows
        if first < last:
            yield batch.slice(first, last - first)
        if position >= end:
            return


def _batch_rows(metadata: parquet.FileMetaData, names: Sequence[str]) -> int:
    """Return how many rows of a Parquet file are read at once: fewer if the rows are large."""
    chosen = set(names)
    # The path of an element of the list `tags` is `tags.list.element`.
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    read = [number for number, path in enumerate(paths) if not chosen.isdisjoint(paths_to(path))]
    # A value takes at least 8 bytes in memory, however well it is encoded in the file.
    row_bytes = 8 * len(read)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        # To ask for each column of thousands takes seconds.
        is_whole = len(read) == len(paths)
        size = group.total_byte_size if is_whole else sum(group.column(each).total_uncompressed_size for each in read)
        row_bytes = max(row_bytes, size // max(group.num_rows, 1))
    return max(1, min(MAX_BATCH_ROWS, _BATCH_BYTES // max(row_bytes, 1)))


def _require_utf8(batch: pa.RecordBatch, place: Place) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            reason = str(error).partition("\n")[0]
            raise SourceError(
                f"{place} has invalid values in the column {name!r} ({reason}): write it again"
            ) from error


def _require_quotes(file: Path, piece: FilePiece, delimiter: str, dialect: Dialect) -> None:
    """Raise SourceError if a quote is neither at the start nor at the end of a field."""
    encoding = _text_encoding(dialect)
    if _has_quotes(file, encoding, piece):
        with _lines(file, encoding, piece, errors="surrogateescape") as lines:
            skipped = 0 if piece.begin else dialect.skipped_lines
            require_quotes_of_lines(islice(lines, skipped, None), delimiter, skipped + 1)


def _has_quotes(file: Path, encoding: str, piece: FilePiece) -> bool:
    """Return whether a piece of a CSV file may have quotes, in a thousandth of the time that their check takes."""
    if '"'.encode(encoding) not in (b'"', b'\xef\xbb\xbf"'):
        return True
    with _opened(file, piece) as stream:
        return any(b'"' in chunk for chunk in iter(lambda: stream.read(_CHUNK), b""))


def _delimiter_of(file: Path, name: str, dialect: Dialect) -> str:
    """Return the delimiter of a CSV file. The settings or its name state it. `file` may be a copy of it."""
    if delimiter := dialect.delimiter or _DELIMITERS.get(format_of(name)):
        return delimiter
    with _lines(file, _text_encoding(dialect), FilePiece(str(file))) as lines:
        first = list(islice(lines, dialect.skipped_lines, dialect.skipped_lines + 2))
        # Only a compressed file may lack two lines of rows.
        return delimiter_of_text(first) or ("\t" if any("\t" in line for line in first) else ",")


def _header(file: Path, delimiter: str, dialect: Dialect) -> tuple[Sequence[str], bool]:
    """Return the names of the columns of a CSV file, and whether any row follows."""
    with _lines(file, _text_encoding(dialect), FilePiece(str(file))) as all_lines:
        lines = islice(all_lines, dialect.skipped_lines, None)
        # Arrow also skips lines without any character.
        first = next((row for row in csv.reader(lines, delimiter=delimiter) if row), [])
        if not dialect.names:
            return first, any(line.strip("\r\n") for line in lines)
        if first and len(first) != len(dialect.names):
            raise ValueError(
                f"its first row has {len(first)} fields, but csv_columns has {len(dialect.names)} names: name each one"
            )
        return dialect.names, bool(first)


def _advice(file: Path, delimiter: str, dialect: Dialect) -> str:
    """Return the setting that the line of the header asks for, in words."""
    with _lines(file, _text_encoding(dialect), FilePiece(str(file)), errors="replace") as lines:
        return advice_on(next(islice(lines, dialect.skipped_lines, None), ""), delimiter, dialect)


@contextmanager
def _opened_records(place: Place) -> Iterator[IO[bytes]]:
    """Open the bytes of a TFRecord file, as they are stored."""
    with _explained(place), storage.local_copy(place) as file, retried(lambda: file.open("rb"), file) as stream:
        yield stream


@contextmanager
def _opened_json(place: Place) -> Iterator[io.BufferedReader]:
    """Open the bytes of a file of JSON lines, decompressed."""
    with _explained(place), storage.local_copy(place) as file, _opened(file, FilePiece(str(file))) as stream:
        yield io.BufferedReader(stream)


@contextmanager
def _opened(file: Path, piece: FilePiece) -> Iterator[pa.NativeFile]:
    """Open the bytes of a piece of a text file, decompressed if its first bytes show a compression."""
    with retried(lambda: file.open("rb"), file) as raw:
        compression = compression_of(raw.read(MAGIC_BYTES))
        raw.seek(0)
        if compression in ("xz", "zip"):  # Arrow has neither.
            with unpacked(raw, compression) as unpacked_file, pa.PythonFile(unpacked_file, "r") as stream:
                yield stream
            return
        with pa.PythonFile(PieceStream(raw, piece), "r") as stream:
            if not compression:
                yield stream
                return
            with pa.CompressedInputStream(stream, compression) as decompressed:
                yield decompressed


@contextmanager
def _lines(file: Path, encoding: str, piece: FilePiece, errors: str = "strict") -> Iterator[Iterable[str]]:
    with _opened(file, piece) as stream, io.TextIOWrapper(stream, encoding, errors, newline="") as lines:
        yield lines


@contextmanager
def _explained(place: Place) -> Iterator[None]:
    """Turn errors of Arrow and of Python into SourceError or FileSystemError."""
    try:
        yield
    except MemoryError:  # Also raised by Arrow. The table itself may be valid.
        raise
    except (pa.ArrowException, csv.Error, OSError, ValueError, *UNPACK_ERRORS) as error:
        reason = str(error).partition("\n")[0]
        if isinstance(error, OSError) and cause_of(error) == "transient":
            raise FileSystemError(f"{place} could not be read ({error.strerror or error}): run again") from error
        if isinstance(error, UnicodeError) or "invalid UTF8" in reason:
            raise SourceError(
                f"{place} has bytes that are not in its encoding ({reason}): {_ENCODING_ADVICE}"
            ) from error
        if "straddling" in reason:
            reason = f"a row has more than {_BLOCK >> 20} MiB"
        raise SourceError(f"{place} cannot be read as a table: {reason}") from error
