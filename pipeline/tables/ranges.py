"""Rows of a table in ranges of its files, for `pipeline/extraction.py`.

`divide` reads the whole table for its schema, because what a column holds is known only after the last row. Then
several tasks read the ranges again, and list their rows.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline import storage
from pipeline.config import Settings
from pipeline.snapshot.listing import Listing
from pipeline.storage import Place, place_of
from pipeline.system.environment import whole_number
from pipeline.system.malloc import keep_large_blocks
from pipeline.system.parallel import items_ahead
from pipeline.system.progress import Advance, Show, progress
from pipeline.tables import extract
from pipeline.tables.infer import Inference
from pipeline.tables.pieces import Piece, grouped
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
    """Fields of each `Piece`."""
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
    groups = grouped(pieces, max(range_bytes, 2 * sum(piece.size for piece in pieces) // max_ranges))
    if len(groups) < 2:
        return []
    storage.sweep(snapshots_folder(settings))
    inference, reader = Inference(extract.columns_of(settings)), TableReader(files, settings.list_encoding)
    with progress("schema", 0, "rows") as advance:
        rows = [[_inferred(piece, inference, reader, advance) for piece in group] for group in groups]
    reader.require_rows()
    if extract.state_of(table_files(settings.source)) != state:
        raise extract.changed_table(settings)
    schema_path = folder / "schema.json"
    with storage.write_whole(schema_path, synced=True) as file:
        file.write(json.dumps(inference.schema().to_json()).encode())
    return list(map(asdict, _ranges(groups, rows, state, str(schema_path))))


def _inferred(piece: Piece, inference: Inference, reader: TableReader, advance: Advance) -> int:
    """Add the rows of a piece to the schema, and return their number."""
    rows = 0
    with closing(items_ahead(reader.read(piece), BATCHES_AHEAD)) as raws:
        for raw in raws:
            inference.add(raw.batch, rejected=len(raw.rejected))
            rows += raw.rows
            advance(raw.rows)
    return rows


def _ranges(
    groups: Iterable[Sequence[Piece]], rows: Iterable[Sequence[int]], state: Sequence[list[Any]], schema: str
) -> Iterator[TableRange]:
    of_table, of_file = 0, dict[str, int]()
    for pieces, counts in zip(groups, rows, strict=True):
        range_ = TableRange(pieces=[], rows_before=of_table, state=[], schema=schema)
        for piece, count in zip(pieces, counts, strict=True):
            before = of_file.get(piece.file, 0)
            range_.pieces.append(asdict(replace(piece, rows_before=before, has_checked_quotes=True)))
            of_file[piece.file] = before + count
            of_table += count
        names = {piece.file for piece in pieces}
        range_.state.extend(each for each in state if each[0] in names)
        yield range_


def list_range(settings: Settings, content: Any, show: Show) -> Listing:
    """List the rows of a range.

    Raises:
        SourceError: If the table cannot be read, or changes meanwhile.
    """
    keep_large_blocks()
    range_ = TableRange(**content)
    pieces = [Piece(**piece) for piece in range_.pieces]
    files = list(dict.fromkeys(piece.place for piece in pieces))
    schema = Schema.from_json(storage.read_json(place_of(range_.schema)))
    with show("extract", 0, "rows") as advance:
        # Rejected rows name their files relative to the folder of the whole table.
        reader = TableReader(table_files(settings.source), settings.list_encoding)
        raws = _counted(pieces, reader, advance)
        listing = extract.list_rows(raws, schema, settings, first_number=range_.rows_before + 1)
    if extract.state_of(files) != range_.state:
        raise extract.changed_table(settings)
    return listing


def _counted(pieces: Iterable[Piece], reader: TableReader, advance: Advance) -> Iterator[RawBatch]:
    for piece in pieces:
        for raw in reader.read(piece):
            yield raw
            advance(raw.rows)


def join(settings: Settings, started_ns: int, contents: Sequence[Any], listings: Iterable[Listing]) -> Place:
    """Write the snapshot of all ranges.

    Raises:
        SourceError: If the table changed after it was divided, or has no two classes.
    """
    schema = Schema.from_json(storage.read_json(place_of(TableRange(**contents[0]).schema)))
    return extract.save_listed(settings, schema, started_ns, list(listings))


def describe(content: Any) -> str:
    """Return the first row of a range in words."""
    first = TableRange(**content).rows_before
    return f"from row {first + 1:,}" if first else ""
