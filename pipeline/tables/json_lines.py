"""Read JSON lines as batches of rows with types of Arrow.

Each line is an object, and its names are columns. A name that a line lacks is a missing value there. The names of an
object within an object become columns such as `geo.lat`. The files are read twice: the first pass finds the columns and
their types in all lines of all files.
"""

import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from json import dumps, loads
from typing import Any

import pyarrow as pa
from pyarrow import compute, json

from pipeline.errors import SourceError
from pipeline.sources.json_blocks import tables_of_lines, without_times
from pipeline.storage import Place
from pipeline.tables.selection import Selection
from pipeline.tables.structs import changed, flat_batch, flat_schema
from pipeline.tables.values import TEXT

Open = Callable[[Place], AbstractContextManager[io.BufferedReader]]
"""Opens the decompressed bytes of a file. It turns errors of Arrow into those of this package."""

_BLOCK = 16 << 20
"""About this many bytes are parsed at once. A line has at most as many."""
_ONE_TYPE = "write the column with one type, or leave it out with drop_columns"


def read_json_lines(
    files: Sequence[Place],
    opened: Open,
    max_rows: int,
    selection: Selection,
    choose: Callable[[pa.Schema], Collection[str]],
) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Yield the rows of JSON lines, file by file.

    If all texts of a column are dates or times, the metadata of its field is TEXT: its type must be inferred.

    Args:
        files: The files.
        opened: Opens a file.
        max_rows: The largest number of rows of a batch.
        selection: The columns that may be read.
        choose: Takes all columns, of which those that are not selected have no type, and returns the ones to read. The
            columns are ordered by name: the order in which they appear depends on that of the lines.

    Raises:
        SourceError: A line is no object, a selected column holds values of different types, or there is no row.
    """
    found = _survey(files, opened, selection)
    flat = sorted(flat_schema(found), key=lambda field: field.name)
    # Without a selected column, only the number of rows matters.
    names = set(filter(selection.includes, choose(pa.schema(flat))))
    read = pa.schema(changed(found, lambda name, field: field if name in names else None))
    parse = json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")
    for place in files:
        with opened(place) as stream:
            for table in _tables(stream, parse, selection):
                for batch in (table.cast(read) if read.names else table).to_batches(max_rows):
                    yield place, flat_batch(batch)


def _survey(files: Sequence[Place], opened: Open, selection: Selection) -> pa.Schema:
    """Return the columns of all lines, with types that hold all of their values."""
    total = pa.schema([])
    times, texts = set[str](), set[str]()

    def as_text(name: str, field: pa.Field) -> pa.Field:
        # The types of a column that nobody reads may differ.
        return field.with_type(without_times(field.type) if selection.includes(name) else pa.null())

    for place in files:
        with opened(place) as stream:
            for table in _tables(stream, json.ParseOptions(), selection):
                flat = flat_schema(table.schema)
                times |= {field.name for field in flat if pa.types.is_timestamp(field.type)}
                texts |= {field.name for field in flat if pa.types.is_string(field.type)}
                fields = pa.schema(changed(table.schema, as_text))
                try:
                    total = pa.unify_schemas([total, fields], promote_options="permissive")
                except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                    raise ValueError(f"{error}: {_ONE_TYPE}") from error
    if not total.names:
        raise SourceError(f"{files[0]} has no row with a value: add rows to the table")
    are_times = times - texts
    return pa.schema(changed(total, lambda name, field: field.with_metadata(TEXT if name in are_times else None)))


def _tables(stream: io.BufferedReader, parse: json.ParseOptions, selection: Selection) -> Iterator[pa.Table]:
    def table_of(block: bytes) -> pa.Table:
        table = _table(block, parse, selection)
        _require_digits(table, block, selection)
        return table

    return tables_of_lines(stream, table_of, _BLOCK, _ONE_TYPE)


def _table(block: bytes, parse: json.ParseOptions, selection: Selection) -> pa.Table:
    """Return lines as a table. The types of a column may differ if it is not selected."""
    read = json.ReadOptions(use_threads=False, block_size=len(block))
    try:
        return json.read_json(pa.BufferReader(block), read, parse)
    except pa.ArrowInvalid as error:
        if "changed from" not in str(error):
            raise
        try:
            lines = [dumps(_without_values(loads(line), selection)) for line in block.split(b"\n") if line.strip()]
        except ValueError:  # Arrow stops at the first problem, which comes before this one.
            raise error from None
        rest = "\n".join(lines).encode()
        read.block_size = len(rest)
        return json.read_json(pa.BufferReader(rest), read, parse)


def _without_values(line: Any, selection: Selection, prefix: str = "") -> Any:
    """Return an object with null for each value of a column that is not selected."""
    if not isinstance(line, dict):
        return line
    kept: dict[str, Any] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            kept[name] = _without_values(value, selection, f"{prefix}{name}.")
        else:
            kept[name] = value if selection.includes(prefix + name) else None
    return kept


def _require_digits(table: pa.Table, block: bytes, selection: Selection) -> None:
    """Raise ValueError if Arrow made a float of a whole number that has more than 64 bits."""
    for batch in map(flat_batch, table.to_batches()):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not pa.types.is_floating(column.type) or not selection.includes(name):
                continue
            if (compute.max(compute.abs(column)).as_py() or 0) >= 2**63:
                own_name = re.escape(name.rpartition(".")[2].encode())
                found = re.search(rb'%b"\s*:\s*(-?[0-9]{19,})\s*[,}]' % own_name, block)
                if found:
                    raise ValueError(
                        f"the column {name!r} holds {found[1].decode()}, a whole number of more than 64 bits: write "
                        "the column as text, or leave it out with drop_columns"
                    )
