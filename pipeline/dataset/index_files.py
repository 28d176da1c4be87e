"""The index of each shard: a file in the folder `index/` beside the shards, with which a record is read by itself.

A gzip file has no index, because a record in it cannot be read without all records before it. The content of an index
follows from its shard, so a missing or damaged index can always be written again.
"""

import logging
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import google_crc32c

from pipeline import storage
from pipeline.dataset.shard_lists import Shard
from pipeline.errors import ConflictError, DatasetError
from pipeline.records import tfrecord
from pipeline.records.record_index import index_of, offsets_of, sizes_of
from pipeline.storage import Place
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

INDEX_FOLDER = "index"
READERS = 8
"""`write_indexes` reads this many shards at once. Shards in a bucket are copied first."""
_SHARD_SUFFIX, _SUFFIX = ".tfrecord", ".idx"
_log = logging.getLogger(__name__)


def has_index(shard: str) -> bool:
    """Whether a shard of this name can have an index."""
    return not shard.endswith(tfrecord.GZIP_SUFFIX)


def index_name(shard: str) -> str:
    """Return the name of the index of a shard. Both names are relative to the folder of the dataset.

    The name does not end like that of a shard, so that a search for shards in all folders does not find it.
    """
    folder, slash, name = shard.rpartition("/")
    return f"{folder}{slash}{INDEX_FOLDER}/{name.removesuffix(_SHARD_SUFFIX)}{_SUFFIX}"


def write_index(path: Place, index: bytes) -> None:
    """Write the index of a shard. It is whole or absent. A damaged one is replaced."""
    try:
        with storage.write_new(path, synced=True) as file:
            file.write(index)
    except ConflictError:
        # In a bucket, only this needs the right to replace objects.
        with storage.write_whole(path, synced=True) as file:
            file.write(index)


def scan_shard(path: Place) -> "array[int]":
    """Return the size of each record of a shard that is not compressed. In a bucket, the shard is copied first.

    Only the headers are read. Raises DatasetError with the file and the offset in bytes of the first record that has a
    damaged header or is cut, and FileNotFoundError if there is no shard.
    """
    with path.open("rb") as file:
        return array("Q", tfrecord.sizes_of_records(file, path))


def load_sizes(folder: Place, shard: Shard) -> "array[int] | None":
    """Return the size of each record of a shard from its index; None if there is no index, or if it is damaged."""
    if not has_index(shard.name):
        return None
    path = folder / index_name(shard.name)
    index = unless_missing(path.read_bytes)
    if index is None:
        return None
    if crc32c_text(index) != shard.index_crc32c:
        _log.warning("%s does not match its shard, so it is not used: `index` writes it again", path)
        return None
    return sizes_of(index)


def problem_of_index(folder: Place, shard: Shard) -> str:
    """Return what is wrong with the index of a shard; empty if it is sound, or if the shard has none."""
    if not has_index(shard.name):
        return ""
    path = folder / index_name(shard.name)
    index = unless_missing(path.read_bytes)
    if index is not None and crc32c_text(index) == shard.index_crc32c:
        return ""
    problem = "is missing" if index is None else "does not match its shard"
    return f"{path} {problem}: `index` writes it again"


def records_at(folder: Place, shard: Shard, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yield number (from 0) and data of some records of a shard, verified, in the order of their numbers.

    Without an index, the shard is read up to the last of these records. In a bucket, it is copied first.

    Raises DatasetError if a record is damaged.
    """
    sizes, path, wanted = load_sizes(folder, shard), folder / shard.name, sorted({*numbers})
    if sizes is not None:
        offsets = offsets_of(sizes)
        yield from ((number, tfrecord.record_at(path, offsets[number], sizes[number])) for number in wanted)
        return
    missing = deque(wanted)
    for number, record in enumerate(islice(tfrecord.read_records(path), wanted[-1] + 1 if wanted else 0)):
        if number == missing[0]:
            yield missing.popleft(), record
    if missing:
        raise DatasetError(
            f"{path} has no record {missing[0]}, but dataset.json says that it holds {shard.examples}: restore the "
            "file, or build the dataset again"
        )


def write_indexes(folder: Place, shards: Sequence[Shard]) -> dict[str, Any]:
    """Write the index of each shard whose index is missing or damaged. `dataset.json` is not changed.

    Returns {"written", "present"}: the numbers of indexes that were written, and that were there.

    Raises DatasetError if a shard is compressed, missing or damaged.
    """
    if compressed := [shard.name for shard in shards if not has_index(shard.name)]:
        raise DatasetError(
            f"{folder / compressed[0]} is compressed, so a record in it cannot be read without all records before it: "
            "build the dataset again with compression=none to read single records"
        )
    written = 0
    with progress("index", len(shards), "shards") as advance:
        for is_written in ordered_map(lambda shard: _complete(folder, shard), shards, READERS):
            written += is_written
            advance(1)
    for place in {(folder / index_name(shard.name)).parent for shard in shards}:
        storage.sync_folder(place)
    return {"written": written, "present": len(shards) - written}


def _complete(folder: Place, shard: Shard) -> bool:
    """Write the index of a shard unless it is there. Returns whether it was written."""
    if load_sizes(folder, shard) is not None:
        return False
    path = folder / shard.name
    try:
        index = index_of(scan_shard(path))
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing: restore the file, or build the dataset again") from error
    if crc32c_text(index) != shard.index_crc32c:
        raise DatasetError(
            f"{path} does not hold what was committed ({shard.examples} records, {shard.bytes} bytes): restore the "
            "file, or build the dataset again"
        )
    write_index(folder / index_name(shard.name), index)
    return True


def crc32c_text(index: bytes) -> str:
    """Return the CRC32C of an index as eight hexadecimal digits."""
    return f"{google_crc32c.value(index):08x}"
