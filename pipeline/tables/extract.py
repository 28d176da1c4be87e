"""Table -> snapshot: the schema of all rows, then the rows, encoded by that schema.

The table is read twice: what a column holds is known only after its last row.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from pipeline import storage
from pipeline.config import Settings
from pipeline.errors import SourceError
from pipeline.example_kinds import TABLE
from pipeline.snapshot.listing import Listing, snapshot_of
from pipeline.snapshot.part import PART_LIMITS, Block, PartLimits, write_parts
from pipeline.snapshot.raw_example import Origin
from pipeline.snapshot.snapshot import save_snapshot, skipped_path
from pipeline.storage import Place
from pipeline.system.malloc import keep_large_blocks
from pipeline.system.parallel import items_ahead
from pipeline.system.progress import Advance, progress
from pipeline.tables.convert import Converted, converted
from pipeline.tables.infer import Columns, infer_schema
from pipeline.tables.row_values import ValueWriter
from pipeline.tables.rows import rows_of_batch
from pipeline.tables.schema import Schema
from pipeline.tables.source import BATCHES_AHEAD, RawBatch, RejectedRow, read_table, table_files
from pipeline.workspace import place_hash, snapshots_folder

MAX_VALUES = 32_000_000
"""A part has at most this many values, of 4 bytes each."""
PART_BYTES = 64_000_000
"""The rows of a part have about this many bytes. Unlike images, they are held in memory several times."""
_log = logging.getLogger(__name__)


def list_table(settings: Settings) -> Place:
    """Read the table of the settings, which were checked, and return the file of the snapshot.

    Memory does not grow with the rows.

    Raises:
        SourceError: If the table cannot be read, has no row that can be used, or changes meanwhile.
        SettingsError: If a setting names a column that the table does not have.
    """
    keep_large_blocks()
    started_ns = time.time_ns()
    storage.sweep(snapshots_folder(settings))
    before = state_of(table_files(settings.source))
    with progress("schema", 0, "rows") as advance:
        raws = _counted(settings, advance, has_checked_quotes=False)
        with closing(items_ahead(raws, BATCHES_AHEAD)) as batches:
            schema = infer_schema(batches, columns_of(settings))
    require_classes(settings, schema)
    with progress("extract", schema.rows, "rows") as advance:
        listing = list_rows(_counted(settings, advance, has_checked_quotes=True), schema, settings)
    if state_of(table_files(settings.source)) != before:
        raise changed_table(settings)
    return save_listed(settings, schema, started_ns, [listing])


def state_of(files: Iterable[Place]) -> list[list[Any]]:
    """Return name, size and time of the last change of each file, as JSON."""
    stats = [(str(place), place.stat()) for place in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def changed_table(settings: Settings) -> SourceError:
    """Return the error for a table that changes while it is read."""
    return SourceError(f"{settings.source_uri} changed while it was read: run again when nothing changes it")


def columns_of(settings: Settings) -> Columns:
    """Return the columns that the settings name."""
    return Columns(
        label=settings.label_column,
        key=settings.key_column,
        group=settings.group_column,
        split=settings.split_column,
        task=settings.table_task,
    )


def list_rows(
    raws: Iterable[RawBatch], schema: Schema, settings: Settings, prefix: str = "row ", first_number: int = 1
) -> Listing:
    """Write rows as parts of a snapshot, with their values beside them.

    Args:
        raws: The rows.
        schema: The schema of the whole table, of which these rows may be a part.
        settings: The settings of the build.
        prefix: Text before the number of a row, which names rejected rows without a key.
        first_number: Number of the first row.

    Returns:
        The listing, without the schema, which may be large.
    """
    folder = snapshots_folder(settings)
    listing = Listing("", remote=storage.is_bucket(settings.source_uri))
    values = ValueWriter(schema)
    # The values of a row take memory for each column, however few of them the row has.
    rows = max(1, min(PART_LIMITS.rows, MAX_VALUES // len(schema.columns)))
    limits = PartLimits(rows=rows, bytes=PART_BYTES)
    with closing(items_ahead(_converted(raws, schema), BATCHES_AHEAD)) as batches:
        for part in write_parts(_blocks(batches, schema, listing, values, prefix, first_number), folder, limits):
            values.write(part)
            listing.parts.append(part)
    storage.sync_folder(folder)
    return listing


class _Batch(NamedTuple):
    converted: Converted
    ragged: list[RejectedRow]


def _converted(raws: Iterable[RawBatch], schema: Schema) -> Iterator[_Batch]:
    for raw in raws:
        yield _Batch(converted(raw.batch, schema), raw.rejected)


def _counted(settings: Settings, advance: Advance, *, has_checked_quotes: bool) -> Iterator[RawBatch]:
    files = table_files(settings.source)
    for raw in read_table(files, settings.list_encoding, has_checked_quotes=has_checked_quotes):
        yield raw
        advance(raw.rows)


def require_classes(settings: Settings, schema: Schema) -> None:
    """Raise SourceError if a label of classes has less than two values."""
    if schema.task == "classification" and len(schema.label.values) < 2:
        raise SourceError(
            f"column {schema.label.name!r} of {settings.source_uri} has only the values "
            f"{list(schema.label.values)}: a class needs at least two. Choose another label_column"
        )


def _blocks(
    batches: Iterable[_Batch], schema: Schema, listing: Listing, values: ValueWriter, prefix: str, number: int
) -> Iterator[Block]:
    """Yield every row, and add it to the sums of `listing` and to `values`."""
    classes: Counter[str] = Counter()
    for batch, ragged in batches:
        for rows in rows_of_batch(batch, ragged, schema, prefix, number):
            listing.listed += len(rows.block.keys)
            listing.bytes += int(rows.block.columns["size"].sum())
            classes.update(rows.block.labels)
            values.add(rows.values)
            yield rows.block
        number += batch.batch.num_rows + len(ragged)
    del classes[""]  # That of rejected rows, and of numbers.
    listing.classes = dict(classes)


def save_listed(settings: Settings, schema: Schema, started_ns: int, listings: Sequence[Listing]) -> Place:
    """Write the snapshot of a table whose rows were listed in one or more pieces, and return its file.

    Raises:
        SourceError: If the table changed after its schema was inferred, or has no two classes.
    """
    require_classes(settings, schema)
    listed = sum(each.listed for each in listings)
    if listed != schema.rows:
        raise SourceError(f"the table had {schema.rows} rows, and then {listed}: run again when nothing changes it")
    return _save(settings, schema, started_ns, _together(listings))


def _together(listings: Sequence[Listing]) -> Listing:
    """Return the sum of listings. Unlike images, rows may come in any order, and keys may be equal."""
    total = Listing("", remote=listings[0].remote)
    classes: Counter[str] = Counter()
    for each in listings:
        total.parts += each.parts
        total.listed += each.listed
        total.bytes += each.bytes
        classes.update(each.classes)
    total.classes = dict(classes)
    return total


def _save(settings: Settings, schema: Schema, started_ns: int, listing: Listing) -> Place:
    snapshot = snapshot_of(
        listing,
        source_uri=settings.source_uri,
        origin=Origin(root=str(settings.source)),
        kind=TABLE,
        source_kind="table",
        started_ns=started_ns,
        table=schema.to_json(),
    )
    _log.info("%d rows of %d columns", listing.listed, len(schema.columns))
    path = snapshots_folder(settings) / f"{snapshot.fingerprint}-{place_hash(settings.source_uri)}.json"
    with storage.write_whole(skipped_path(path), synced=True):
        pass  # A table has no skipped files.
    return save_snapshot(snapshot, path)
