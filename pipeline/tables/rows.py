"""Rows of a table as rows of a snapshot. Each carries its own record, so nothing is read again to write it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from pipeline.records.byte_arrays import BYTES, heads_of, joined, values
from pipeline.records.example import example_head
from pipeline.records.frames import framed
from pipeline.snapshot.part import COLUMNS, Block, block_of, hash_texts, split_codes
from pipeline.snapshot.raw_example import RawExample, quoted
from pipeline.tables.convert import Converted, Rejection
from pipeline.tables.encode import MAX_CELLS, encode_columns
from pipeline.tables.order_hash import line_hashes, order_hashes
from pipeline.tables.row_values import Values, no_values, values_of
from pipeline.tables.schema import Column, Schema
from pipeline.tables.source import RawBatch
from pipeline.tables.stated_splits import splits_of

_ESCAPED = r'[^ -~]|["\\]'
"""Matches a text with characters that JSON in ASCII escapes."""


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
    key, is_class = schema.of_role("key"), schema.task == "classification"
    labels = _text_array(typed, schema.label if is_class else None).dictionary_encode()
    groups = _text_array(typed, schema.of_role("group")).dictionary_encode()
    splits = _splits(typed, schema, split)
    compared = encode_columns(typed, compared_names(schema))
    last = encode_columns(typed, [column.name for column in schema.columns if _is_last(column, schema)])
    contents = own_groups = _hashes(values(compared))
    if key:
        keys = _text_array(typed, key)
        own_groups = _hashes(values(keys.cast(BYTES)))
        # 0 stands for none.
        contents = np.maximum(contents ^ own_groups, np.uint64(1))
    else:
        named = joined(compared, b"\0", labels.cast(pa.large_string()).cast(BYTES))
        keys = pa.array(map(xxhash.xxh3_128_hexdigest, values(named)), pa.large_string())
    entry_bytes = pc.add(pc.binary_length(compared), pc.binary_length(last))
    examples = joined(heads_of(entry_bytes, example_head), compared, last)
    # A size of 0 is that of a rejected row. All features of another row may be missing.
    sizes = pc.max_element_wise(pc.binary_length(compared), 1)
    # The form of `identity` and `to_line` in pipeline/snapshot/raw_example.py, without a checksum of the source.
    joined_lines = joined(
        *(b"[", _quoted(keys), b",[", _quoted(labels) if is_class else b"", b'],"'),
        *(pa.array(splits, pa.large_string()).cast(BYTES), b'",', sizes.cast(pa.large_string()).cast(BYTES), b",0,"),
        *(_quoted(groups), b',[],0,""]\n', *framed(examples)),
    )
    lines = values(joined_lines)
    # Unlike the row of an image, the whole line identifies a row.
    hashes = line_hashes(lines)
    columns = np.zeros(len(lines), COLUMNS)
    columns["length"], columns["size"], columns["content"] = pc.binary_length(joined_lines), sizes, contents
    columns["checksum"] = np.fromiter(map(google_crc32c.value, lines), np.uint32, len(lines))
    columns["order"] = order_hashes(hashes)
    columns["group"] = _group_hashes(groups, own_groups)
    columns["split"], columns["label"] = split_codes(splits), labels.indices
    block = Block(lines=lines, labels=labels.dictionary.to_pylist(), hashes=hashes, columns=columns)
    return Rows(block, values_of(typed, schema))


def _group_hashes(groups: pa.DictionaryArray, own: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of the group of each row. A row without a group has its own."""
    texts, codes = groups.dictionary.to_pylist(), groups.indices.to_numpy()
    return np.where(np.array(list(map(bool, texts)))[codes], hash_texts(texts)[codes], own)


def _hashes(contents: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return a hash of 64 bits of each row. It is never 0, which stands for none."""
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, contents), np.uint64, len(contents))
    return np.maximum(hashes, np.uint64(1))


def _quoted(texts: pa.Array) -> pa.Array:
    """Return texts as JSON in ASCII."""
    if pa.types.is_dictionary(texts.type):
        return _quoted(texts.dictionary).take(texts.indices)
    # Most texts need no escapes.
    if not pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        return joined(b'"', texts.cast(BYTES), b'"')
    return pa.array([quoted(text).encode() for text in texts.to_pylist()], BYTES)


def _rejected(typed: pa.RecordBatch, places: Sequence[str], rejections: Sequence[Rejection], schema: Schema) -> Rows:
    contents = values(encode_columns(typed, compared_names(schema)))
    keys = _texts(typed, schema.of_role("key"))
    rows = [
        rejected_row(key or place, *rejection, content=content)
        for place, rejection, key, content in zip(places, rejections, keys, contents, strict=True)
    ]
    return _without_record(rows, schema)


def _without_record(rows: Sequence[RawExample], schema: Schema) -> Rows:
    block = replace(block_of(rows), keys=())  # Like those of other rows of a table.
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
    return _text_array(batch, column).to_pylist()  # type: ignore[no-any-return]


def _text_array(batch: pa.RecordBatch, column: Column | None) -> pa.Array:
    if column is None:
        return pa.repeat(pa.scalar("", pa.large_string()), batch.num_rows)
    texts = pc.cast(batch.column(column.name), pa.large_string())  # "true" and "false" of bool
    return pc.fill_null(texts, "")
