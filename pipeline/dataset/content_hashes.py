"""Hashes of every example: XXH3 (128 bits) of its stored bytes, and XXH3 (64 bits) of its group, 0 without a group.

Equal images have equal content hashes in all versions, and examples of one group (a person, a scene) equal group
hashes. `content_hashes.bin` of a version holds both for one example after another, in the order of the splits in
`dataset.json`, of their shards, and of the records in a shard.
"""

from collections.abc import Iterable
from functools import lru_cache
from operator import add

from xxhash import xxh3_64_digest, xxh3_128_digest

HASHES = "content_hashes.bin"
HASH_BYTES = 24
"""Size of the hashes of an example: 16 bytes of its content, then 8 bytes of its group."""
CACHED_GROUPS = 1 << 14
NO_GROUP = b'""'


def hashes_of(contents: Iterable[bytes], groups: Iterable[bytes] | None = None) -> bytes:
    """Return the hashes of examples, by their stored bytes and their groups as JSON. None if no example has a group."""
    of_contents = map(xxh3_128_digest, contents)
    if groups is None:
        return _hash_of_group(NO_GROUP).join([*of_contents, b""])
    return b"".join(map(add, of_contents, map(_hash_of_group, groups)))


@lru_cache(CACHED_GROUPS)
def _hash_of_group(group: bytes) -> bytes:
    return bytes(8) if group == NO_GROUP else xxh3_64_digest(group)
