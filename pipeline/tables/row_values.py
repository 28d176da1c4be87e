"""The values of the rows of a part, as numbers: what the statistics of the training rows are made of.

A file beside each part has two arrays, with one row for each row of the part: the numbers (float32) and the codes
(int32) of the table. A missing number is NaN, and a missing text has the code -1.
"""

import hashlib
import io
import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline import storage
from pipeline.snapshot.part import Part
from pipeline.storage import Place
from pipeline.tables.schema import Column, Schema

if TYPE_CHECKING:
    import pyarrow as pa


class Values(NamedTuple):
    """Values of some rows."""

    numbers: NDArray[np.float32]
    """(rows, number columns): the difference between a value and the lowest one, or the value itself of floats."""
    codes: NDArray[np.int32]
    """(rows, text columns): the position of a text in `Column.values`."""


def number_columns(schema: Schema) -> list[Column]:
    """Return the columns of numbers, in the order of `Values.numbers`: features, and a label that is a number."""
    numbers = ("int", "float", "date", "time")
    return [each for each in schema.prepared if each.type in numbers and not each.is_list]


def text_columns(schema: Schema) -> list[Column]:
    """Return the columns of texts with known values, in the order of `Values.codes`."""
    return [each for each in schema.features if each.type == "string" and each.values and not each.is_list]


def base_of(column: Column) -> int:
    """Return what is subtracted from the values of a column, so that a large integer keeps its digits in float32."""
    low, high = int(column.low or 0), int(column.high or 0)
    # Differences of 64 bits would overflow.
    return 0 if column.type == "float" or high - low >= 2**63 else low


def values_of(batch: "pa.RecordBatch", schema: Schema) -> Values:
    """Return the values of a converted batch."""
    import pyarrow as pa  # Takes 0.1 s, and the plan of images, which reads this module, does not need it.
    import pyarrow.compute as pc

    numbers = np.empty((batch.num_rows, len(number_columns(schema))), np.float32)
    for position, column in enumerate(number_columns(schema)):
        values = batch.column(column.name)
        if base := base_of(column):
            values = pc.subtract(values, pa.scalar(base, pa.int64()))
        # In two steps, because a cast to float32 refuses large integers.
        floats = pc.fill_null(pc.cast(values, pa.float64(), safe=False), np.nan).to_numpy(False)
        # Nobody could scale by an infinite mean.
        numbers[:, position] = np.where(np.isfinite(floats), floats, np.nan)
    codes = np.empty((batch.num_rows, len(text_columns(schema))), np.int32)
    for position, column in enumerate(text_columns(schema)):
        known = pa.array(column.values, pa.large_string())
        codes[:, position] = pc.fill_null(pc.index_in(batch.column(column.name), known), -1).to_numpy(False)
    return Values(numbers, codes)


def no_values(schema: Schema, rows: int) -> Values:
    """Return the values of rows that are rejected."""
    return Values(
        np.full((rows, len(number_columns(schema))), np.nan, np.float32),
        np.full((rows, len(text_columns(schema))), -1, np.int32),
    )


def values_path(part: Part, schema: Schema) -> Place:
    """Return the file of the values of a part. They depend on the schema: another table may have the same rows."""
    facts = [[column.name, base_of(column)] for column in number_columns(schema)]
    facts += [[column.name, *column.values] for column in text_columns(schema)]
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()
    return part.beside(f".{digest}.values")


class ValueWriter:
    """Keeps the values of rows until the part that they belong to is complete, and writes them beside it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._waiting: list[Values] = []

    def add(self, values: Values) -> None:
        """Add the values of the next rows."""
        self._waiting.append(values)

    def write(self, part: Part) -> None:
        """Write the values of the next `part.listed` rows beside the part."""
        numbers, codes = (np.concatenate(arrays) for arrays in zip(*self._waiting, strict=True))
        with storage.write_whole(values_path(part, self._schema), synced=True) as file:
            for array in (numbers, codes):
                buffer = io.BytesIO()
                np.save(buffer, array[: part.listed])
                file.write(buffer.getbuffer())
        self._waiting = [Values(numbers[part.listed :], codes[part.listed :])]


def load_values(part: Part, schema: Schema) -> Values:
    """Return the values of the rows of a part."""
    buffer = io.BytesIO(values_path(part, schema).read_bytes())
    return Values(np.load(buffer), np.load(buffer))
