"""Rows of a table as examples of a shard: each carries its encoded columns."""

from binascii import a2b_base64
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import google_crc32c

from pipeline.dataset.content_hashes import content_hash
from pipeline.images.rejection import Rejection
from pipeline.records.example import example_head
from pipeline.records.tfrecord import Writer
from pipeline.sharding.examples import Sums
from pipeline.sharding.ranges import RangePlan
from pipeline.sharding.statistics import Statistics
from pipeline.snapshot.raw_image import RawImage
from pipeline.snapshot.raw_reader import ReadImage
from pipeline.tables.encode import encode_label
from pipeline.tables.schema import Schema

CACHE_ENTRIES = 10_000
"""The entries of at most this many classes are cached, and the heads of as many lengths."""


class TableSums(Sums):
    """Counts of the rows of one shard."""

    def __init__(self) -> None:
        super().__init__()
        self._examples = 0
        self._classes: Counter[str] = Counter()

    def add(self, labels: Sequence[str], record: bytes) -> None:
        """Count a row that was written."""
        self.hashes += content_hash(record)
        self._examples += 1
        self._classes.update(labels)

    def facts(self) -> dict[str, Any]:
        """Return the counts of the rows."""
        return {
            "examples": self._examples,
            "classes": dict(self._classes),
            "misnamed": 0,
            "statistics": Statistics().to_json(),
        }


class ExamplesOfKind:
    """The rows of one plan file."""

    def __init__(self, range_plan: RangePlan) -> None:
        schema = Schema.from_json(range_plan.table)
        label, key = schema.label, schema.of_role("key")
        self._label = lru_cache(CACHE_ENTRIES)(partial(encode_label, label.name, label.type))
        self._key = partial(encode_label, key.name, key.type) if key else _no_entry
        self._head = lru_cache(CACHE_ENTRIES)(example_head)

    def read(self, rows: Iterable[Sequence[RawImage]]) -> Iterator[ReadImage]:
        """Yield the rows with their encoded columns; None for rows that are rejected."""
        for several in rows:
            for row in several:
                yield row, None if row.rejection else a2b_base64(row.content)

    def sums(self) -> TableSums:
        """Return the sums of a new shard."""
        return TableSums()

    def add(self, row: RawImage, raw: bytes | None, records: Writer, sums: TableSums) -> None:
        """Write a row as a record, or count it as rejected."""
        if raw is None:
            reason, advice, place = row.rejection
            sums.reject(place, Rejection(reason, advice))
            return
        entries = b"".join((raw, self._key(row.key), *map(self._label, row.labels)))
        records.write(self._head(len(entries)), entries, google_crc32c.value(entries))
        sums.add(row.labels, entries)


def _no_entry(_text: str) -> bytes:
    return b""
