"""Rows of a table -> parts of a snapshot, encoded by the schema of the whole table."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain

import numpy as np
import pyarrow as pa

from pipeline import storage
from pipeline.config.example_kinds import TABLE
from pipeline.errors import SourceError
from pipeline.snapshot.listing import Listing, write_snapshot
from pipeline.snapshot.part import PART_LIMITS, Block, PartLimits, write_parts
from pipeline.snapshot.raw_example import Origin
from pipeline.sources import Skipped
from pipeline.storage import Place
from pipeline.system.parallel import items_ahead, ordered_map
from pipeline.tables.convert import converted
from pipeline.tables.options import TableOptions
from pipeline.tables.row_values import ValueWriter
from pipeline.tables.rows import Rows, rows_of_batch
from pipeline.tables.schema import Schema
from pipeline.tables.source import BATCHES_AHEAD, RawBatch

MAX_VALUES = 32_000_000
"""A part has at most this many values, of 4 bytes each."""
PART_BYTES = 64_000_000
"""The rows of a part have about this many bytes. Unlike images, they are held in memory several times."""
THREADS = 2
"""At most this many batches are converted at once."""
_log = logging.getLogger(__name__)


def list_rows(
    raws: Iterable[RawBatch], schema: Schema, options: TableOptions, prefix: str = "row ", first_number: int = 1
) -> Listing:
    """Write rows as parts of a snapshot, with their values beside them, and return the listing without the schema.

    The rows may be a part of a table, whose schema is `schema`. A rejected row without a key is named by `prefix` and
    its number. The first row has the number `first_number`.
    """
    listing = Listing("", remote=storage.is_bucket(options.source_uri))
    values = ValueWriter(schema)
    # The values of a row take memory for each column, however few of them the row has.
    rows = max(1, min(PART_LIMITS.rows, MAX_VALUES // len(schema.columns)))
    limits = PartLimits(rows=rows, bytes=PART_BYTES)
    with closing(items_ahead(raws, BATCHES_AHEAD)) as batches:
        blocks = _blocks(batches, schema, listing, values, prefix, first_number)
        for part in write_parts(blocks, options.folder, limits, options.arrange):
            values.write(part)
            listing.parts.append(part)
    storage.sync_folder(options.folder)
    return listing


def _blocks(
    raws: Iterable[RawBatch], schema: Schema, listing: Listing, values: ValueWriter, prefix: str, number: int
) -> Iterator[Block]:
    """Yield every row, and add it to the sums of `listing` and to `values`."""

    def rows_of(raw: RawBatch) -> list[Rows]:
        return list(rows_of_batch(converted(raw.batch, schema), raw, schema))

    classes: Counter[str] = Counter()
    # Arrow works without Python's lock, so two batches are done at once. The local engine has a process for each core,
    # and gives each one thread.
    threads = min(THREADS, pa.cpu_count())
    batches = ordered_map(rows_of, _numbered(raws, prefix, number), threads, under_way=threads + 1)
    for rows in chain.from_iterable(batches):
        columns, labels = rows.block.columns, rows.block.labels
        listing.listed += len(columns)
        listing.bytes += int(columns["size"].sum())
        classes.update(dict(zip(labels, np.bincount(columns["label"]).tolist(), strict=True)))
        values.add(rows.values)
        yield rows.block
    del classes[""]  # That of rejected rows, and of numbers.
    listing.classes = dict(classes)


def _numbered(raws: Iterable[RawBatch], prefix: str, number: int) -> Iterator[RawBatch]:
    """Yield batches, each with the number of its first row."""
    for raw in raws:
        yield raw._replace(prefix=prefix, first_number=number)
        number += raw.rows


def save_listed(
    options: TableOptions,
    schema: Schema,
    started_ns: int,
    listings: Sequence[Listing],
    skipped: Iterable[Skipped] = (),
) -> Place:
    """Write the snapshot of a table whose rows were listed in one or more pieces, and return its file.

    `skipped` are the files beside those of the table.

    Raises:
        SourceError: If the table changed after its schema was inferred.
    """
    # Unlike images, rows may come in any order, and keys may be equal.
    total = Listing("", remote=storage.is_bucket(options.source_uri))
    classes: Counter[str] = Counter()
    for each in listings:
        total.parts += each.parts
        total.listed += each.listed
        total.bytes += each.bytes
        classes.update(each.classes)
    total.classes = dict(classes)
    for item in skipped:
        total.skipped.add(item)
    if total.listed != schema.rows:
        raise SourceError(
            f"the table had {schema.rows} rows, and then {total.listed}: run again when nothing changes it"
        )
    _log.info("%d rows of %d columns", total.listed, len(schema.columns))
    path = write_snapshot(
        total,
        options.folder,
        source_uri=options.source_uri,
        origin=Origin(root=str(options.place)),
        kind=TABLE,
        source_kind="table",
        started_ns=started_ns,
        table=schema.to_json(),
    )
    total.log_skipped(path)
    return path
