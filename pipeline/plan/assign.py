"""Decide the split, the shard and the position of each example, with pure functions.

The order is that of a salted hash of the key, and the split that of a salted hash of the group. For a row of a table,
the whole row takes the place of the key. Neither depends on a random generator or on the order of a listing. So the
same examples give the same shards everywhere, and an example stays in its split if examples or classes are added. The
rejected alternative, shuffling in the reader, mixes shards sorted by class badly even with a buffer of 8,192.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.plan.range_plan import ShardSpec
from pipeline.snapshot.part import TEST, TRAIN, VALIDATION
from pipeline.system.wording import format_size

LARGEST_SHARD_BYTES = 1_000_000_000
"""Shards above this size are too large to cache."""
SMALLEST_SHARD_BYTES = 10_000_000
"""Shards below this size are too small to read fast."""
BEST_SHARD_BYTES = 150_000_000
MAX_TASKS = 1000
"""At most this many tasks write shards. Airflow maps a task at most 1,024 times.

This also holds for other engines, because each plan file names a piece of each part of the snapshot.
"""
MAX_NEAR_IMAGES = 10_000_000
"""Near-duplicates among more images are searched only with a warning."""
NEAR_BYTES = 300
"""Memory of that search for each image."""


def salted(hashes: NDArray[np.uint64], purpose: str, seed: int) -> NDArray[np.uint64]:
    """Mix 64-bit hashes with a salt for one purpose and seed: the salt, then the finalizer of SplitMix64.

    Source: Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014.
    """
    # The purpose keeps the split and the order independent of each other.
    salt = hashlib.blake2b(f"{purpose}/{seed}".encode(), digest_size=8).digest()
    mixed = hashes ^ np.frombuffer(salt, "<u8")[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return result


def shard_counts(examples: Mapping[str, int], train_shards: int, servers: int) -> dict[str, int]:
    """Return the number of shards of each split that has examples.

    Validation and test get shards of a similar size as training, but at least one for each training server.
    """
    counts = {TRAIN: train_shards}
    for split in (VALIDATION, TEST):
        if examples.get(split):
            alike = -(-train_shards * examples[split] // max(examples[TRAIN], 1))
            # There are no more shards than examples, except that each training server needs one.
            counts[split] = max(servers, min(alike, examples[split]))
    return counts


def shard_specs(examples: Mapping[str, int], counts: Mapping[str, int], ending: str) -> list[ShardSpec]:
    """Return all shards in order. Their names end in `ending` (".tfrecord").

    The numbers of examples of the shards of a split differ by at most one. A shard may be empty.
    """
    return [
        ShardSpec(
            name=_shard_name(split, index, shards) + ending,
            split=split,
            # The differences of rounded multiples distribute the remainder evenly.
            examples=examples[split] * (index + 1) // shards - examples[split] * index // shards,
        )
        for split, shards in counts.items()
        for index in range(shards)
    ]


def _shard_name(split: str, index: int, shards: int) -> str:
    # All numbers of a split have the same width, as TFDS 4.9 expects, so that the order of the names is that of the
    # numbers.
    width = max(5, len(str(shards)))
    return f"{split}-{index:0{width}d}-of-{shards:0{width}d}"


def shard_ranges(specs: Sequence[ShardSpec], shards_per_task: int) -> list[Sequence[ShardSpec]]:
    """Return consecutive shards for each task: `shards_per_task`, or more if there would be too many tasks."""
    # The division rounds up.
    step = max(shards_per_task, -(-len(specs) // MAX_TASKS))
    return [specs[start : start + step] for start in range(0, len(specs), step)]


def size_advice(total_bytes: int, shards: int) -> str:
    """Return advice if training shards of `total_bytes` in total are too large or too small, else an empty text."""
    fitting = max(10, round(total_bytes / BEST_SHARD_BYTES))
    each = total_bytes / shards
    if each > LARGEST_SHARD_BYTES:
        return f"{shards} training shards of {format_size(each)} are too large to cache: set num_shards={fitting}"
    # If even ten shards are smaller, no number of shards is better, and there is no advice.
    if each < SMALLEST_SHARD_BYTES <= total_bytes / 10:
        return f"{shards} training shards of {format_size(each)} are too small to read fast: set num_shards={fitting}"
    return ""


def near_duplicates_advice(images: int) -> str:
    """Return advice if the search for near-duplicates needs much memory, else an empty text."""
    if images <= MAX_NEAR_IMAGES:
        return ""
    return (
        f"near_duplicates compares all {images} images in the task that commits, which takes about "
        f"{format_size(images * NEAR_BYTES)} of memory: set near_duplicates=false unless it has as much; equal images "
        "are found without it"
    )


def empty_shards_advice(examples: int, shards: int) -> str:
    """Return advice if some training shards stay empty, else an empty text."""
    if examples >= shards:
        return ""
    empty = f"{shards - examples} of {shards} shards empty"
    return f"{examples} training examples leave {empty}: set num_shards={max(examples, 1)}"
