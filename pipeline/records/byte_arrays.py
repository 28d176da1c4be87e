"""Arrays of bytes in Arrow: the values of many rows in one buffer, which are joined and cut all at once."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

BYTES = pa.large_binary()
# Not `pa.scalar`, with which Arrow would import pandas.
EMPTY = pa.Array.from_buffers(BYTES, 1, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")])[0]


def joined(*parts: Any) -> pa.Array:
    """Return the bytes of all parts, joined for each row.

    Args:
        parts: Arrays without missing values, and bytes or scalars that are equal in all rows. At least one is an array.
    """
    scalars = [pa.scalar(part, BYTES) if isinstance(part, bytes) else part for part in parts]
    # The last part is the separator.
    return pc.binary_join_element_wise(*scalars, EMPTY)


def heads_of(lengths: pa.Array, head_of: Callable[[int], bytes]) -> Any:
    """Return a head for each length, from a function that is called once for each; one scalar if all are equal."""
    encoded = lengths.dictionary_encode()
    heads = pa.array([head_of(length) for length in encoded.dictionary.to_pylist()], BYTES)
    if len(heads) == 1 and not lengths.null_count:
        return heads[0]
    return heads.take(encoded.indices)


def offsets(array: pa.Array) -> NDArray[np.int64]:
    """Return the start of each value in the data of an array, and the end of the last one."""
    return np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]


def values(array: pa.Array) -> list[bytes]:
    """Return the values of an array without missing ones, in a tenth of the time of `to_pylist`."""
    if not len(array):
        return []
    bounds, data = offsets(array), memoryview(array.buffers()[2] or b"")
    content = bytes(data[bounds[0] : bounds[-1]])
    return [content[begin:end] for begin, end in pairwise((bounds - bounds[0]).tolist())]
