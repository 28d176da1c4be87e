"""Columns of a table -> the entries of tf.train.Example records, many rows at once, without TensorFlow.

Arrow joins the cells of all columns row by row. A cell has two parts: the head, which depends only on the column and on
the length of the content, and the content, which Arrow mostly holds in the form of the record already.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.records import example
from pipeline.records.byte_arrays import BYTES, EMPTY, heads_of, joined, offsets

MAX_CELLS = 1 << 19
"""At most this many cells are encoded at once, which bounds the memory beside the result."""
MAX_INTEGERS = 1 << 16
"""At most this many integers are encoded at once. Each takes up to 40 bytes of memory for that time."""
CACHED_HEADS = 1 << 14
"""At most this many heads of entries are cached. Cells of a column that have equal lengths share one."""

_KINDS = {pa.float32(): "float", pa.int64(): "int64", pa.bool_(): "int64", pa.large_string(): "bytes"}


def encode_columns(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """Return the entries of the columns `names` for each row, ordered by name, as large binaries.

    A missing value has no entry. The entries are those of `example.encode_entries`. An empty list keeps its type.
    Columns have the type int64, float32, bool or large_string, or a large_list of int64, float32 or large_string.

    Raises:
        TypeError: If a column has another type.
        ValueError: If a list contains a missing value.
    """
    if not names:
        return pa.repeat(EMPTY, batch.num_rows)
    # UTF-8 keeps the order of code points, which is that of Python's strings.
    columns = [(name, batch.column(name)) for name in sorted(names)]
    rows = max(1, MAX_CELLS // len(columns))
    arrays: list[pa.Array] = []
    for start in range(0, batch.num_rows, rows):
        parts = _parts([(name, column.slice(start, rows)) for name, column in columns])
        # Arrow 26 leaves out a row whose parts are all null. The first empty value prevents that. The last one is the
        # separator.
        arrays.append(pc.binary_join_element_wise(EMPTY, *parts, EMPTY, null_handling="skip"))
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays([pa.array([], BYTES), *arrays])


def _parts(columns: Iterable[tuple[str, pa.Array]]) -> Iterator[Any]:
    """Yield what to join for each row: arrays of bytes, and scalars that are equal in all rows."""
    runs = groupby(columns, key=lambda named: (pa.types.is_float32(named[1].type), named[1].null_count > 0))
    for (is_float, has_missing), run in runs:
        if not is_float:
            for name, column in run:
                yield from _cells(name, column)
        elif has_missing:
            yield from (_floats([named]) for named in run)
        else:
            yield _floats(list(run))


def _floats(columns: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """Return the entries of columns of floats as one array. A column with missing values must be alone.

    Only the numbers differ between the rows, so they are written into copies of one row.
    """
    heads = [_head(name, "float", False, 4) for name, _ in columns]
    template = bytes(4).join([*heads, b""])
    rows = len(columns[0][1])
    content = bytearray(template) * rows
    place = 0
    for head, (_, column) in zip(heads, columns, strict=True):
        place += len(head)
        np.ndarray(rows, "<f4", content, place, strides=(len(template),))[:] = column.to_numpy(zero_copy_only=False)
        place += 4
    return _binary(content, np.arange(rows + 1) * len(template), columns[0][1])


def _cells(name: str, column: pa.Array) -> tuple[Any, pa.Array]:
    """Return the heads and the contents of the entries of a column.

    Both are null for a missing value. A head that is equal for all rows is a scalar.
    """
    is_list = pa.types.is_large_list(column.type)
    kind = _KINDS.get(column.type.value_type if is_list else column.type)
    if kind is None:
        raise TypeError(f"column {name!r} has the type {column.type}: cast it to int64, float32, bool or large_string")
    contents = _list_contents(name, column) if is_list else _contents(column)
    return heads_of(pc.binary_length(contents), partial(_head, name, kind, is_list)), contents


@lru_cache(CACHED_HEADS)
def _head(name: str, kind: str, is_list: bool, length: int) -> bytes:
    """Return the head of an entry whose content has `length` bytes."""
    # The texts of a list have heads of their own, and an empty list has no packed numbers.
    if is_list and (kind == "bytes" or not length):
        return example.list_entry_head(name, kind, length)
    return example.value_entry_head(name, kind, length)


def _contents(values: pa.Array) -> pa.Array:
    """Return the bytes of each value, without its length. A missing value stays null."""
    if pa.types.is_large_string(values.type):
        return values.cast(BYTES)
    if pa.types.is_float32(values.type):
        # Arrow and records both store little-endian floats.
        return values.view(pa.binary(4)).cast(BYTES)
    integers = values.cast(pa.int64())
    numbers = (integers.fill_null(0) if integers.null_count else integers).to_numpy().view(np.uint64)
    parts = [_varints(numbers[start : start + MAX_INTEGERS]) for start in range(0, len(numbers) or 1, MAX_INTEGERS)]
    offsets = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(np.concatenate([lengths for _, lengths in parts]), dtype=np.int64, out=offsets[1:])
    return _binary(np.concatenate([data for data, _ in parts]), offsets, integers)


def _varints(numbers: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the varints of the numbers, joined, and the length of each. See `example` for their format."""
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    matrix = np.empty((len(numbers), width), np.uint8)
    lengths = np.ones(len(numbers), np.uint8)
    for place in range(width):
        rest = numbers >> np.uint64(7 * place)
        goes_on = rest > 0x7F
        # The conversion keeps the lowest eight bits.
        matrix[:, place] = rest.astype(np.uint8) & 0x7F | goes_on.view(np.uint8) << 7
        lengths += goes_on
    return matrix[np.arange(width, dtype=np.uint8) < lengths[:, None]], lengths


def _list_contents(name: str, lists: pa.Array) -> pa.Array:
    """Return the bytes of the values of each list. Texts have their lengths before them."""
    values = lists.flatten()
    if values.null_count:
        raise ValueError(f"a list of column {name!r} contains a missing value: remove or fill it before the encoding")
    items = _contents(values)
    if pa.types.is_large_string(values.type):
        items = joined(heads_of(pc.binary_length(items), example.value_head), items)
    counts = pc.list_value_length(lists).fill_null(0)
    firsts = np.concatenate(([0], np.cumsum(counts)))
    return _binary(items.buffers()[2], offsets(items)[firsts], lists)


def _binary(data: Any, offsets: NDArray[np.int64], column: pa.Array) -> pa.Array:
    """Return an array of bytes from its buffers, with the missing values of `column`."""
    valid = np.packbits(column.is_valid(), bitorder="little") if column.null_count else None
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(BYTES, len(column), buffers)
