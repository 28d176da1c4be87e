"""Rows of a table as examples of a shard: each carries its record."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from pipeline.dataset.content_hashes import content_hash
from pipeline.images.rejection import Rejection
from pipeline.records.tfrecord import Writer
from pipeline.sharding.examples import Sums
from pipeline.sharding.ranges import RangePlan
from pipeline.sharding.statistics import Statistics
from pipeline.snapshot.raw_image import content_of_line, from_line, only_label
from pipeline.system.progress import Advance

ROWS_AT_ONCE = 1024
"""This many rows are written together."""


class TableSums(Sums):
    """Counts of the rows of one shard."""

    def __init__(self) -> None:
        super().__init__()
        self._examples = 0
        self._classes: Counter[bytes] = Counter()

    def add(self, labels: Iterable[bytes], records: Sequence[bytes]) -> None:
        """Count rows that were written, by their labels as JSON."""
        self.hashes += b"".join(map(content_hash, records))
        self._examples += len(records)
        self._classes.update(labels)

    def facts(self) -> dict[str, Any]:
        """Return the counts of the rows."""
        return {
            "examples": self._examples,
            "classes": {json.loads(label): count for label, count in self._classes.items() if label},
            "misnamed": 0,
            "statistics": Statistics().to_json(),
        }


class ExamplesOfKind:
    """The rows of one plan file."""

    def __init__(self, range_plan: RangePlan) -> None:
        """There is nothing to prepare: each row carries its record."""

    def read(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the lines. They are parsed when they are written, many at a time."""
        return iter(lines)

    def sums(self) -> TableSums:
        """Return the sums of a new shard."""
        return TableSums()

    def write(self, rows: Iterable[bytes], records: Writer, sums: TableSums, advance: Advance) -> None:
        """Write rows as records, or count them as rejected."""
        rest = iter(rows)
        while lines := list(islice(rest, ROWS_AT_ONCE)):
            contents = list(map(content_of_line, lines))
            accepted = [line for line, content in zip(lines, contents, strict=True) if content]
            written = [content for content in contents if content]
            records.write_framed(written)
            sums.add(map(only_label, accepted), written)
            for line, content in zip(lines, contents, strict=True):
                if not content:
                    reason, advice, place = from_line(line).rejection
                    sums.reject(place, Rejection(reason, advice))
            advance(len(lines))
