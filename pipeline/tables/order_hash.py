"""The hash of a row of a table that decides its order: that of its stated split and of all of its values."""

from collections.abc import Iterable

import numpy as np
import xxhash
from numpy.typing import NDArray

from pipeline.records.example import entries_of
from pipeline.records.frames import data_of
from pipeline.snapshot.raw_example import RawExample


def order_hash(split: str, features: bytes) -> int:
    """Return the hash of a row. It is never 0, which stands for none.

    Args:
        split: The split that the source states, or an empty text. Rows whose stated splits differ would otherwise be
            numbered as equal ones, by the order of the source.
        features: The entries of all features in the record.
    """
    return max(xxhash.xxh3_64_intdigest(b"%b\0%b" % (split.encode(), features)), 1)


def order_hashes_of(rows: Iterable[RawExample]) -> NDArray[np.uint64]:
    """Return the hashes of rows of a snapshot, without those of rejected rows, which have no record."""
    accepted = (row for row in rows if row.content)
    return np.fromiter((order_hash(row.split, entries_of(data_of(row.content))) for row in accepted), np.uint64)
