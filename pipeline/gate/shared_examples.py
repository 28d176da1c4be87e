"""Find examples that are in several versions of a window, or both in training and in another split.

Equal examples have equal content hashes. Sorting the hashes groups the examples. A sixteenth of them is sorted at a
time, so that 10 million examples take only tens of megabytes in addition to the hashes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMED_LEAKS = 5
"""At most this many pairs are named. For a name, a shard is read, which is first copied if it is in a bucket."""
_PARTS = 16
"""The examples are sorted in this many parts, one after another, to bound the memory."""


@dataclass(frozen=True)
class Examples:
    """All examples of a window, each at one index of three arrays."""

    hashes: NDArray[np.uint64]
    """Content hashes, of shape (examples, 2)."""
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
    leaked = groups = images = shared = shared_examples = 0
    pairs: list[tuple[int, int]] = []
    for part in _parts(examples):
        leaked += int(part.held_back[part.is_leak].sum())
        groups += int((part.sizes > 1).sum())
        images += int(part.sizes[part.sizes > 1].sum())
        shared += int(part.is_shared.sum())
        shared_examples += int(part.sizes[part.is_shared].sum())
        pairs += _pairs(part, examples.held_back, NAMED_LEAKS - len(pairs))
    return {
        "duplicates": {"images": images, "groups": groups},
        "leaks": {
            "images": leaked,
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
