"""Hashes of every example: XXH3 (128 bits) of its stored bytes, and XXH3 (64 bits) of its group, 0 without a group.

Equal images have equal content hashes in all versions, and examples of one group (a person, a scene) equal group
hashes. `content_hashes.bin` of a version holds both for one example after another, in the order of the splits in
`dataset.json`, of their shards, and of the records in a shard.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_digest, xxh3_128_digest

from pipeline.dataset.lists import read_listed
from pipeline.dataset.manifest import Dataset, load
from pipeline.storage import Place

HASHES = "content_hashes.bin"
FORMAT = np.dtype([("content", "<u8", 2), ("group", "<u8")])
HASH_BYTES = FORMAT.itemsize
CACHED_GROUPS = 1 << 14
NO_GROUP = b'""'


def example_hashes(content: bytes, group: bytes = NO_GROUP) -> bytes:
    """Return the hashes of an example, by its stored bytes and its group as JSON."""
    return xxh3_128_digest(content) + _hash_of_group(group)


@lru_cache(CACHED_GROUPS)
def _hash_of_group(group: bytes) -> bytes:
    return bytes(8) if group == NO_GROUP else xxh3_64_digest(group)


def load_hashes(folder: Place, version: Dataset) -> NDArray[np.void]:
    """Return the hashes of all examples of a version, as elements of FORMAT.

    Raises DatasetError if their file is missing or damaged.
    """
    return np.frombuffer(read_listed(folder, version.hashes), FORMAT)


def groups_of_split(folder: Place, dataset: Dataset, split: str) -> NDArray[np.int32]:
    """Return a number for the group of each example of a split, in the order of the shards.

    An example without a group has a number of its own. The result is empty if no example has a group.

    Raises DatasetError if a file is missing or damaged.
    """
    # A window has the examples of its versions, one version after another.
    versions = [folder.parent.parent / name for name in sorted(set(dataset.window.values()))]
    loaded = [(place, load(place)) for place in versions] or [(folder, dataset)]
    groups = np.concatenate([_groups(place, version, split) for place, version in loaded])
    if not groups.any():
        return np.zeros(0, np.int32)
    _, numbers = np.unique(groups, return_inverse=True)
    alone = groups == 0
    numbers[alone] = numbers.max() + 1 + np.arange(alone.sum())
    return numbers.astype(np.int32)


def _groups(folder: Place, version: Dataset, split: str) -> NDArray[np.uint64]:
    groups: NDArray[np.uint64] = load_hashes(folder, version)["group"]
    begin = 0
    for name, each in version.splits.items():
        if name == split:
            return groups[begin : begin + each.examples]
        begin += each.examples
    return groups[:0]
