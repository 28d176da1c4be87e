"""The index of a file of records, in the format of `tfrecord2idx` of NVIDIA DALI, which other readers use, too.

Line N has the offset and the size of record N in bytes: "0 1380", then "1380 1402". Both count whole records, with
their length and checksums. Source: tools/tfrecord2idx of NVIDIA/DALI.
"""

from array import array
from collections.abc import Iterable
from itertools import accumulate, chain, islice

_LINES_AT_ONCE = 10_000
"""This many lines of an index are strings of Python at the same time."""


def index_of(sizes: Iterable[int]) -> bytes:
    """Return the index of a file whose records have these sizes in bytes, with their frames."""
    sizes = array("Q", sizes)
    lines = (f"{offset} {size}\n" for offset, size in zip(offsets_of(sizes), sizes, strict=False))
    # A million lines at once would take 80 MB as strings of Python.
    return b"".join(iter(lambda: "".join(islice(lines, _LINES_AT_ONCE)).encode(), b""))


def sizes_of(index: bytes) -> "array[int] | None":
    """Return the size of each record that an index lists; None if the index is damaged.

    Damage is detected because each record must begin at the end of the record before.
    """
    try:
        sizes = array("Q", (int(line.partition(b" ")[2]) for line in index.splitlines()))
        return sizes if index_of(sizes) == index else None
    except (ValueError, OverflowError):
        return None


def offsets_of(sizes: Iterable[int]) -> "array[int]":
    """Return the offset of each record in bytes, and then the end of the last record."""
    return array("Q", accumulate(chain((0,), sizes)))
