"""Ranges of keys, which divide a source into parts that several tasks list.

Keys are ordered by their bytes, as in every list of images. The ranges of a source follow each other without a gap, so
that each file belongs to one of them.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from pipeline.system.environment import whole_number

MIN_IMAGES = 200_000
"""A range has at least about this many images. Smaller ranges would take less time than their tasks take to start."""
MIN_IMAGES_OF_PROCESS = 10_000
"""The same for ranges that processes of one machine list, which start in half a second."""
RANGE_MEGABYTES = 32
"""A task reads about this many megabytes of a table or of containers, which take seconds."""
_KEYS_PER_RANGE = 16
"""An ordered sample has at least this many keys for each range, so that a range is larger by a 16th at most."""


class KeyRange(NamedTuple):
    """The keys from `first` up to `end`, which is not included. If `end` is empty, the range has no end."""

    first: str = ""
    end: str = ""

    def contains(self, key: str) -> bool:
        """Return whether a key is in the range."""
        position = bytes_of(key)
        return bytes_of(self.first) <= position and (not self.end or position < bytes_of(self.end))

    def intersects(self, prefix: str) -> bool:
        """Return whether a key that begins with `prefix` can be in the range."""
        position = bytes_of(prefix)
        # If `first` comes after the prefix and does not begin with it, `first` comes after all keys of the prefix.
        starts = bytes_of(self.first) <= position or self.first.startswith(prefix)
        return starts and (not self.end or position < bytes_of(self.end))

    def overlaps(self, first: str, last: str) -> bool:
        """Return whether a key from `first` to `last`, which are both included, can be in the range."""
        return bytes_of(self.first) <= bytes_of(last) and (not self.end or bytes_of(first) < bytes_of(self.end))

    def below(self, prefix: str) -> "KeyRange | None":
        """Return the range for the rest of the keys that begin with `prefix`; None if none of them can be in it."""
        if not self.intersects(prefix):
            return None
        first, end = (key[len(prefix) :] if key.startswith(prefix) else "" for key in self)
        return KeyRange(first, end)


EVERYTHING = KeyRange()


def range_bytes() -> int:
    """Return about how many bytes a task reads, by TENFOLD_RANGE_MEGABYTES. Raises SettingsError."""
    return whole_number("TENFOLD_RANGE_MEGABYTES", RANGE_MEGABYTES) * 1_000_000


class OrderedSample:
    """A sample of keys that arrive in their order: each n-th key, with an n that doubles when the sample is full."""

    def __init__(self, most: int) -> None:
        self._step = 1
        self._max_keys = 2 * most * _KEYS_PER_RANGE
        self._keys: list[str] = []
        self.count = 0

    def add(self, keys: Sequence[str], prefix: str = "") -> None:
        """Add the next keys. All of them begin with `prefix`, which is left out."""
        self._keys += [prefix + key for key in keys[-self.count % self._step :: self._step]]
        self.count += len(keys)
        while len(self._keys) > self._max_keys:
            self._keys = self._keys[::2]
            self._step *= 2

    def boundaries(self, most: int, min_images: int) -> list[str]:
        """Return the keys that divide all keys into at most `most` ranges of about equal size."""
        return _quantiles(self._keys, min(most, self.count // max(1, min_images)))


def ranges_between(boundaries: Sequence[str]) -> list[KeyRange]:
    """Return the ranges that ascending keys divide everything into."""
    return [KeyRange(first, end) for first, end in pairwise(("", *boundaries, ""))]


def bytes_of(key: str) -> bytes:
    """Return the bytes of a key, which decide its position: those of the file system or bucket, maybe no UTF-8."""
    return key.encode("utf-8", "surrogateescape")


def in_order(keys: Collection[str]) -> list[str]:
    """Return keys in the order of their bytes."""
    # For ASCII texts, this is their own order, which takes a third of the time.
    return sorted(keys, key=None if "".join(keys).isascii() else bytes_of)


def text_of_key(key: bytes) -> str:
    """Return the key of these bytes."""
    return key.decode("utf-8", "surrogateescape")


def _quantiles(keys: Sequence[str], parts: int) -> list[str]:
    """Return the keys that divide ascending keys into `parts` parts of equal size, or fewer if there are few keys."""
    starts = [len(keys) * part // parts for part in range(1, parts)]
    return [keys[start] for start in dict.fromkeys(starts) if start]
