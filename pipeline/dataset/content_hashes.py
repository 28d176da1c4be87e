"""Content hashes: XXH3 (128 bits) of the stored bytes of every example. Equal images have equal hashes in all versions.

`content_hashes.bin` of a version holds them one after another, in the order of the splits in `dataset.json`, of their
shards, and of the records in a shard.
"""

from xxhash import xxh3_128_digest as content_hash

__all__ = ["HASHES", "HASH_BYTES", "content_hash"]

HASHES = "content_hashes.bin"
HASH_BYTES = 16
