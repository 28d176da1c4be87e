"""Reads `content_hashes.bin`: the content hash of each example, and the group that it belongs to."""

import sys
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.content_hashes import HASH_BYTES
from pipeline.dataset.lists import read_listed
from pipeline.dataset.manifest import Dataset, load_allowed
from pipeline.storage import Place

_HASHES = np.dtype([("content", "<u8", 2), ("group", "<u8")])


def load_hashes(folder: Place, version: Dataset, only: str = "") -> NDArray[np.void]:
    """Return the hashes of all examples of a version, or of one split, with the fields `content` and `group`.

    Raises DatasetError if their file is missing or damaged.
    """
    begin, end = 0, sys.maxsize
    if only:
        examples = {name: split.examples for name, split in version.splits.items()}
        begin = HASH_BYTES * sum(examples[name] for name in takewhile(lambda name: name != only, examples))
        end = begin + HASH_BYTES * examples.get(only, 0)
    return np.frombuffer(read_listed(folder, version.hashes, begin, end), _HASHES)


def groups_of_split(folder: Place, dataset: Dataset, split: str) -> NDArray[np.int32]:
    """Return a number for the group of each example of a split, in the order of the shards.

    An example without a group has a number of its own. The result is empty if no example has a group.

    Raises DatasetError if a file is missing or damaged.
    """
    # A window has the examples of its versions, one version after another.
    versions = [folder.parent.parent / name for name in sorted(set(dataset.window.values()))]
    loaded = [(place, load_allowed(place)) for place in versions] or [(folder, dataset)]
    groups = np.concatenate([_groups(place, version, split) for place, version in loaded])
    if not groups.any():
        return np.zeros(0, np.int32)
    _, numbers = np.unique(groups, return_inverse=True)
    alone = groups == 0
    numbers[alone] = numbers.max() + 1 + np.arange(alone.sum())
    return numbers.astype(np.int32)


def _groups(folder: Place, version: Dataset, split: str) -> NDArray[np.uint64]:
    if not version.hashes:
        return np.zeros(version.splits[split].examples, np.uint64)
    groups: NDArray[np.uint64] = load_hashes(folder, version, split)["group"]
    return groups
