"""Find examples with equal contents among all parts of a snapshot.

The contents of a sorted part are hashes: see `pipeline/plan/sort.py`. Equal examples have equal hashes, so they are in
the same range of hashes in all parts. One range after another is searched. Memory does not grow with the number of
examples.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.plan.sort import SplitRule, read_contents, sorted_contents
from pipeline.snapshot.part import Part
from pipeline.system.parallel import ordered_map

ROWS_PER_RANGE = 3_000_000
"""A range of contents has about this many rows. Their hashes take 24 MB, and 0.4 GB if all of them are equal rows."""
MAX_RANGES = 500
"""Each range may have a temporary file, and a process may open about 1,000 files."""
READERS = 8
"""This many threads read the contents of parts."""
NUMBERED = np.dtype(
    [("content", "<u8"), ("order", "<u8"), ("number", "<i8"), ("size", "<u4"), ("label", "<i4"), ("kind", "i1")]
)
"""An element of CONTENTS, with the number of the row in the snapshot."""


def first_numbers(parts: Sequence[Part]) -> NDArray[np.intp]:
    """Return the number of the first row of each part in the snapshot."""
    return np.cumsum([0, *(part.listed for part in parts[:-1])])


def equal_contents(
    parts: Sequence[Part],
    rule: SplitRule,
    rows_per_range: int = ROWS_PER_RANGE,
    advance: Callable[[int], object] = lambda _: None,
) -> Iterator[NDArray[np.void]]:
    """Yield the rows whose content another row has, too, one range of contents after another.

    The elements have the type NUMBERED, and are ordered by their numbers. `advance` gets the number of rows of each
    range that was compared.
    """
    counts = list(ordered_map(partial(sorted_contents, rule=rule), parts, READERS))
    ranges = min(max(1, -(-sum(counts) // rows_per_range)), MAX_RANGES)
    # The contents are hashes, so ranges of equal width have about equally many rows.
    begins = np.array([number * 2**64 // ranges for number in range(1, ranges)], np.uint64)
    counted = zip(parts, counts, strict=True)
    bounds = list(ordered_map(lambda item: _bounds(*item, rule, begins), counted, READERS, under_way=READERS))
    for number in range(ranges):
        of_range = [(ends[number], ends[number + 1]) for ends in bounds]
        repeated = _repeated(parts, rule, of_range)
        if len(repeated):
            yield _rows_with(repeated, parts, rule, of_range)
        advance(sum(end - begin for begin, end in of_range))


def slices_by_part(parts: Sequence[Part], rows: NDArray[np.void]) -> Iterator[tuple[int, slice]]:
    """Yield the number of each part that has some rows of `equal_contents`, and where these are in `rows`."""
    firsts = first_numbers(parts)
    bounds = np.searchsorted(rows["number"], [*firsts, firsts[-1] + parts[-1].listed]).tolist()
    yield from ((number, slice(*both)) for number, both in enumerate(pairwise(bounds)) if both[0] < both[1])


def _bounds(part: Part, count: int, rule: SplitRule, begins: NDArray[np.uint64]) -> list[int]:
    """Return the position in the contents of a part at which each range begins, and the end of the last range."""
    if not len(begins):
        return [0, count]
    contents = read_contents(part, rule, 0, count)["content"].copy()
    return [0, *np.searchsorted(contents, begins).tolist(), count]


def _between(parts: Sequence[Part], rule: SplitRule, bounds: Sequence[tuple[int, int]]) -> Iterator[NDArray[np.void]]:
    """Yield the contents between two bounds in each part."""
    return ordered_map(
        lambda item: read_contents(item[0], rule, item[1][0], item[1][1] - item[1][0]),
        zip(parts, bounds, strict=True),
        READERS,
        under_way=READERS,
    )


def _repeated(parts: Sequence[Part], rule: SplitRule, bounds: Sequence[tuple[int, int]]) -> NDArray[np.uint64]:
    """Return the hashes that several rows between the bounds have, in ascending order.

    Most rows have one of their own, so that only the hashes of all rows are held at once.
    """
    hashes, filled = np.empty(sum(end - begin for begin, end in bounds), np.uint64), 0
    for contents in _between(parts, rule, bounds):
        hashes[filled : filled + len(contents)] = contents["content"]
        filled += len(contents)
    hashes.sort()
    repeated: NDArray[np.uint64] = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    return repeated


def _rows_with(
    hashes: NDArray[np.uint64], parts: Sequence[Part], rule: SplitRule, bounds: Sequence[tuple[int, int]]
) -> NDArray[np.void]:
    """Return the rows between the bounds that have one of some ascending hashes, ordered by their numbers."""
    found = []
    for first, contents in zip(first_numbers(parts), _between(parts, rule, bounds), strict=True):
        positions = np.searchsorted(hashes, contents["content"])
        some = contents[hashes[np.minimum(positions, len(hashes) - 1)] == contents["content"]]
        rows = np.empty(len(some), NUMBERED)
        for name in ("content", "order", "size", "label", "kind"):
            rows[name] = some[name]
        rows["number"] = some["row"] + first
        found.append(rows[np.argsort(rows["number"])])
    return np.concatenate(found)
