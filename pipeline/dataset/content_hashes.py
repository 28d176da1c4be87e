"""Content hashes: XXH3 (128 bits) of the stored bytes of every example. Equal images have equal hashes in all versions.

`content_hashes.bin` of a version holds them one after another, in the order of the splits in `dataset.json`, of their
shards, and of the records in a shard.
"""

import google_crc32c
from xxhash import xxh3_128_digest as content_hash

from pipeline.dataset.manifest import Dataset
from pipeline.errors import DatasetError
from pipeline.storage import Place

__all__ = ["HASHES", "HASH_BYTES", "content_hash", "load_hashes"]

HASHES = "content_hashes.bin"
HASH_BYTES = 16


def load_hashes(folder: Place, dataset: Dataset) -> bytes:
    """Return the content hashes of the version in `folder`.

    Raises DatasetError if their file is missing or damaged.
    """
    path = folder / dataset.hashes["file"]
    mend = f"restore the file, or remove {folder} and build the dataset again"
    try:
        content: bytes = path.read_bytes()
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing: {mend}") from error
    # A damaged hash would hide a leak or invent one.
    if f"{google_crc32c.value(content):08x}" != dataset.hashes["crc32c"]:
        raise DatasetError(
            f"{path} was committed with CRC32C {dataset.hashes['crc32c']}, and now has another one: {mend}"
        )
    return content
