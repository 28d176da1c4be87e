"""The lists of shards of a large split: files beside `dataset.json`, which then stays small.

`dataset.json` itself lists up to MAX_LISTED_SHARDS shards of a split. It is read by every task and every reader, so
with a million shards it would have 170 MB. A larger split has its shards in `shards-train-00000-of-00012.jsonl` and so
on, one line for each shard, and `dataset.json` has the names of these files.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pipeline.dataset.lists import new_list, read_listed
from pipeline.storage import Place
from pipeline.system.parallel import ordered_map

MAX_LISTED_SHARDS = 10_000
"""`dataset.json` lists the shards of a split if there are at most this many. A file lists this many shards, too."""
READERS = 8
"""This many lists are read at once. In a bucket, each takes a request."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One published file. `crc32c` is the CRC32C of the whole file, as eight hexadecimal digits."""

    name: str
    examples: int
    bytes: int
    crc32c: str
    ends: str
    """The result of `tfrecord.ends_of`, in hexadecimal digits."""
    index_bytes: int = 0
    index_crc32c: str = ""
    """Size and CRC32C of the index (index_files.py). Empty for a gzip shard, which has none."""


def shard_to_json(shard: Shard) -> dict[str, Any]:
    """Return the entry of a shard in `dataset.json`, or in a list of shards."""
    entry = asdict(shard)
    if not shard.index_crc32c:
        del entry["index_bytes"], entry["index_crc32c"]
    return entry


def write_shard_lists(
    folder: Place, split: str, shards: Sequence[Shard], max_listed: int = MAX_LISTED_SHARDS
) -> tuple[Mapping[str, Any], ...]:
    """Write the lists of a split with more than `max_listed` shards, and return the facts for `dataset.json`.

    A smaller split has no lists.

    Raises ConflictError if a list exists with other content.
    """
    if len(shards) <= max_listed:
        return ()
    starts = range(0, len(shards), max_listed)
    return tuple(
        _write(folder, f"shards-{split}-{number:05d}-of-{len(starts):05d}.jsonl", shards[start : start + max_listed])
        for number, start in enumerate(starts)
    )


def _write(folder: Place, name: str, shards: Sequence[Shard]) -> Mapping[str, Any]:
    with new_list(folder / name) as file:
        for shard in shards:
            file.write_row(shard_to_json(shard))
    sizes = [shard.bytes for shard in shards]
    # The dataset card shows these figures. Without them, it would have to read the lists.
    return {**file.facts(name), "shards": len(sizes), "min_bytes": min(sizes), "max_bytes": max(sizes)}


def read_shard_lists(folder: Place, lists: Iterable[Mapping[str, Any]]) -> Iterator[Shard]:
    """Yield the shards of some lists.

    Raises DatasetError if a list is missing, or differs from the committed one.
    """
    for content in ordered_map(partial(read_listed, folder), lists, READERS):
        yield from (Shard(**json.loads(line)) for line in content.splitlines())
