"""Rows of a table as examples of a shard: each carries its record."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipeline.dataset.content_hashes import hashes_of
from pipeline.gate.statistics import Statistics
from pipeline.images.rejection import Rejection
from pipeline.plan.examples import Sums, in_blocks
from pipeline.plan.range_plan import RangePlan
from pipeline.records.tfrecord import Writer
from pipeline.snapshot.raw_example import from_line, group_of_line, only_label, record_of_line
from pipeline.system.progress import Advance

BYTES_AT_ONCE = 1_000_000
"""Rows of about this many bytes are written together."""


class TableSums(Sums):
    """Counts of the rows of one shard."""

    def __init__(self) -> None:
        super().__init__()
        self._examples = 0
        self._classes: Counter[bytes] = Counter()

    def add(self, labels: Iterable[bytes], groups: Iterable[bytes] | None, records: Sequence[bytes]) -> None:
        """Count rows that were written, by their labels and groups as JSON. None if no column states groups."""
        self.hashes += hashes_of(records, groups)
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


class RowExamples:
    """The rows of one plan file."""

    def __init__(self, range_plan: RangePlan) -> None:
        """Each row carries its record, so only its group may have to be found."""
        columns = range_plan.table.get("columns", ())
        self._has_groups = any(column["role"] == "group" for column in columns)

    def read(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the lines. They are parsed when they are written, many at a time."""
        return iter(lines)

    def sums(self) -> TableSums:
        """Return the sums of a new shard."""
        return TableSums()

    def write(self, rows: Iterable[bytes], records: Writer, sums: TableSums, advance: Advance) -> None:
        """Write rows as records, or count them as rejected."""
        for lines in in_blocks(rows, len, BYTES_AT_ONCE):
            contents = list(map(record_of_line, lines))
            accepted = [line for line, content in zip(lines, contents, strict=True) if content]
            written = [content for content in contents if content]
            records.write_framed(written)
            groups = map(group_of_line, accepted) if self._has_groups else None
            sums.add(map(only_label, accepted), groups, written)
            for line in [line for line, content in zip(lines, contents, strict=True) if not content]:
                reason, advice, place = from_line(line).rejection
                sums.reject(place, Rejection(reason, advice))
            advance(len(lines))
