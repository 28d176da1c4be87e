"""Read JSON lines as batches of rows with types of Arrow.

Each line is an object, and its names are columns. A name that a line lacks is a missing value there. The files are read
twice: the first pass finds the columns and their types in all lines of all files.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
from pyarrow import compute, json

from pipeline.errors import SourceError
from pipeline.storage import Place
from pipeline.tables.values import TEXT, require_supported

Open = Callable[[Place], AbstractContextManager[io.BufferedReader]]
"""Opens the decompressed bytes of a file. It turns errors of Arrow into those of this package."""

_BLOCK = 16 << 20
"""About this many bytes are parsed at once. A line has at most as many."""
_ROW = re.compile(r"in row (\d+)")


def read_json_lines(files: Sequence[Place], opened: Open, max_rows: int) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Yield the rows of JSON lines, file by file, with the columns ordered by name.

    The order in which they appear would be another one if the lines were sorted in another way.

    If all texts of a column are dates or times, the metadata of its field is TEXT: its type must be inferred.

    Raises:
        SourceError: A line is no object, a column holds values of different or unsupported types, or there is no row.
    """
    parse = json.ParseOptions(explicit_schema=_survey(files, opened), unexpected_field_behavior="error")
    for place in files:
        with opened(place) as stream:
            for table in _tables(stream, parse):
                for batch in table.cast(parse.explicit_schema).to_batches(max_rows):
                    yield place, batch


def _survey(files: Sequence[Place], opened: Open) -> pa.Schema:
    """Return the columns of all lines, with types that hold all of their values."""
    total = pa.schema([])
    times, texts = set[str](), set[str]()
    for place in files:
        with opened(place) as stream:
            for table in _tables(stream, json.ParseOptions()):
                times |= {field.name for field in table.schema if pa.types.is_timestamp(field.type)}
                texts |= {field.name for field in table.schema if pa.types.is_string(field.type)}
                fields = [field.with_type(_without_times(field.type)) for field in table.schema]
                total = pa.unify_schemas([total, pa.schema(fields)], promote_options="permissive")
                for field in total:
                    require_supported(field.name, field.type)
    if not total.names:
        raise SourceError(f"{files[0]} has no row with a value: add rows to the table")
    fields = sorted(total, key=lambda field: field.name)
    return pa.schema([field.with_metadata(TEXT if field.name in times - texts else None) for field in fields])


def _without_times(kind: pa.DataType) -> pa.DataType:
    """Return text for times. Arrow takes a text for a time if all others in its block are times, too."""
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _tables(stream: io.BufferedReader, parse: json.ParseOptions) -> Iterator[pa.Table]:
    """Yield the lines of a file, many at a time. Raises ValueError if Arrow cannot parse one."""
    rows = 0
    while block := stream.read(_BLOCK):
        block += stream.readline(_BLOCK)
        if len(block) == 2 * _BLOCK and not block.endswith(b"\n"):
            raise ValueError(f"a line has more than {_BLOCK >> 20} MiB")
        if block.isspace():
            continue
        read = json.ReadOptions(use_threads=False, block_size=len(block))
        try:
            table = json.read_json(pa.BufferReader(block), read, parse)
        except pa.ArrowInvalid as error:
            # Arrow counts from the start of the block.
            reason = _ROW.sub(lambda match: f"in row {rows + int(match[1]) + 1}", str(error))  # noqa: B023
            # "Column()" is the line itself.
            is_of_column = "changed from" in reason and "Column()" not in reason
            advice = "write the column with one type" if is_of_column else "each line must be one object"
            raise ValueError(f"{reason}: {advice}") from error
        _require_digits(table, block)
        rows += table.num_rows
        yield table


def _require_digits(table: pa.Table, block: bytes) -> None:
    """Raise ValueError if Arrow made a float of a whole number that has more than 64 bits."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_floating(column.type) and (compute.max(compute.abs(column)).as_py() or 0) >= 2**63:
            found = re.search(rb'"%b"\s*:\s*(-?[0-9]{19,})\s*[,}]' % re.escape(name.encode()), block)
            if found:
                raise ValueError(
                    f"the column {name!r} holds {found[1].decode()}, a whole number of more than 64 bits: write the "
                    "column as text"
                )
