"""The hash of a row of a table that decides its order: that of its line in a snapshot."""

from collections.abc import Iterable

import numpy as np
import xxhash
from numpy.typing import NDArray

from pipeline.snapshot.fingerprint import Hashes, as_hashes


def line_hashes(lines: Iterable[bytes]) -> Hashes:
    """Return the hashes of whole lines, which identify the rows."""
    return as_hashes(list(map(xxhash.xxh3_128_digest, lines)))


def order_hashes(hashes: Hashes) -> NDArray[np.uint64]:
    """Return the hashes that decide the order, from those of the lines. They are never 0, which stands for none.

    The hash of the key alone would put all rows of one key behind each other. Rows whose stated splits differ would be
    numbered as equal ones, by the order of the source. A line has both the split and all values.
    """
    result: NDArray[np.uint64] = np.maximum(hashes.view("<u8")[:, 0], np.uint64(1))
    return result
