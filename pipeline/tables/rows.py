"""Rows of a table as rows of a snapshot. Each carries its own encoded columns, so nothing is read again to write it."""

from binascii import b2a_base64
from collections.abc import Iterator, Sequence

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipeline.snapshot.part import SPLITS
from pipeline.snapshot.raw_image import RawImage
from pipeline.tables.convert import Converted
from pipeline.tables.encode import encode_columns
from pipeline.tables.schema import Column, Schema
from pipeline.tables.source import RejectedRow

BAD_SPLIT = ("The split is none of train, validation and test", "Write one of them, or leave the field empty")


def encoded_names(schema: Schema) -> list[str]:
    """Return the columns whose values a row carries. The writer of the shards adds the key, and the label of a class.

    They are left out here because rows that are equal apart from key and class are duplicates or contradictions.
    """
    return [column.name for column in schema.columns if not _is_added_later(column, schema)]


def _is_added_later(column: Column, schema: Schema) -> bool:
    return column.role == "key" or (column.role == "label" and schema.task == "classification")


def rows_of_batch(batch: Converted, schema: Schema, prefix: str, first_number: int) -> Iterator[RawImage]:
    """Yield the rows of a batch. A rejected row without a key is named by `prefix` and its number."""
    typed, rejected = batch
    content, ends = encode_columns(typed, encoded_names(schema))
    labels, keys, groups, splits = (_texts(typed, schema.of_role(role)) for role in ("label", "key", "group", "split"))
    is_class, has_key = schema.task == "classification", schema.of_role("key") is not None
    begin = 0
    for number, end in enumerate(ends.tolist()):
        encoded, begin = content[begin:end], end
        label, split = labels[number], (splits[number] or "").lower()
        problem = rejected.get(number) or (() if split in ("", *SPLITS) else BAD_SPLIT)
        if problem:
            yield rejected_row(keys[number] or f"{prefix}{first_number + number}", *problem, content=encoded)
            continue
        # The columns of a row with a key may be equal to those of another one, which is no duplicate: without a
        # checksum, they are not compared, and the key decides the split.
        key = keys[number] if has_key else xxhash.xxh3_128_hexdigest(encoded + b"\0" + str(label).encode())
        yield RawImage(
            key=str(key),
            labels=(str(label),) if is_class else (),
            split=split,
            size=len(encoded),
            crc32c=0 if has_key else google_crc32c.value(encoded),
            group=groups[number] or "",
            boxes=(),
            generation=0,
            content=b2a_base64(encoded, newline=False).decode("ascii"),
        )


def rejected_row(place: str, reason: str, advice: str, content: bytes = b"") -> RawImage:
    """Return a row that does not fit the table. `place` says where it is, or what its key is.

    The place is not its key in the snapshot, so that the same rows in another order have the same version.
    """
    key = f"rejected {xxhash.xxh3_128_hexdigest(content + reason.encode())}"
    return RawImage(key, ("",), "", 0, 0, "", (), 0, rejection=(reason, advice, place))


def rejected_rows(rows: Sequence[RejectedRow]) -> Iterator[RawImage]:
    """Yield rows that could not be parsed."""
    for row in rows:
        yield rejected_row(row.key, row.reason, row.advice)


def _texts(batch: pa.RecordBatch, column: Column | None) -> list[str | None]:
    """Return the values of a column as texts; None where there is no value."""
    if column is None:
        return [None] * batch.num_rows
    texts: list[str | None] = pc.cast(batch.column(column.name), pa.string()).to_pylist()  # "true" and "false" of bool
    return texts
