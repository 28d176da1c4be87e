"""Read a row of a table from its record, without TensorFlow."""

import json
from typing import Any

from pipeline.records import example
from pipeline.tables.schema import Column, Schema

KINDS = {"int": int, "bool": int, "date": int, "time": int, "float": float, "string": bytes}
"""The type of the values of a column in a record."""


def feature_kinds(schema: Schema) -> dict[str, str]:
    """Return the type of each feature by column: "bytes", "int64" or "float", with " list" if there may be several."""
    names = {int: "int64", float: "float", bytes: "bytes"}
    return {column.name: names[KINDS[column.type]] + " list" * column.is_list for column in schema.columns}


def read_row(record: bytes, schema: Schema) -> dict[str, Any]:
    """Return the values of a record by column: a list for each column that has a value.

    Raises:
        ValueError: If the record does not fit the schema.
    """
    features = example.decode(record)
    columns = schema.by_name
    if unknown := sorted(set(features) - set(columns)):
        raise ValueError(f"has the unknown column {unknown[0]!r}")
    for name, values in features.items():
        column = columns[name]
        if not all(isinstance(value, KINDS[column.type]) for value in values):
            raise ValueError(f"does not hold values of type {column.type} in column {name!r}")
        if not column.is_ragged and len(values) != (column.length or 1):
            raise ValueError(f"holds {len(values)} values in column {name!r} instead of {column.length or 1}")
    for column in schema.columns:
        is_required = column.role in ("label", "key") or not (column.missing or column.is_ragged)
        if is_required and column.name not in features:
            raise ValueError(f"lacks column {column.name!r}")
    return features


def text_in(record: bytes, column: Column) -> str:
    """Return the only value of a column of a record as text. Raises ValueError or KeyError if there is none."""
    [value] = example.decode(record)[column.name]
    return text_of(value, column)


def text_of(value: Any, column: Column) -> str:
    """Return a value of a record as the text of a label or a key."""
    if column.type == "bool":
        return json.dumps(bool(value))
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
