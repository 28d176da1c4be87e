"""One file a kind of source. A source is a function that lists, in order, what it holds: `Listed` and `Skipped`."""

from typing import NamedTuple


class Listed(NamedTuple):
    """An image that the source holds: `key` is its path below the source, with slashes; `split` may be empty."""

    key: str
    label: str
    split: str
    size: int


class Skipped(NamedTuple):
    """Something that is no image of a class, and why; it is counted, not rejected."""

    key: str
    reason: str
