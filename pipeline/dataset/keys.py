"""Records of images by their keys, and the keys of records. No file of a dataset lists the keys, only its shards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.config.example_kinds import data_of
from pipeline.dataset.index_files import load_sizes, records_at
from pipeline.dataset.lists import JsonLines
from pipeline.dataset.manifest import Dataset, require_shards
from pipeline.dataset.shard_lists import Shard
from pipeline.dataset.unreadable import read_record
from pipeline.errors import DatasetError
from pipeline.records import example, tfrecord
from pipeline.records.format import text_bytes
from pipeline.records.record_index import offsets_of
from pipeline.storage import Place
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

HEAD_BYTES = 4096
"""The key is in this many bytes at the beginning of its record, unless the image has very many labels or boxes."""

READERS = 32
"""This many threads read records for their keys, because each record of a bucket takes a request."""
RECORDS = 16
"""Each of these threads holds at most this many records of a shard that has an index."""


@dataclass(frozen=True)
class FoundImage:
    """The record of an image, and its place in the dataset."""

    key: str
    split: str
    shard: str
    number: int
    """Number of the record in its shard, from 0."""
    record: bytes


def find_images(folder: Place, dataset: Dataset, keys: Sequence[str]) -> list[FoundImage]:
    """Return the images with these keys, in the order of `keys`.

    The shards are searched in their order, until all keys are found. With an index, only the beginning of each record
    is read. A shard in a bucket is copied first.

    Raises:
        DatasetError: If the dataset has no image with one of the keys, with the reason if the image was rejected, or
            if a shard is damaged or missing, or one of its records cannot be read.
    """
    require_shards(folder, dataset)
    feature = dataset.records.keys.filename
    names = {text_bytes(key): key for key in keys}
    found: dict[str, FoundImage] = {}
    shards = [(split, shard) for split, of_split in dataset.splits.items() for shard in of_split.shards]
    with progress("search", len(shards), "shards") as advance:
        for split, shard in shards:
            for number, record in _candidates(folder, shard, list(names), feature):
                features = read_record(example.decode, record, dataset=dataset, path=folder / shard.name, number=number)
                name = next(iter(features.get(feature, ())), None)
                if name in names:
                    key = names.pop(name)
                    found[key] = FoundImage(key, split, shard.name, number, record)
            advance(1)
            if not names:
                break
    if names:
        raise _missing(folder, dataset, next(iter(names.values())))
    return [found[key] for key in keys]


def _candidates(folder: Place, shard: Shard, names: Sequence[bytes], feature: str) -> Iterator[tuple[int, bytes]]:
    """Yield number and data of each record that may have one of the names. Its checksums are verified."""
    path, sizes = folder / shard.name, load_sizes(folder, shard)
    # With its length, a name is not found within a longer name.
    values = [example.value_head(len(name)) + name for name in names]
    if sizes is None:
        for number, record in enumerate(tfrecord.read_records(path)):
            if any(value in record for value in values):
                yield number, record
        return
    with path.open("rb") as file:
        for number, (offset, size) in enumerate(zip(offsets_of(sizes), sizes, strict=False)):
            file.seek(offset)
            head = file.read(min(size, HEAD_BYTES))
            if any(value in head for value in values) or feature.encode() not in head:
                yield number, tfrecord.record_at(path, offset, size)


def _missing(folder: Place, dataset: Dataset, key: str) -> DatasetError:
    for row in JsonLines(folder / dataset.rejected["file"]):
        if row["path"] == key:
            return DatasetError(f"{folder} has no image {key!r}, because it was rejected: {row['reason']}")
    return DatasetError(
        f"{folder} has no image {key!r}: give its path below the source, which its record holds as "
        f"{dataset.records.keys.filename!r}"
    )


def keys_at(folder: Place, dataset: Dataset, split: str, positions: Sequence[int]) -> Iterator[str]:
    """Yield the keys of examples by their ascending positions through all shards of the split, from 0.

    A key is empty if an example has none. Only these records are read. A shard without an index is read up to the last
    of them, and in a bucket copied first.

    Raises DatasetError if a record is damaged.
    """
    kind = data_of(dataset.kind)

    def keys(job: tuple[Shard, Sequence[int]]) -> list[str]:
        shard, numbers = job
        records = records_at(folder, shard, numbers)
        return [str(kind.key_of(dataset, records[number])) for number in numbers]

    for found in ordered_map(keys, _jobs(folder, dataset, split, positions), READERS):
        yield from found


def _jobs(
    folder: Place, dataset: Dataset, split: str, positions: Sequence[int]
) -> Iterator[tuple[Shard, Sequence[int]]]:
    """Yield the shards with the numbers of the wanted records in each, from 0."""
    waiting, before = list(reversed(positions)), 0
    for shard in dataset.splits[split].shards:
        wanted = []
        while waiting and waiting[-1] < before + shard.examples:
            wanted.append(waiting.pop() - before)
        before += shard.examples
        if not wanted:
            continue
        # Without an index, each job would read the shard from its beginning.
        length = len(wanted) if load_sizes(folder, shard) is None else RECORDS
        for first in range(0, len(wanted), length):
            yield shard, wanted[first : first + length]
