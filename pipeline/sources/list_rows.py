"""The rows of a list of images, as tables whose columns are named by their roles. A part of the file is in memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, json, parquet

from pipeline.sources.compression import require_plain
from pipeline.sources.csv_quotes import require_quotes
from pipeline.sources.json_blocks import tables_of_lines, without_times

Choose = Callable[[Sequence[str]], Mapping[str, str]]
"""Returns the name of the column of each role, from the names of all columns."""

_BLOCK = 4 << 20
"""Arrow parses this many bytes at once. A row must fit into a block."""
_BATCH = 16_384
"""At most this many rows of a Parquet file are read at once."""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def rows_of_list(file: Path, encoding: str, choose: Choose) -> Iterator[pa.Table]:
    """Yield the rows of a list: of CSV or TSV in an encoding, of JSON lines, or of Parquet.

    Raises:
        OSError, ValueError, pa.ArrowException: The file cannot be read.
    """
    require_plain(file)
    suffix = file.suffix.lower()
    if suffix in _DELIMITERS:
        return _rows_of_csv(file, encoding, choose)
    return _rows_of_parquet(file, choose) if suffix == ".parquet" else _rows_of_json_lines(file, choose)


def _rows_of_csv(file: Path, encoding: str, choose: Choose) -> Iterator[pa.Table]:
    delimiter = _DELIMITERS[file.suffix.lower()]
    # Fields may contain line breaks. After a stray quote, Arrow would read the following rows as one field.
    require_quotes(file, delimiter, encoding)
    # Only with "utf8" does Arrow keep the bytes unchanged. Paths may contain any bytes. Without threads, it counts the
    # rows.
    block = csv.ReadOptions(block_size=_BLOCK, use_threads=False, encoding="utf8" if encoding == "utf-8" else encoding)
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with _opened_csv(file, block, parse) as reader:
        columns = choose(reader.schema.names)
    # As bytes: a path may not be UTF-8, and Arrow must not guess types ("007" and "NA" are labels, too).
    types = dict.fromkeys(columns.values(), pa.binary())
    convert = csv.ConvertOptions(include_columns=list(types), column_types=types)
    with _opened_csv(file, block, parse, convert) as reader:
        yield from _by_role(reader, columns)


@contextmanager
def _opened_csv(file: Path, *options: Any) -> Iterator[csv.CSVStreamingReader]:
    # Arrow reads ahead far more of a file that it opens itself.
    with file.open("rb") as stream, csv.open_csv(pa.PythonFile(stream), *options) as reader:
        yield reader


def _rows_of_json_lines(file: Path, choose: Choose) -> Iterator[pa.Table]:
    """The first pass finds the columns and their types, so that a value does not depend on the others in its block."""
    total = pa.schema([])
    for table in _tables_of_json(file, json.ParseOptions()):
        fields = [field.with_type(without_times(field.type)) for field in table.schema]
        total = pa.unify_schemas([total, pa.schema(fields)], promote_options="permissive")
    if not total.names:
        raise ValueError("it has no row with a value")
    columns = choose(total.names)
    schema = pa.schema([total.field(name) for name in dict.fromkeys(columns.values())])
    parse = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    for table in _tables_of_json(file, parse):
        yield from _by_role(table.to_batches(), columns)


def _tables_of_json(file: Path, parse: json.ParseOptions) -> Iterator[pa.Table]:
    def table_of(block: bytes) -> pa.Table:
        return json.read_json(pa.BufferReader(block), json.ReadOptions(block_size=len(block)), parse)

    with file.open("rb") as stream:
        yield from tables_of_lines(stream, table_of, _BLOCK, "write the column with one type")


def _rows_of_parquet(file: Path, choose: Choose) -> Iterator[pa.Table]:
    # Without buffers, Arrow would hold all bytes of a row group, which may be the whole file.
    with parquet.ParquetFile(file, page_checksum_verification=True, pre_buffer=False, buffer_size=1 << 20) as content:
        columns = choose(content.schema_arrow.names)
        yield from _by_role(content.iter_batches(_BATCH, columns=list(dict.fromkeys(columns.values()))), columns)


def _by_role(batches: Iterable[pa.RecordBatch], columns: Mapping[str, str]) -> Iterator[pa.Table]:
    for batch in batches:
        # The batches of a file may have different dictionaries.
        arrays = [_plain(batch[name]) for name in columns.values()]
        yield pa.Table.from_arrays(arrays, list(columns))


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
