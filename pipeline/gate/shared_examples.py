"""Find examples that are in several versions of a window, or both in training and in another split.

Each version keeps a group on one side of its split, but another version may choose the other side for the group: if its
source states the split, or if the hash selects no group of it for validation. Such examples are leaks, too.

Equal examples have equal content hashes. Sorting the hashes groups the examples. A sixteenth of them is sorted at a
time, so that 10 million examples take only tens of megabytes in addition to the hashes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMED_LEAKS = 5
"""At most this many pairs are named. For a name, a shard is read, which is first copied if it is in a bucket."""
_PARTS = 16
"""The examples are sorted in this many parts, one after another, to bound the memory."""


@dataclass(frozen=True)
class Examples:
    """All examples of a window, each at one index of four arrays."""

    hashes: NDArray[np.uint64]
    """Content hashes, of shape (examples, 2)."""
    groups: NDArray[np.uint64]
    """Hashes of the groups; 0 for an example without a group."""
    held_back: NDArray[np.bool_]
    """True for validation and test."""
    versions: NDArray[np.int16]
    """The number of the version that holds the example."""


@dataclass(frozen=True)
class _Groups:
    """Groups of equal examples, in the order of their hashes. Each array except `members` has one element per group."""

    members: NDArray[np.intp]
    """Indexes of the examples, group after group, ascending within each."""
    starts: NDArray[np.intp]
    """Where in `members` each group starts."""
    sizes: NDArray[np.intp]
    held_back: NDArray[np.intp]
    """How many examples of the group are held back."""
    is_shared: NDArray[np.bool_]
    """Whether several versions hold the example."""

    @property
    def is_leak(self) -> NDArray[np.bool_]:
        return (self.held_back > 0) & (self.held_back < self.sizes)


def shared_facts(examples: Examples, name: Callable[[int], str]) -> dict[str, Any]:
    """Return leaks, duplicates and shared examples, in the form of `quality` in the `dataset.json` of a window.

    `name` returns the name to show for the example at an index.
    """
    groups = images = shared = shared_examples = 0
    leaked = np.zeros(len(examples.hashes), np.bool_)
    pairs: list[tuple[int, int]] = []
    for part in _parts(examples):
        leaked[part.members[np.repeat(part.is_leak, part.sizes)]] = True
        groups += int((part.sizes > 1).sum())
        images += int(part.sizes[part.sizes > 1].sum())
        shared += int(part.is_shared.sum())
        shared_examples += int(part.sizes[part.is_shared].sum())
        pairs += _pairs(part, examples.held_back, NAMED_LEAKS - len(pairs))
    leaked &= examples.held_back
    only_by_group = _is_leaked_by_group(examples) & ~leaked
    pairs += _pairs_of_groups(only_by_group, examples, NAMED_LEAKS - len(pairs))
    return {
        "duplicates": {"images": images, "groups": groups},
        "leaks": {
            "images": int(leaked.sum() + only_by_group.sum()),
            "only_by_group": int(only_by_group.sum()),
            "of": int(examples.held_back.sum()),
            "names": [[name(training), name(other)] for training, other in pairs],
        },
        "shared": {"images": shared, "examples": shared_examples, "of": len(examples.hashes)},
    }


def _parts(examples: Examples) -> Iterator[_Groups]:
    # Equal examples have equal first bytes, so no group is divided between two parts.
    first_bytes = examples.hashes.view(np.uint8)[:, 0] % _PARTS
    for part in range(_PARTS):
        members = np.flatnonzero(first_bytes == part)
        if len(members):
            yield _grouped(members, examples)


def _grouped(members: NDArray[np.intp], examples: Examples) -> _Groups:
    hashes = examples.hashes[members]
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    members, hashes = members[order], hashes[order]
    is_first = np.concatenate(([True], (hashes[1:] != hashes[:-1]).any(axis=1)))
    starts = np.flatnonzero(is_first)
    versions = examples.versions[members]
    return _Groups(
        members=members,
        starts=starts,
        sizes=np.diff(np.append(starts, len(members))),
        held_back=np.add.reduceat(examples.held_back[members].astype(np.intp), starts),
        is_shared=np.minimum.reduceat(versions, starts) != np.maximum.reduceat(versions, starts),
    )


def _pairs(part: _Groups, held_back: NDArray[np.bool_], max_pairs: int) -> Iterator[tuple[int, int]]:
    """Yield, for each of the first leaks, an example in training and one that is held back."""
    for group in np.flatnonzero(part.is_leak)[:max_pairs]:
        start = part.starts[group]
        members = part.members[start : start + part.sizes[group]]
        yield int(members[~held_back[members]][0]), int(members[held_back[members]][0])


def _is_leaked_by_group(examples: Examples) -> NDArray[np.bool_]:
    """Return which examples are held back although an example of their group is in training."""
    result = np.zeros(len(examples.groups), np.bool_)
    last_bytes = examples.groups.astype(np.uint8) % _PARTS
    for part in range(_PARTS):
        members = np.flatnonzero((last_bytes == part) & (examples.groups != 0))
        groups, held_back = examples.groups[members], examples.held_back[members]
        result[members] = held_back & np.isin(groups, groups[~held_back])
    return result


def _pairs_of_groups(leaked: NDArray[np.bool_], examples: Examples, max_pairs: int) -> Iterator[tuple[int, int]]:
    """Yield a pair for each group with leaks, `max_pairs` at most.

    A pair has the indices of an example in training, and of one in validation or test. Both are of the same group.
    """
    groups, firsts = np.unique(examples.groups[leaked], return_index=True)
    for group, first in islice(zip(groups, firsts, strict=True), max_pairs):
        in_training = (examples.groups == group) & ~examples.held_back
        yield int(np.argmax(in_training)), int(np.flatnonzero(leaked)[first])
