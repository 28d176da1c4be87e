"""The rows of a list of images, in the order of their keys. A list is read once, and its rows are kept."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pyarrow as pa
from pyarrow import csv, json, parquet

from pipeline import storage
from pipeline.errors import SourceError
from pipeline.sources import Measured, SourceOptions, measure
from pipeline.sources.cells import CORNERS, NAMES, choose_column
from pipeline.sources.compression import require_plain
from pipeline.sources.csv_quotes import require_quotes
from pipeline.sources.json_blocks import tables_of_lines, without_times
from pipeline.sources.kept_files import has_checksum, hash_of, kept_folder, note_use, read_kept, write_kept
from pipeline.sources.sorted_rows import SortedRows, write_sorted
from pipeline.storage import SCHEME, Place
from pipeline.system.arrow import little_memory, without_views
from pipeline.system.os_errors import cause_of, retried

FORMAT = 1
"""Increase this if the rows that are kept change. Lists are then read again."""

_Columns = Mapping[str, str]
"""The name of the column of each role."""
_Choose = Callable[[Sequence[str]], _Columns]
_Batches = Iterator[tuple[pa.RecordBatch, _Columns]]
_BLOCK = 4 << 20
"""Arrow parses this many bytes at once. A row must fit into a block."""
_BATCH = 4096
"""At most this many paths are Python objects at the same time."""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_GS = SCHEME.encode()
_SCHEME = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://")
_ROW = re.compile(r"Row #(\d+): (.*)")
"""How Arrow begins the reason why it refuses a row of CSV. The header is row 1."""


@contextmanager
def open_rows(place: Place, options: SourceOptions, is_range: bool = False) -> Iterator[SortedRows]:
    """Give the rows of a list in the order of their keys. The list is read first, unless it was.

    The columns are named by their roles, and a column `key`, of bytes, replaces the paths. If only a range of the keys
    is read, another task has just read the boundaries of the ranges. It checked the rows that are kept.

    Raises:
        SourceError: The list cannot be read, or lacks a column.
    """
    measured = measure(place)
    columns = [getattr(options, f"{role}_column") for role in NAMES]
    name = hash_of([FORMAT, str(place), measured.size, measured.generation, *columns, options.list_encoding])
    kept, checksum = (kept_folder(options) / f"{name}{suffix}" for suffix in (".arrow", ".json"))
    note_use([kept, checksum])  # From now on, no listing of another source removes them.
    with little_memory():
        if not (kept.is_file() if is_range else _are_intact(kept, checksum)):
            retried(lambda: write_sorted(kept, _read(place, measured, options)), place)
            storage.sync_folder(kept.parent)
            write_kept(checksum, storage.crc32c_of(kept))
        with storage.local_copy(kept) as file:
            yield SortedRows(file)


def _are_intact(rows: Place, checksum: Place) -> bool:
    """Whether the stored rows of a list have the checksum in the file `checksum`."""
    crc32c = read_kept(checksum)
    return crc32c is not None and rows.is_file() and has_checksum(rows, crc32c)


def _read(place: Place, measured: Measured, options: SourceOptions) -> Iterator[pa.Table]:
    choose = partial(_choose_columns, place=place, options=options)
    try:
        with storage.local_copy(place, measured.generation) as file:
            require_plain(file)
            for batch, columns in _batches(file, options.list_encoding, choose):
                for start in range(0, len(batch), _BATCH):
                    yield _with_keys(batch.slice(start, _BATCH), columns, place)
    except MemoryError:  # Also raised by Arrow. The list itself may be valid.
        raise
    except FileNotFoundError as error:
        raise SourceError(
            f"{place} changed or vanished while it was read: run again when nothing changes it"
        ) from error
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        if isinstance(error, OSError) and cause_of(error) == "transient":
            raise
        reason = _ROW.sub(r"\2, in row \1", str(error).partition("\n")[0])
        raise SourceError(f"{place} cannot be read as a {place.suffix} list of images: {reason}") from error
    if measure(place) != measured:
        raise SourceError(f"{place} changed while it was read: run again when nothing changes it")


def _batches(file: Path, encoding: str, choose: _Choose) -> _Batches:
    suffix = file.suffix.lower()
    if suffix in _DELIMITERS:
        return _batches_of_csv(file, _DELIMITERS[suffix], encoding, choose)
    return _batches_of_parquet(file, choose) if suffix == ".parquet" else _batches_of_json_lines(file, choose)


def _batches_of_csv(file: Path, delimiter: str, encoding: str, choose: _Choose) -> _Batches:
    # Fields may contain line breaks. After a stray quote, Arrow would read the following rows as one field.
    require_quotes(file, delimiter, encoding)
    # Only with "utf8" does Arrow keep the bytes unchanged. Without threads, it counts the rows.
    read = csv.ReadOptions(block_size=_BLOCK, use_threads=False, encoding="utf8" if encoding == "utf-8" else encoding)
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with file.open("rb") as stream, csv.open_csv(pa.PythonFile(stream), read, parse) as reader:
        columns = choose(reader.schema.names)
    # As bytes: a path may not be UTF-8, and Arrow must not guess types ("007" and "NA" are labels, too).
    types = dict.fromkeys(columns.values(), pa.binary())
    convert = csv.ConvertOptions(include_columns=list(types), column_types=types)
    # Arrow reads ahead far more of a file that it opens itself.
    with file.open("rb") as stream, csv.open_csv(pa.PythonFile(stream), read, parse, convert) as reader:
        for batch in reader:
            yield batch, columns


def _batches_of_json_lines(file: Path, choose: _Choose) -> _Batches:
    """The first pass finds the columns and their types, so that a value does not depend on the others in its block."""

    def tables(parse: json.ParseOptions | None = None) -> Iterator[pa.Table]:
        def table_of(block: bytes) -> pa.Table:
            return json.read_json(pa.BufferReader(block), json.ReadOptions(block_size=len(block)), parse)

        with file.open("rb") as stream:
            yield from tables_of_lines(stream, table_of, _BLOCK, "write the column with one type")

    total = pa.schema([])
    for table in tables():
        fields = [field.with_type(without_times(field.type)) for field in table.schema]
        total = pa.unify_schemas([total, pa.schema(fields)], promote_options="permissive")
    if not total.names:
        raise ValueError("it has no row with a value")
    columns = choose(total.names)
    schema = pa.schema([total.field(name) for name in dict.fromkeys(columns.values())])
    for table in tables(json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")):
        for batch in table.to_batches():
            yield batch, columns


def _batches_of_parquet(file: Path, choose: _Choose) -> _Batches:
    # Without buffers, Arrow would hold all bytes of a row group, which may be the whole file.
    with parquet.ParquetFile(file, page_checksum_verification=True, pre_buffer=False, buffer_size=1 << 20) as content:
        columns = choose(content.schema_arrow.names)
        for batch in content.iter_batches(_BATCH, columns=list(dict.fromkeys(columns.values()))):
            yield without_views(batch), columns


def _choose_columns(names: Sequence[str], place: Place, options: SourceOptions) -> _Columns:
    """Return the name of the column of each role that the list has. The columns of boxes have fixed names."""
    chosen = {role: choose_column(role, names, place, getattr(options, f"{role}_column")) for role in NAMES}
    columns = {role: name for role, name in chosen.items() if name}
    if "boxes" in names:
        columns |= {name: name for name in ("boxes", "box_labels") if name in names}
    elif all(name in names for name in CORNERS):
        columns |= {name: name for name in CORNERS}
    if twice := [name for name in columns.values() if names.count(name) > 1]:
        raise SourceError(f"{place} has two columns {twice[0]!r}: rename one")
    return columns


def _with_keys(batch: pa.RecordBatch, columns: _Columns, place: Place) -> pa.Table:
    """Return rows with columns that are named by their roles, and with keys in place of paths."""
    # The batches of a Parquet file may have different dictionaries.
    arrays = {
        role: batch[name].dictionary_decode() if pa.types.is_dictionary(batch[name].type) else batch[name]
        for role, name in columns.items()
    }
    paths = arrays.pop("path")
    try:
        paths = paths.cast(pa.large_binary())
    except pa.ArrowException as error:
        raise SourceError(
            f"{place} holds {paths.type} in the column of paths, but paths must be text: name another column in "
            "path_column"
        ) from error
    folder = place.parent
    # With a slash at its end.
    above = os.fsencode(os.path.join(os.path.abspath(folder) if isinstance(folder, Path) else str(folder), ""))  # noqa: PTH100, PTH118
    keys = [_key(path or b"", above, place) for path in paths.to_pylist()]
    return pa.table(arrays | {"key": pa.array(keys, pa.large_binary())})


def _key(path: bytes, folder: bytes, place: Place) -> bytes:
    """Return the key of a path: the normalized path relative to `folder`, which ends in a slash.

    A path outside of the folder is only normalized.
    """
    if path.startswith(_GS):
        # Names in a bucket are not normalized: there, `..` is a part like any other.
        return path.removeprefix(folder)
    if scheme := _SCHEME.match(path):
        host, slash, rest = path[scheme.end() :].partition(b"/")
        if scheme[1].lower() != b"file" or host not in (b"", b"localhost"):
            raise SourceError(
                f"{place} lists {os.fsdecode(path)!r}, but images are read only from paths and gs://: copy the images, "
                "and list the copies"
            )
        path = unquote_to_bytes(slash + rest)
    if not path:
        return b""
    if folder.startswith(_GS):
        return os.path.normpath(path)
    whole = os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - bytes
    return whole.removeprefix(folder) if whole.startswith(folder) else os.path.normpath(path)
