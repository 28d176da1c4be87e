"""Find groups that are on both sides of a split that the source states.

Tenfold's own split keeps a group on one side. A split that the source states may put examples of one group into
training and into test. The rows of one key of a table without groups are a group, too. Like equal examples on both
sides, they are leaks: a model can recognize the patient, not the disease.

The hashes of the groups are compared, one range of them after another. Memory does not grow with the number of
examples.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.gate.duplicates import MAX_NAMES
from pipeline.plan.contents import ROWS_PER_RANGE
from pipeline.plan.order import Order
from pipeline.snapshot.part import TRAIN
from pipeline.system.progress import progress

_GROUPED = np.dtype([("number", "<i8"), ("group", "<u8"), ("content", "<u8")])
"""The number of an example in the snapshot, and its hashes in COLUMNS."""
_PASSES = 3
"""The parts are read this many times for each range of groups."""

_Advance = Callable[[int], object]


def with_leaks_by_group(leaks: Mapping[str, Any], order: Order, rows_per_range: int = ROWS_PER_RANGE) -> dict[str, Any]:
    """Return the fact `leaks` of equal examples with those leaks that only the group of an example shows.

    A window has the same fact: see `shared_examples.py`. An example that is equal to one in training is counted once.
    """
    held_back = sum(count for split, count in order.examples.items() if split != TRAIN)
    ranges = max(1, -(-held_back // rows_per_range))
    bounds = [number * 2**64 // ranges for number in range(ranges + 1)]
    count = 0
    pairs: list[tuple[int, int]] = []
    with progress("compare groups", ranges * _PASSES * len(order.parts), "parts") as advance:
        for begin, end in pairwise(bounds):
            found, some = _leaks_by_group(order, np.uint64(begin), np.uint64(end - 1), advance)
            count += found
            pairs += some
    pairs = sorted(pairs, key=lambda pair: pair[1])[: MAX_NAMES - len(leaks["names"])]
    names = [[order.placed(number).example.key for number in pair] for pair in pairs]
    return {
        **leaks,
        "images": leaks["images"] + count,
        "only_by_group": count,
        "names": [*leaks["names"], *names],
    }


def _leaks_by_group(
    order: Order, first: np.uint64, last: np.uint64, advance: _Advance
) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of leaks by groups whose hashes are in a range, and a pair for each of the first groups.

    A pair has two numbers: that of a training example, and that of an example in validation or test.
    """
    held_back = np.concatenate(
        [
            each[(first <= each["group"]) & (each["group"] <= last)]
            for each in _examples(order, advance, in_training=False)
        ]
    )
    if not len(held_back):
        return 0, []
    groups = np.unique(held_back["group"])
    in_training = _first_in_training(groups, order, advance)
    leaked = held_back[in_training[np.searchsorted(groups, held_back["group"])] >= 0]
    # The gate has counted these as equal to a training example.
    contents = np.unique(leaked["content"])
    is_equal = np.zeros(len(contents), np.bool_)
    for training in _examples(order, advance, in_training=True):
        is_equal |= np.isin(contents, training["content"])
    leaked = leaked[~is_equal[np.searchsorted(contents, leaked["content"])]]
    leaked_groups, firsts = np.unique(leaked["group"], return_index=True)
    training_numbers = in_training[np.searchsorted(groups, leaked_groups)].tolist()
    pairs = zip(training_numbers, leaked["number"][firsts].tolist(), strict=True)
    return len(leaked), sorted(pairs, key=lambda pair: pair[1])[:MAX_NAMES]


def _first_in_training(groups: NDArray[np.uint64], order: Order, advance: _Advance) -> NDArray[np.int64]:
    """Return the number of the first training example of each group; -1 if there is none. The groups ascend."""
    firsts = np.full(len(groups), -1, np.int64)
    for training in _examples(order, advance, in_training=True):
        positions = np.minimum(np.searchsorted(groups, training["group"]), len(groups) - 1)
        is_member = groups[positions] == training["group"]
        found, indexes = np.unique(positions[is_member], return_index=True)
        is_new = firsts[found] < 0
        firsts[found[is_new]] = training["number"][is_member][indexes[is_new]]
    return firsts


def _examples(order: Order, advance: _Advance, *, in_training: bool) -> Iterator[NDArray[np.void]]:
    """Yield the examples of one side of the split, for each part, as elements of _GROUPED. Rejected ones are left out.

    The group of an example without one is its content, so that only equal examples share it.
    """
    for number, part in enumerate(order.parts):
        columns = part.columns()
        is_usable = (columns["content"] != 0) & (columns["size"] > 0)
        rows = np.flatnonzero(is_usable & (order.is_training(number) == in_training))
        examples = np.empty(len(rows), _GROUPED)
        examples["number"] = rows + order.first_numbers[number]
        examples["group"], examples["content"] = columns["group"][rows], columns["content"][rows]
        yield examples
        advance(1)
