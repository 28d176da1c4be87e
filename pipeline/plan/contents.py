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
"""A range of contents has about this many rows. Comparing them needs up to 0.4 GB, if all of them are equal rows."""
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
        compared = _rows_between(parts, rule, [(ends[number], ends[number + 1]) for ends in bounds])
        rows = _equal(compared)
        advance(len(compared))
        if len(rows):
            yield rows


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


def _rows_between(parts: Sequence[Part], rule: SplitRule, bounds: Sequence[tuple[int, int]]) -> NDArray[np.void]:
    """Return the contents between two bounds in each part."""
    rows, filled = np.empty(sum(end - begin for begin, end in bounds), NUMBERED), 0
    read = ordered_map(
        lambda item: read_contents(item[0], rule, item[1][0], item[1][1] - item[1][0]),
        zip(parts, bounds, strict=True),
        READERS,
    )
    for first, contents in zip(first_numbers(parts), read, strict=True):
        target = rows[filled : filled + len(contents)]
        for name in ("content", "order", "size", "label", "kind"):
            target[name] = contents[name]
        target["number"] = contents["row"] + first
        filled += len(contents)
    return rows


def _equal(rows: NDArray[np.void]) -> NDArray[np.void]:
    order = np.argsort(rows["content"], kind="stable")
    contents = rows["content"][order]
    is_equal = np.zeros(len(rows), np.bool_)
    is_equal[1:] = contents[1:] == contents[:-1]
    is_equal[:-1] |= is_equal[1:]
    found = rows[order[is_equal]]
    return found[np.argsort(found["number"])]
