"""Records of images by their keys, and the keys of records. No file of a dataset lists the keys, only its shards."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat

from pipeline.config.example_kinds import data_of
from pipeline.dataset.index_files import load_sizes
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
"""This many threads read records for their keys, because each part of a shard in a bucket takes a request."""
PART_BYTES = 1_000_000
"""Records within this many bytes are read together, with those between them: a bucket sends them faster than it answers
another request."""


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


@dataclass(frozen=True)
class _Part:
    """Some records of a shard that one thread reads."""

    path: Place
    numbers: Sequence[int]
    """Numbers of the records in the shard, from 0, ascending."""
    sizes: Sequence[int] = ()
    """Size of each of these records with its frame, in bytes. Empty if the shard has no index."""
    offsets: Sequence[int] = ()
    """Start of each of these records in the shard, in bytes."""

    def records(self) -> Iterator[bytes]:
        """Yield the data of the records, verified. Without an index, the shard is read up to the last one."""
        if self.sizes:
            yield from tfrecord.records_in(self.path, self.offsets, self.sizes)
            return
        wanted = set(self.numbers)
        for number, record in enumerate(islice(tfrecord.read_records(self.path), self.numbers[-1] + 1)):
            if number in wanted:
                yield record


def keys_at(folder: Place, dataset: Dataset, split: str, positions: Sequence[int]) -> Iterator[str]:
    """Yield the keys of examples by their ascending positions through all shards of the split, from 0.

    A key is empty if an example has none. Records that are close to each other are read together. A shard without an
    index is read up to the last of them, and in a bucket copied first. If the dataset has no keys, nothing is read.

    Raises DatasetError if a record is damaged or missing.
    """
    key_of = data_of(dataset.kind).key_reader(dataset)
    if key_of is None:
        yield from repeat("", len(positions))
        return

    def keys(part: _Part) -> list[str]:
        found = [key_of(record) for record in part.records()]
        if len(found) < len(part.numbers):
            raise DatasetError(
                f"{part.path} has no record {part.numbers[len(found)]}: restore the file, or build the dataset again"
            )
        return found

    for found in ordered_map(keys, _parts(folder, dataset, split, positions), READERS):
        yield from found


def _parts(folder: Place, dataset: Dataset, split: str, positions: Sequence[int]) -> Iterator[_Part]:
    """Yield the wanted records of all shards. Each index is read once."""
    waiting, before = deque(positions), 0
    for shard in dataset.splits[split].shards:
        wanted = []
        while waiting and waiting[0] < before + shard.examples:
            wanted.append(waiting.popleft() - before)
        before += shard.examples
        if wanted:
            yield from _parts_of(folder, shard, wanted)
    if waiting:
        raise DatasetError(f"{folder} has {before} {split} examples, so it has no example {waiting[0]} (from 0)")


def _parts_of(folder: Place, shard: Shard, numbers: Sequence[int]) -> Iterator[_Part]:
    """Yield some records of a shard in parts that take up to PART_BYTES of the file, or one larger record."""
    sizes, path = load_sizes(folder, shard), folder / shard.name
    if sizes is None:
        # With several parts, each thread would read the shard from its beginning.
        yield _Part(path, numbers)
        return
    offsets = offsets_of(sizes)

    def part_of(chosen: Sequence[int]) -> _Part:
        return _Part(path, chosen, [sizes[number] for number in chosen], [offsets[number] for number in chosen])

    first = 0
    for last in range(1, len(numbers)):
        if offsets[numbers[last] + 1] - offsets[numbers[first]] > PART_BYTES:
            yield part_of(numbers[first:last])
            first = last
    yield part_of(numbers[first:])
