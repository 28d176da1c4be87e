"""Number equal rows of a table through all parts of a snapshot, so that each has its own place in the order.

Equal rows cannot be told apart, so their numbers may follow the order of the source: the dataset is the same.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.plan.contents import ROWS_PER_RANGE, equal_contents, first_numbers, slices_by_part
from pipeline.plan.sort import EARLIER, NO_EARLIER, SplitRule
from pipeline.snapshot.part import Part
from pipeline.system.progress import progress


def copies_in_earlier_parts(
    parts: Sequence[Part], rule: SplitRule, rows_per_range: int = ROWS_PER_RANGE
) -> Iterator[NDArray[np.void]]:
    """Yield, for each part, the rows that are equal to rows of earlier parts, as elements of EARLIER."""
    if len(parts) < 2:
        yield from (NO_EARLIER for _ in parts)
        return
    # Millions of rows may be equal, so they are kept on the disk.
    with tempfile.TemporaryDirectory(prefix="tenfold-") as folder:
        files = [Path(folder, str(number)) for number in range(len(parts))]
        with progress("number copies", sum(part.listed for part in parts), "rows") as advance:
            for rows in equal_contents(parts, rule, rows_per_range, advance):
                for number, found in _earlier(parts, rows):
                    with files[number].open("ab") as file:
                        file.write(found.tobytes())
        for file_of_part in files:
            earlier = np.fromfile(file_of_part, EARLIER) if file_of_part.exists() else NO_EARLIER
            yield earlier[np.argsort(earlier["row"])]


def _earlier(parts: Sequence[Part], rows: NDArray[np.void]) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Yield the number of each part that has rows of earlier parts, and these rows."""
    hashes, firsts = rows["order"], first_numbers(parts)
    part_of = np.searchsorted(firsts, rows["number"], side="right")
    # Equal rows follow each other, in the order of their parts.
    order = np.argsort(hashes, kind="stable")
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = hashes[order[1:]] != hashes[order[:-1]]
    is_first_of_part = is_first.copy()
    is_first_of_part[1:] |= part_of[order[1:]] != part_of[order[:-1]]
    copies = np.empty(len(rows), np.intp)
    copies[order] = _last_true(is_first_of_part) - _last_true(is_first)
    for number, some in slices_by_part(parts, rows):
        moved = np.flatnonzero(copies[some])
        if len(moved):
            earlier = np.empty(len(moved), EARLIER)
            earlier["row"] = rows["number"][some][moved] - firsts[number]
            earlier["copies"] = copies[some][moved]
            yield number, earlier


def _last_true(values: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the position of the last true value up to each position. The first value is true."""
    return np.maximum.accumulate(np.where(values, np.arange(len(values)), 0))
