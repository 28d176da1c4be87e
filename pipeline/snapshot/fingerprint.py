"""A fingerprint of many rows that depends neither on their order nor on how they are divided into parts.

Each row is hashed separately, and the hashes are added modulo 2^256. So several tasks can list parts of a source in any
order, and the parts are merged without reading a row again. Unlike an exclusive or, a sum changes if a row is listed
twice.

The fingerprint detects mistakes. It does not protect against an attacker who chooses rows so that two sources get the
same fingerprint. Source: Clarke et al.:
Incremental Multiset Hash Functions and Their Application to Memory Integrity Checking, 2003 (MSet-Add-Hash).
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint32]
"""A hash for each row, of shape (rows, words). A hash has at most 256 bits, in little-endian words."""
_MODULUS = 2**256
_WORD = np.dtype("<u4")


def hashes_of(rows: Iterable[bytes]) -> Hashes:
    """Return the hashes of some rows, of 256 bits each."""
    return as_hashes(list(digests(rows, 32)))


def digests(contents: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the BLAKE2b digest of each content, of `size` bytes."""
    empty = hashlib.blake2b(digest_size=size)
    for content in contents:
        # To copy a hash takes half as long as to make it.
        hashed = empty.copy()
        hashed.update(content)
        yield hashed.digest()


def as_hashes(digests: Sequence[bytes]) -> Hashes:
    """Return digests, which have equal sizes, as hashes."""
    words = len(digests[0]) // _WORD.itemsize if digests else 0
    return np.frombuffer(b"".join(digests), _WORD).reshape(len(digests), words)


class Fingerprint:
    """The fingerprint of the rows that were added so far.

    Attributes:
        rows: Number of the rows.
        sum: The sum of their hashes.
    """

    def __init__(self, rows: int = 0, sum: int = 0) -> None:  # noqa: A002 - as in the literature
        self.rows = rows
        self.sum = sum

    def add(self, hashes: Hashes) -> None:
        """Add some rows by their hashes."""
        # Of words of 32 bits, four billion can be added in 64 bits.
        sums = hashes.sum(axis=0, dtype=np.uint64).tolist()
        self.rows += len(hashes)
        self.sum = (self.sum + sum(word << 32 * place for place, word in enumerate(sums))) % _MODULUS

    def merge(self, other: "Fingerprint") -> None:
        """Add all rows of `other`."""
        self.rows += other.rows
        self.sum = (self.sum + other.sum) % _MODULUS

    def hexdigest(self) -> str:
        """Return the fingerprint as 32 hexadecimal digits."""
        content = b"%d,%d" % (self.rows, self.sum)
        return hashlib.blake2b(content, digest_size=16).hexdigest()
