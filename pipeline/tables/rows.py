"""Rows of a table as rows of a snapshot. Each carries its own record, so nothing is read again to write it."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from pipeline.records.example import example_head
from pipeline.records.frames import frames
from pipeline.snapshot.part import Block, block_of, columns_of
from pipeline.snapshot.raw_example import RawExample, identity, quoted
from pipeline.tables.convert import Converted, Rejection
from pipeline.tables.encode import MAX_CELLS, encode_columns
from pipeline.tables.order_hash import order_hash
from pipeline.tables.row_values import Values, no_values, values_of
from pipeline.tables.schema import Column, Schema
from pipeline.tables.source import RawBatch
from pipeline.tables.stated_splits import splits_of

CACHED_HEADS = 1 << 14
"""The heads of at most this many lengths of records are cached, and as many labels."""


class Rows(NamedTuple):
    """Rows of a snapshot, and their values in the same order."""

    block: Block
    values: Values


def compared_names(schema: Schema) -> list[str]:
    """Return the columns that come first in a record: all but the key, the split, and the label of a class.

    Rows that are equal in these columns and in the key are duplicates, contradictions if their classes differ, and
    leaks if one of them is stated as training and another one as test.
    """
    return [column.name for column in schema.columns if not _is_last(column, schema)]


def _is_last(column: Column, schema: Schema) -> bool:
    return column.role in ("key", "split") or (column.role == "label" and schema.task == "classification")


def rows_of_batch(batch: Converted, raw: RawBatch, schema: Schema) -> Iterator[Rows]:
    """Yield the rows of a batch, a few megabytes at a time, and after them the rejected ones.

    `raw` is the batch before its conversion. A rejected row without a key has the name of its place.
    """
    accepted, rejected, split = batch.batch, batch.rejected, raw.split
    if rejected:
        is_rejected = np.zeros(accepted.num_rows, np.bool_)
        is_rejected[list(rejected)] = True
        accepted = accepted.filter(pa.array(~is_rejected))
    rows = max(1, MAX_CELLS // len(schema.columns))
    for start in range(0, accepted.num_rows, rows):
        yield _accepted(accepted.slice(start, rows), schema, split)
    if rejected:
        values = batch.batch.take(list(rejected))
        yield _rejected(values, raw.places_of(rejected), list(rejected.values()), schema)
    if raw.rejected:
        rows_of_ragged = [rejected_row(row.key, row.reason, row.advice) for row in raw.rejected]
        yield _without_record(rows_of_ragged, schema)


def _accepted(typed: pa.RecordBatch, schema: Schema, split: str) -> Rows:
    key, label = schema.of_role("key"), schema.label
    is_class = schema.task == "classification"
    labels = _texts(typed, label) if is_class else [""] * typed.num_rows
    columns = _slices(*encode_columns(typed, compared_names(schema)))
    # A size of 0 is that of a rejected row. All features of another row may be missing.
    measured = [each or b"\0" for each in columns]
    if key:
        keys = _texts(typed, key)
        # Without a checksum, the key decides the split.
        crc32cs = np.zeros(len(keys), np.uint32)
        compared = [b"%b\0%b" % (text.encode(), each) for text, each in zip(keys, columns, strict=True)]
    else:
        keys = [
            xxhash.xxh3_128_hexdigest(b"%b\0%b" % (each, text.encode()))
            for each, text in zip(columns, labels, strict=True)
        ]
        crc32cs = np.array([google_crc32c.value(each) for each in measured], np.uint32)
        compared = columns
    last = [column.name for column in schema.columns if _is_last(column, schema)]
    features = [one + other for one, other in zip(columns, _slices(*encode_columns(typed, last)), strict=True)]
    example_head_of = lru_cache(CACHED_HEADS)(example_head)
    records = frames([example_head_of(len(each)) + each for each in features])
    groups, splits = _texts(typed, schema.of_role("group")), _splits(typed, schema, split)
    sizes = np.array([len(each) for each in measured], np.int64)
    quoted_labels = _quoted(labels) if is_class else labels
    facts = zip(keys, quoted_labels, splits, sizes.tolist(), crc32cs.tolist(), _quoted(groups), strict=True)
    heads = [
        identity(quoted(key), label, split, size, crc32c, group, boxes="[]")
        for key, label, split, size, crc32c, group in facts
    ]
    lines = [b'%b,0,""]\n%b' % pair for pair in zip(heads, records, strict=True)]
    numbers = columns_of(keys=keys, groups=groups, splits=splits, sizes=sizes, crc32cs=crc32cs, are_known=not key)
    numbers["content"] = _hashes(compared)
    # The hash of the key alone would put all rows of one key behind each other.
    numbers["order"] = np.fromiter(map(order_hash, splits, features), np.uint64, len(features))
    # Unlike the row of an image, the whole line identifies a row.
    block = Block(keys=keys, labels=labels, identities=lines, lines=lines, columns=numbers)
    return Rows(block, values_of(typed, schema))


def _hashes(contents: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return a hash of 64 bits of each row. It is never 0, which stands for none."""
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, contents), np.uint64, len(contents))
    return np.maximum(hashes, np.uint64(1))


def _quoted(texts: Sequence[str]) -> list[str]:
    """Return texts as JSON. Many of them are equal."""
    return list(map(lru_cache(CACHED_HEADS)(quoted), texts))


def _slices(content: bytes, ends: NDArray[np.int64]) -> list[bytes]:
    return [content[begin:end] for begin, end in pairwise([0, *ends.tolist()])]


def _rejected(typed: pa.RecordBatch, places: Sequence[str], rejections: Sequence[Rejection], schema: Schema) -> Rows:
    contents = _slices(*encode_columns(typed, compared_names(schema)))
    keys = _texts(typed, schema.of_role("key"))
    rows = [
        rejected_row(key or place, *rejection, content=content)
        for place, rejection, key, content in zip(places, rejections, keys, contents, strict=True)
    ]
    return _without_record(rows, schema)


def _without_record(rows: Sequence[RawExample], schema: Schema) -> Rows:
    block = block_of(rows)
    # Many rejected rows may be equal. Their size of 0 shows that they are no duplicates.
    block.columns["content"] = block.columns["order"]
    return Rows(block, no_values(schema, len(rows)))


def rejected_row(place: str, reason: str, advice: str, content: bytes = b"") -> RawExample:
    """Return a row that does not fit the table. `place` says where it is, or what its key is.

    The place is not its key in the snapshot, so that the same rows in another order have the same version.
    """
    key = f"rejected {xxhash.xxh3_128_hexdigest(content + reason.encode())}"
    return RawExample(key, ("",), "", 0, 0, "", (), 0, rejection=(reason, advice, place))


def _splits(typed: pa.RecordBatch, schema: Schema, split: str) -> list[str]:
    column = schema.of_role("split")
    return splits_of(_texts(typed, column)) if column else [split] * typed.num_rows


def _texts(batch: pa.RecordBatch, column: Column | None) -> list[str]:
    """Return the values of a column as texts. A missing value is an empty text."""
    if column is None:
        return [""] * batch.num_rows
    texts = pc.cast(batch.column(column.name), pa.string())  # "true" and "false" of bool
    return pc.fill_null(texts, "").to_pylist()  # type: ignore[no-any-return]
