"""Confirm that images are equal, find images that look alike, and say which of them are on both sides of the split.

Size and CRC32C are known from the snapshot. Only the few images that agree in both (see `equal_examples.py`) are read
again, for a hash of 128 bits. Images that look alike are found by the Hamming distance of a perceptual hash. A group is
an ascending array of indexes. Groups are ordered by their first index.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.snapshot.part import TRAIN
from pipeline.system.parallel import ordered_map

Group = NDArray[np.intp]

NEAR_DISTANCE = 4
"""Images look alike if at most this many bits of their perceptual hashes differ: see `near_groups`."""
MAX_DISTANCE = 10
"""From this distance on, different pictures look alike."""
MAX_NAMES = 20
"""The facts name at most this many examples."""
READERS = 8
"""This many threads read images that may be equal."""
_LARGE_RUN = 2048
"""Images that agree in two bands are compared pairwise. If there are more than this, they are first divided again.

More than 2**11 different hashes differ in at least 12 bits, so that none of the MAX_DISTANCE + 2 bands is empty. With
two empty bands, a run would not be divided, and the recursion would not end.
"""


def candidates(contents: NDArray[np.uint64]) -> list[Group]:
    """Return groups of images with equal `contents`. The groups are found with one sort: 10 million take seconds."""
    order = np.argsort(contents, kind="stable")
    ordered = contents[order]
    return _groups(order, ordered[1:] == ordered[:-1])


def confirm(groups: Iterable[Group], read: Callable[[int], bytes], size_of: Callable[[int], int]) -> list[Group]:
    """Divide groups by content: images stay together if `read` returns bytes with the same xxHash (XXH3, 128 bits).

    `size_of` returns the number of these bytes. Several threads call `read`. An error that it raises ends the search.
    """
    import xxhash

    listed = list(groups)
    members = (int(index) for group in listed for index in group)
    hashes = ordered_map(lambda index: xxhash.xxh3_128_digest(read(index)), members, READERS, size_of=size_of)
    parts = [part for group in listed for part in _split(group, hashes)]
    return sorted(parts, key=lambda part: int(part[0]))


def near_groups(hashes: NDArray[np.uint64], distance: int = NEAR_DISTANCE) -> list[Group]:
    """Return groups of images whose perceptual hashes are linked by steps of at most `distance` bits.

    If the bits are divided into `distance + 2` bands, two such hashes agree in at least two bands. Only hashes that do
    are compared. A million hashes take seconds.

    The default was measured with `imagehash.phash` on 600 photographs of flowers: 4 finds every copy that was halved,
    shrunk to 128 pixels or to a square, or saved with JPEG quality 50 or 20 (3,000 of 3,000), and 96% of those made a
    fifth brighter. The five pairs that it finds among the photographs are the same picture each. The first pair of
    different pictures is at 10, and two shots of one scene at 8. A copy that lost a twentieth at each side is
    usually missed.

    Raises ValueError for a distance that is not within 0 to 10: at 10 different pictures begin to look alike.
    """
    if not 0 <= distance <= MAX_DISTANCE:
        raise ValueError(f"distance must be within 0 to {MAX_DISTANCE}, got {distance}")
    unique, inverse = np.unique(hashes, return_inverse=True)
    # Equal hashes need no comparison. Only different ones are linked.
    roots = np.arange(len(unique))
    _connect(unique, roots, np.arange(len(unique)), distance)
    order = np.argsort(roots[inverse], kind="stable")
    labels = roots[inverse][order]
    return _groups(order, labels[1:] == labels[:-1])


class GroupFacts:
    """Sums over groups of duplicates, and the first leaks. The attributes have the form of `dataset.json`.

    Attributes:
        duplicates: Number of images in groups, and number of groups.
        leaks: Number of validation and test images that are in training too, and some pairs of keys.
    """

    def __init__(self, examples: Mapping[str, int]) -> None:
        """`examples` is the number of all compared examples by split."""
        self.duplicates = {"images": 0, "groups": 0}
        held_back = sum(count for split, count in examples.items() if split != TRAIN)
        self.leaks: dict[str, Any] = {"images": 0, "of": held_back, "names": []}

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one group by its row of `duplicates.jsonl`."""
        images = row["images"]
        held_back = sum(each["split"] != TRAIN for each in images)
        self.duplicates["groups"] += 1
        self.duplicates["images"] += len(images)
        self.leaks["images"] += held_back if held_back < len(images) else 0
        self.name(row)

    def name(self, row: Mapping[str, Any]) -> None:
        """Name a group if it is one of the first leaks."""
        training = [each["path"] for each in row["images"] if each["split"] == TRAIN]
        held_back = [each["path"] for each in row["images"] if each["split"] != TRAIN]
        if training and held_back and len(self.leaks["names"]) < MAX_NAMES:
            self.leaks["names"].append([training[0], held_back[0]])


def _groups(order: Group, same: NDArray[np.bool_]) -> list[Group]:
    """Return the groups of two or more images in `order`. `same[i]` says that `order[i]` and `order[i + 1]` are equal.

    `order` must come from a stable sort, so that the indexes within a group ascend.
    """
    edges = np.diff(np.concatenate(([False], same, [False])).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) + 1
    by_first = np.argsort(order[starts])
    return [order[start:end] for start, end in zip(starts[by_first], ends[by_first], strict=True)]


def _split(group: Group, hashes: Iterator[Hashable]) -> list[Group]:
    """Divide a group by the next hashes, one for each image. Images without an equal one are left out."""
    parts: dict[Hashable, list[int]] = {}
    for index in group:
        parts.setdefault(next(hashes), []).append(int(index))
    return [np.array(part, np.intp) for part in parts.values() if len(part) > 1]


def _connect(hashes: NDArray[np.uint64], roots: Group, members: Group, distance: int) -> None:
    """Give the same root in `roots` to all `members` that are linked by steps of at most `distance` bits.

    `hashes` are all different. If many agree in two bands, as those of dark images do, they are divided again by the
    bits in which they differ. Hashes that are linked already are not compared, so that thousands of similar images do
    not take quadratic time.
    """
    for mask in _masks(hashes[members], distance):
        keys = hashes[members] & mask
        order = members[np.argsort(keys, kind="stable")]
        keys = hashes[order] & mask
        bounds = np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(order)]))
        large = np.flatnonzero(np.diff(bounds) > _LARGE_RUN)
        for start, end in zip(bounds[large], bounds[large + 1], strict=True):
            if (roots[order[start:end]] != roots[order[start]]).any():
                _connect(hashes, roots, order[start:end], distance)
        _compare_runs(hashes, roots, order, bounds, distance)


def _masks(hashes: NDArray[np.uint64], distance: int) -> list[np.uint64]:
    """Return a mask for every pair of `distance + 2` bands of the bits in which the hashes differ."""
    # Bits that are equal in all hashes would divide nothing.
    differing = int(np.bitwise_or.reduce(hashes ^ hashes[:1], initial=np.uint64(0)))
    bits = [1 << bit for bit in range(64) if differing >> bit & 1]
    bands = [sum(bits[start :: distance + 2]) for start in range(distance + 2)]
    return [np.uint64(one | other) for one, other in combinations(bands, 2)]


def _compare_runs(
    hashes: NDArray[np.uint64], roots: Group, order: Group, bounds: NDArray[np.intp], distance: int
) -> None:
    """Compare all pairs within each run between `bounds`, except in large runs, which `_connect` divides.

    Each round compares every hash with the one that follows `step` positions later, in all runs at once.
    """
    lengths = np.diff(bounds)
    # For each hash, the end of its run. In a large run it is 0, so that no hash has a partner.
    left = np.repeat(np.where(lengths > _LARGE_RUN, 0, bounds[1:]), lengths)
    rows = np.arange(len(order))
    for step in range(1, _LARGE_RUN):
        rows = rows[rows + step < left[rows]]
        if not len(rows):
            return
        one, other = order[rows], order[rows + step]
        near = np.bitwise_count(hashes[one] ^ hashes[other]) <= distance
        _link(roots, one[near], other[near])


def _link(roots: Group, one: Group, other: Group) -> None:
    """Give each pair, and everything that is linked to either, the same root: the lowest index (union-find)."""
    while (apart := roots[one] != roots[other]).any():
        one, other = one[apart], other[apart]
        lower, higher = np.minimum(roots[one], roots[other]), np.maximum(roots[one], roots[other])
        # An assignment would not do: `higher` may contain one root several times, and the lowest must win.
        np.minimum.at(roots, higher, lower)
        # Every root must point directly to the end of its chain: `_connect` compares roots without following them.
        while (roots[roots] != roots).any():
            roots[:] = roots[roots]
