"""Content hashes: XXH3 (128 bits) of the stored bytes of every example. Equal images have equal hashes in all versions.

`content_hashes.bin` of a version holds them one after another, in the order of the splits in `dataset.json`, of their
shards, and of the records in a shard. A version of an earlier release has no such file: its shards are read once, and
their hashes are stored in the workspace.
"""

import logging
from functools import partial

import google_crc32c
from xxhash import xxh3_128_digest as content_hash

from pipeline import storage
from pipeline.dataset.manifest import Dataset
from pipeline.dataset.shard_lists import Shard
from pipeline.errors import DatasetError
from pipeline.records import tfrecord
from pipeline.records.format import read_image
from pipeline.storage import Place
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

__all__ = ["HASHES", "HASH_BYTES", "content_hash", "load_hashes"]

HASHES = "content_hashes.bin"
HASH_BYTES = 16
READERS = 4
"""This many shards of an earlier release are read at once. Shards in a bucket are copied first."""
_log = logging.getLogger(__name__)


def load_hashes(folder: Place, dataset: Dataset, cache: Place) -> bytes:
    """Return the content hashes of the version in `folder`.

    `cache` is the folder for hashes that are computed from shards. A shard is not read again if the task is killed.

    Raises DatasetError if the file or a shard is missing or damaged.
    """
    return _read(folder, dataset) if dataset.hashes else _from_shards(folder, dataset, cache)


def _read(folder: Place, dataset: Dataset) -> bytes:
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


def _from_shards(folder: Place, dataset: Dataset, cache: Place) -> bytes:
    _log.info("version %s has no content hashes: reading its shards once to compute them", dataset.version)
    storage.sweep(cache)
    shards = [shard for split in dataset.splits.values() for shard in split.shards]
    parts = []
    with progress("hash", sum(shard.examples for shard in shards), dataset.unit) as advance:
        for hashes in ordered_map(partial(_of_shard, folder, dataset, cache), shards, READERS):
            parts.append(hashes)
            advance(len(hashes) // HASH_BYTES)
    return b"".join(parts)


def _of_shard(folder: Place, dataset: Dataset, cache: Place, shard: Shard) -> bytes:
    path = cache / f"{shard.name}.{HASHES}"
    # After a kill, the task continues with the shards that it has not read.
    if path.exists() and path.stat().st_size == shard.examples * HASH_BYTES:
        return path.read_bytes()
    records = tfrecord.read_records(folder / shard.name)
    # Only datasets of earlier releases have no hashes, and those are of images.
    hashes = b"".join(content_hash(read_image(record, dataset.records).encoded) for record in records)
    if len(hashes) != shard.examples * HASH_BYTES:
        raise DatasetError(
            f"{folder / shard.name} holds {len(hashes) // HASH_BYTES} records, but {shard.examples} were committed: "
            f"restore the file, or remove {folder} and build the dataset again"
        )
    # Synced, because the size alone decides later whether the file is used again.
    with storage.write_whole(path, synced=True) as file:
        file.write(hashes)
    return hashes
