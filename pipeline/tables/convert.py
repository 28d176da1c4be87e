"""Convert batches of rows to the types of a schema. Each row is converted independently of the other rows."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute

from pipeline.errors import SourceError
from pipeline.system.wording import shortened
from pipeline.tables.schema import Column, ColumnType, Schema, TextRules
from pipeline.tables.values import (
    RECORD_TYPES,
    Fitted,
    ValueType,
    fit,
    is_list,
    label_values,
    value_type_of,
    without,
    without_empty_text,
)

MAX_TEXT_BYTES = 1 << 20
"""A text has at most this many bytes."""
MAX_ELEMENTS = 1 << 20
"""A list has at most this many elements."""
_MAX_SHOWN = 80
"""A reason shows at most this many characters of a value."""
_REQUIRED = ("label", "key")
"""The roles of columns in which a value must not be missing."""
_NOUNS: Mapping[ColumnType, str] = {
    "int": "a whole number of 64 bits",
    "float": "a number of 32 bits",
    "bool": "true or false",
    "string": "text in UTF-8",
    "date": "a date (YYYY-MM-DD)",
    "time": "a time (ISO 8601)",
}

Rejection = tuple[str, str]
"""A reason and an advice."""


class Converted(NamedTuple):
    """The rows of a batch in the types of the schema."""

    batch: pa.RecordBatch
    """All rows, also the rejected ones. A value that was rejected is null."""
    rejected: dict[int, Rejection]
    """Reason and advice, by the number of the row within the batch."""


def record_schema(schema: Schema) -> pa.Schema:
    """Return the schema of Arrow that all converted batches have.

    Integers, dates (days since 1970) and times (microseconds since 1970, UTC) are int64, floats are float32, text is
    large_string, and lists are large_list.
    """
    return pa.schema([(column.name, _record_type(column)) for column in schema.columns])


def converted(batch: pa.RecordBatch, schema: Schema) -> Converted:
    """Convert the columns of a batch to the types and the order of a schema. Other columns are dropped.

    Text is parsed if the schema has another type. A row is rejected if it has no label or key, if its label is
    infinite, if a value does not fit the type of its column, or if a value is too long.

    Raises:
        SourceError: The batch lacks a column, or a column has a type that holds no value of the schema's type.
    """
    rejected: dict[int, Rejection] = {}
    arrays = []
    # With thousands of columns, a search for each name would take most of the time.
    positions = {name: position for position, name in enumerate(batch.schema.names)}
    for column in schema.columns:
        position = positions.get(column.name)
        if position is None:
            raise SourceError(
                f"the table has no column {column.name!r}, which is in its schema: add the column, or build the "
                "dataset again"
            )
        array, reasons = _convert(batch.column(position), column, schema.texts)
        if column.is_list and 0 < schema.rows == column.missing:
            # In a window, other dates may have lists of another type. A record without the feature fits them all.
            array = without(array, compute.equal(compute.list_value_length(array), 0))
        # The first reason of a row is the one to report.
        if reasons:
            rejected = reasons | rejected
        arrays.append(array)
    return Converted(pa.RecordBatch.from_arrays(arrays, schema=record_schema(schema)), dict(sorted(rejected.items())))


def _record_type(column: Column) -> pa.DataType:
    kind = RECORD_TYPES[column.type]
    return pa.large_list(kind) if column.is_list else kind


def _convert(array: pa.Array, column: Column, rules: TextRules) -> tuple[pa.Array, dict[int, Rejection]]:
    """Return a column of records, and the rejected rows."""
    if column.role != "feature":
        array = without_empty_text(array, rules)
    if column.role == "label":
        array, _ = label_values(array, rules)
    kind = value_type_of(array.type)
    is_valid_kind = kind is not None and (kind.is_list == column.is_list or kind == ValueType(None))
    fitted: Fitted | None = None
    if is_valid_kind:
        fitted = (_fit_lists if column.is_list else fit)(array, column.type, rules, column.format)
    if fitted is None:
        wanted = f"lists of {column.type}" if column.is_list else column.type
        raise SourceError(
            f"the column {column.name!r} holds {array.type}, but its schema says {wanted}: write the column with this "
            "type, or build the dataset again"
        )
    values, reasons = fitted.values, {}
    if fitted.misfits is not None:
        reasons = {row: _misfit(array[row], column) for row in _rows(fitted.misfits)}
    too_long = _too_long(values, column)
    if too_long is not None:
        reasons |= {row: _length(array[row], column) for row in _rows(too_long)}
        values = without(values, too_long)
    if column.length is not None:
        values, others = _vectors(values, column.length)
        reasons |= {row: _other_length(array[row], column) for row in others}
    if column.role in _REQUIRED:
        missing = f"the {column.role} is missing (column {column.name!r})"
        for row in _rows(compute.is_null(values)):
            reasons.setdefault(row, (missing, f"fill in the {column.role}, or remove the row"))
    if column.role == "label" and column.type == "float":
        is_infinite = compute.is_inf(values)
        label = f"the label is infinite (column {column.name!r})"
        reasons |= dict.fromkeys(_rows(is_infinite), (label, "correct the label, or remove the row"))
        values = without(values, is_infinite)
    return values, reasons


def _fit_lists(array: pa.Array, kind: ColumnType, rules: TextRules, form: str) -> Fitted | None:
    """Return lists of values of a type. A list with a missing element does not fit, because a record has no gaps."""
    if not is_list(array.type):
        return Fitted(pa.nulls(len(array), pa.large_list(RECORD_TYPES[kind])), None)
    # The elements of missing lists, and those before and after a slice, are not among the flattened ones.
    lengths = compute.fill_null(compute.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    fitted = fit(array.flatten(), kind, rules, form)
    if fitted is None:
        return None
    values, is_null, misfits = fitted.values, compute.is_null(array).to_numpy(zero_copy_only=False), None
    if values.null_count:
        rows = np.repeat(np.arange(len(array)), lengths)
        is_misfit = np.zeros(len(array), bool)
        is_misfit[rows[compute.is_null(values).to_numpy(zero_copy_only=False)]] = True
        values = values.filter(pa.array(~is_misfit[rows]))
        lengths = np.where(is_misfit, 0, lengths)
        is_null = is_null | is_misfit
        misfits = pa.array(is_misfit)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    return Fitted(pa.LargeListArray.from_arrays(offsets, values, mask=pa.array(is_null)), misfits)


def _vectors(lists: pa.Array, length: int) -> tuple[pa.Array, list[int]]:
    """Return lists of one length, and the rows of lists of another one. These and empty lists become null."""
    lengths = compute.list_value_length(lists)
    is_other = compute.not_equal(lengths, length)
    if not compute.any(is_other, min_count=0).as_py():
        return lists, []
    return without(lists, is_other), _rows(compute.and_(is_other, compute.greater(lengths, 0)))


def _too_long(values: pa.Array, column: Column) -> pa.Array | None:
    """Return which texts or lists are too long; None if none is."""
    if column.is_list:
        lengths, limit = compute.list_value_length(values), MAX_ELEMENTS
    elif column.type == "string":
        lengths, limit = compute.binary_length(values), MAX_TEXT_BYTES
    else:
        return None
    longest = compute.max(lengths).as_py()
    return compute.greater(lengths, limit) if longest and longest > limit else None


def _misfit(value: pa.Scalar, column: Column) -> Rejection:
    noun = f"in the format {column.format!r}" if column.format else _NOUNS[column.type]
    reason = f"column {column.name!r} holds {_shown(value)}, which is not {noun}"
    if column.is_list:
        reason = f"a list in column {column.name!r} has a missing element, or one that is not {noun}"
    return reason, "correct the value, or remove the row"


def _length(value: pa.Scalar, column: Column) -> Rejection:
    if column.is_list:
        reason = f"the list in column {column.name!r} has {len(value):,} elements, more than {MAX_ELEMENTS:,}"
        return reason, "shorten the list, or remove the row"
    size = len(value.as_py())
    reason = f"the text in column {column.name!r} has {size:,} characters, more than {MAX_TEXT_BYTES:,} bytes"
    return reason, "shorten the text, or remove the row"


def _other_length(value: pa.Scalar, column: Column) -> Rejection:
    reason = f"the list in column {column.name!r} has {len(value):,} elements instead of {column.length:,}"
    return reason, f"write a list of {column.length:,} elements, or remove the row"


def _shown(value: pa.Scalar) -> str:
    try:
        text = repr(value.as_py())
    except (ValueError, OverflowError):  # Python has no dates after the year 9999.
        text = str(value.value)
    return shortened(text, _MAX_SHOWN)


def _rows(mask: pa.Array) -> list[int]:
    """Return the numbers of the rows that are true."""
    rows: list[int] = np.flatnonzero(compute.fill_null(mask, False).to_numpy(zero_copy_only=False)).tolist()
    return rows
