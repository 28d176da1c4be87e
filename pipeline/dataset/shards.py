"""Random access to the records of a dataset, for NumPy, PyTorch and others. It does not need TensorFlow."""

import operator
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from pipeline.dataset.index_files import has_index, load_sizes, records_at, scan_shard
from pipeline.dataset.manifest import Dataset, load
from pipeline.dataset.unreadable import unreadable_record
from pipeline.errors import DatasetError
from pipeline.records import example, tfrecord
from pipeline.records.record_index import offsets_of
from pipeline.storage import BucketPath, Place, place_of
from pipeline.system.parallel import ordered_map

READERS = 32
"""This many records of a bucket are read at once, because each takes a request."""
SCANNERS = 8
"""This many shards of a bucket are copied at once, if they have no index."""


class Shards:
    """The records of one split, by their position: `Shards(folder)[i]`. It is a map-style dataset for PyTorch.

    A record is a dictionary of its features, each of which is a list of bytes, integers or floats. Its checksums are
    verified. A record is read by itself if its shard has an index. Without an index, the shard is scanned once for the
    sizes of its records. A record of a gzip file is slow: the file is read from its beginning each time, and
    copied first if it is in a bucket.

    Args:
        folder: Folder of the dataset version, local or gs://.
        split: "train", "validation" or "test".

    Raises:
        DatasetError: If there is no dataset or no such split, or, when a record is read, if it is damaged.
    """

    def __init__(self, folder: str | os.PathLike[str] | Place, split: str = "train") -> None:
        self.folder = place_of(str(folder))
        self.split = split
        self.dataset: Dataset = load(self.folder)
        """The content of `dataset.json`: labels, sizes, settings."""
        if split not in self.dataset.splits:
            raise DatasetError(f"{self.folder} has no split {split!r}: choose one of {', '.join(self.dataset.splits)}")
        self._shards = self.dataset.splits[split].shards
        self._ends = list(accumulate(shard.examples for shard in self._shards))
        self._offsets: dict[int, Sequence[int]] = {}
        """The offsets in each shard that was read, and then its end."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> dict[str, list[Any]]:
        shard, number = self._place(number)
        record = self._record(shard, number)
        try:  # Not `read_record`: to make the path of the shard takes 5% of the time of a record.
            return example.decode(record)
        except ValueError as error:
            path = self.folder / self._shards[shard].name
            raise unreadable_record(self.dataset, path, number, str(error)) from error

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, list[Any]]]:
        """Return several records. A DataLoader of PyTorch calls this for each batch."""
        if not isinstance(self.folder, BucketPath):
            return [self[number] for number in numbers]
        # The threads below would load one index several times, or copy a shard without an index several times.
        for _ in ordered_map(self._require_offsets, sorted({self._place(number)[0] for number in numbers}), SCANNERS):
            pass
        return list(ordered_map(self.__getitem__, numbers, READERS))

    def __getstate__(self) -> dict[str, Any]:
        # Each worker process reads the indexes of the shards that it uses. They would make the copy large.
        return {**self.__dict__, "_offsets": {}}

    def _place(self, number: int) -> tuple[int, int]:
        """Return the number of a shard, and the number of a record in it."""
        position = operator.index(number)
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError(f"{self.split} has {len(self)} records, so there is no record {number}")
        shard = bisect_right(self._ends, position)
        return shard, position - self._ends[shard] + self._shards[shard].examples

    def _require_offsets(self, number: int) -> None:
        shard = self._shards[number]
        if number in self._offsets or not has_index(shard.name):
            return
        sizes = load_sizes(self.folder, shard)
        if sizes is None:
            sizes = scan_shard(self.folder / shard.name)
        if len(sizes) != shard.examples:
            raise DatasetError(
                f"{self.folder / shard.name} holds {len(sizes)} records, but {shard.examples} were committed: restore "
                "the file, or build the dataset again"
            )
        self._offsets[number] = offsets_of(sizes)

    def _record(self, shard: int, number: int) -> bytes:
        name = self._shards[shard].name
        if not has_index(name):
            [(_, record)] = records_at(self.folder, self._shards[shard], [number])
            return record
        self._require_offsets(shard)
        offset, end = self._offsets[shard][number : number + 2]
        return tfrecord.record_at(self.folder / name, offset, end - offset)
