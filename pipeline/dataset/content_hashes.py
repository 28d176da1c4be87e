"""Hashes of every example: XXH3 (128 bits) of its stored bytes, and XXH3 (64 bits) of its group, 0 without a group.

Equal images have equal content hashes in all versions, and examples of one group (a person, a scene) equal group
hashes. `content_hashes.bin` of a version holds both for one example after another, in the order of the splits in
`dataset.json`, of their shards, and of the records in a shard.
"""

from collections.abc import Iterable
from functools import lru_cache

from xxhash import xxh3_64_digest, xxh3_128_digest

HASHES = "content_hashes.bin"
HASH_BYTES = 24
"""Size of the hashes of an example: 16 bytes of its content, then 8 bytes of its group."""
CACHED_GROUPS = 1 << 14
NO_GROUP = b'""'


def hashes_without_groups(contents: Iterable[bytes]) -> bytes:
    """Return the hashes of examples that have no group, by their stored bytes."""
    no_group = _hash_of_group(NO_GROUP)
    return no_group.join([*map(xxh3_128_digest, contents), b""])


def example_hashes(content: bytes, group: bytes = NO_GROUP) -> bytes:
    """Return the hashes of an example, by its stored bytes and its group as JSON."""
    return xxh3_128_digest(content) + _hash_of_group(group)


@lru_cache(CACHED_GROUPS)
def _hash_of_group(group: bytes) -> bytes:
    return bytes(8) if group == NO_GROUP else xxh3_64_digest(group)
