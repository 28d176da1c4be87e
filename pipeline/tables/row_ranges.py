"""Rows of a table in ranges of its files, for `pipeline/stages/extract.py`.

`divide` reads the whole table for its schema, because what a column holds is known only after the last row. Then
several tasks read the ranges again, and list their rows.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from pipeline import storage
from pipeline.allowed import require_output
from pipeline.config import Settings
from pipeline.snapshot.listing import Listing
from pipeline.storage import Place, place_of
from pipeline.system.environment import whole_number
from pipeline.system.malloc import keep_large_blocks
from pipeline.system.parallel import items_ahead
from pipeline.system.progress import Advance, Show, progress
from pipeline.tables import extract
from pipeline.tables.infer import Inference
from pipeline.tables.pieces import FilePiece, grouped
from pipeline.tables.schema import Schema
from pipeline.tables.source import BATCHES_AHEAD, RawBatch, TableReader, is_of_records, pieces_of_table, table_files
from pipeline.workspace import snapshots_folder

RANGE_MEGABYTES = 32
"""A range has about this many megabytes, which take seconds. A smaller one would take less time than its task to start.
"""

list_all = extract.list_table


@dataclass(frozen=True)
class TableRange:
    """Rows that one task lists. This is stored as JSON."""

    pieces: list[dict[str, Any]]
    """Fields of each `FilePiece`."""
    rows_before: int
    """Number of rows of the table before the range."""
    state: list[list[Any]]
    """What `state_of` returned for the files."""
    schema: str
    """The file of the schema of the whole table."""


def divide(settings: Settings, folder: Place, max_ranges: int) -> list[Any]:
    """Return ranges of about TENFOLD_RANGE_MEGABYTES, and write the schema of the whole table into `folder`.

    The list is empty for a small table, and for one of TFRecord files.

    Raises:
        SourceError: If the table cannot be read, has no row that can be used, or changes meanwhile.
        SettingsError: If a setting names a column that the table does not have.
    """
    keep_large_blocks()
    range_bytes = whole_number("TENFOLD_RANGE_MEGABYTES", RANGE_MEGABYTES) * 1_000_000
    files = table_files(settings.source)
    state = extract.state_of(files)
    pieces = [] if is_of_records(files) else pieces_of_table(files, settings.list_encoding, range_bytes)
    # The groups may be half empty.
    group_bytes = max(range_bytes, 2 * sum(piece.size for piece in pieces) // max_ranges)
    if len(grouped(pieces, group_bytes)) < 2:
        return []
    storage.sweep(snapshots_folder(settings))
    inference, reader = Inference(extract.columns_of(settings)), TableReader(files, settings.list_encoding)
    with progress("schema", 0, "rows") as advance:
        pieces = list(_inferred(pieces, inference, reader, advance))
    reader.require_rows()
    schema = inference.schema()
    extract.require_classes(settings, schema)
    if extract.state_of(table_files(settings.source)) != state:
        raise extract.changed_table(settings)
    schema_path = folder / "schema.json"
    with storage.write_whole(schema_path, synced=True) as file:
        file.write(json.dumps(schema.to_json()).encode())
    return list(map(asdict, _ranges(grouped(pieces, group_bytes), state, str(schema_path))))


def _inferred(
    pieces: Iterable[FilePiece], inference: Inference, reader: TableReader, advance: Advance
) -> Iterator[FilePiece]:
    """Add the rows of pieces to the schema, and yield the pieces with their numbers of rows."""
    for file, of_file in groupby(pieces, key=lambda piece: piece.file):
        known = list(of_file)
        if known[0].rows is None:
            before = 0
            for piece in known:
                rows = _infer(piece, inference, reader, advance)
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
            inference.add(raw.batch, rejected=len(raw.rejected))
            rows += raw.rows
            advance(raw.rows)
    return rows


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


def list_range(settings: Settings, content: Any, show: Show) -> Listing:
    """List the rows of a range.

    Raises:
        SourceError: If the table cannot be read, or changes meanwhile.
    """
    keep_large_blocks()
    range_ = TableRange(**content)
    pieces = [FilePiece(**piece) for piece in range_.pieces]
    # Anyone who can write to the workspace can write a range file. The reader refuses files outside of the table.
    reader = TableReader(table_files(settings.source), settings.list_encoding)
    files = list(dict.fromkeys(map(reader.place_of, pieces)))
    schema = _schema_of(range_)
    with show("extract", 0, "rows") as advance:
        raws = _counted(pieces, reader, advance)
        listing = extract.list_rows(raws, schema, settings, first_number=range_.rows_before + 1)
    if extract.state_of(files) != range_.state:
        raise extract.changed_table(settings)
    return listing


def _schema_of(range_: TableRange) -> Schema:
    place = place_of(range_.schema)
    require_output(place)
    return Schema.from_json(storage.read_json(place))


def _counted(pieces: Iterable[FilePiece], reader: TableReader, advance: Advance) -> Iterator[RawBatch]:
    for piece in pieces:
        for raw in reader.read(piece):
            yield raw
            advance(raw.rows)


def join(settings: Settings, started_ns: int, contents: Sequence[Any], listings: Iterable[Listing]) -> Place:
    """Write the snapshot of all ranges.

    Raises:
        SourceError: If the table changed after it was divided, or has no two classes.
    """
    return extract.save_listed(settings, _schema_of(TableRange(**contents[0])), started_ns, list(listings))


def describe(content: Any) -> str:
    """Return the first row of a range in words."""
    first = TableRange(**content).rows_before
    return f"from row {first + 1:,}" if first else ""
