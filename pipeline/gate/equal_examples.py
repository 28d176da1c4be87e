"""Find equal examples among all parts of a snapshot, and what they mean: duplicates, leaks and contradictions.

The contents of a sorted part are hashes of the size and CRC32C of each row: see `pipeline/plan/sort.py`. Equal
examples have equal hashes, so they are in the same range of hashes in all parts. One range after another is searched.
Only examples with equal hashes are read. Memory does not grow with the number of examples.
"""

import heapq
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from pipeline.gate.duplicates import MAX_NAMES, READERS, Group, GroupFacts, candidates, confirm
from pipeline.plan.order import Order
from pipeline.plan.sort import read_contents
from pipeline.records.example import entries_of
from pipeline.records.frames import data_of
from pipeline.snapshot.part import SPLITS
from pipeline.snapshot.raw_example import RawExample
from pipeline.snapshot.raw_reader import RawReader
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

ROWS_PER_RANGE = 8_000_000
"""A range of contents has about this many rows. Comparing them needs 0.4 GB."""
MAX_RANGES = 500
"""Each range may have a temporary file, and a process may open about 1,000 files."""
_log = logging.getLogger(__name__)
_NUMBERED = np.dtype([("content", "<u8"), ("number", "<i8"), ("size", "<u4")])


def equal_examples(
    order: Order,
    reader: RawReader,
    lines: IO[bytes],
    rows_per_range: int = ROWS_PER_RANGE,
    max_compared: int | None = None,
) -> dict[str, Any]:
    """Write a line of `duplicates.jsonl` for each group of equal examples, in the order of their first examples.

    At most `max_compared` of each range are compared; None means all.

    Returns:
        The facts `duplicates`, `contradictions` and `leaks`, in the form of `quality` in `dataset.json`.
    """
    facts = _Facts(order.examples)
    with ExitStack() as stack:
        found = []
        for alike in _candidates(order, rows_per_range):
            alike = alike if max_compared is None else _limited(alike, max_compared)
            file = stack.enter_context(tempfile.TemporaryFile(prefix="tenfold-"))
            _write_groups(alike, order, reader, file)
            file.seek(0)
            found.append(map(_Numbered.read, file))
        for numbered in heapq.merge(*found):
            facts.add(json.loads(numbered.line))
            lines.write(numbered.line)
    return {"duplicates": facts.duplicates, "contradictions": facts.contradictions, "leaks": facts.leaks}


class _Numbered(NamedTuple):
    """A line of `duplicates.jsonl`, and the number of its first example."""

    first: int
    line: bytes

    @classmethod
    def read(cls, line: bytes) -> "_Numbered":
        first, _, rest = line.partition(b"\t")
        return cls(int(first), rest)


class _Candidates(NamedTuple):
    """Groups of examples that agree in size and CRC32C."""

    groups: list[Group]
    """Numbers of the examples in the snapshot."""
    sizes: Mapping[int, int]
    """Size of each of these examples by its number."""


def _candidates(order: Order, rows_per_range: int) -> Iterator[_Candidates]:
    """Yield the groups of one range of contents after another, if it has any."""
    ranges = min(max(1, -(-sum(order.compared) // rows_per_range)), MAX_RANGES)
    # The contents are hashes, so ranges of equal width have about equally many rows.
    begins = np.array([number * 2**64 // ranges for number in range(1, ranges)], np.uint64)
    bounds = []
    for part, compared in zip(order.parts, order.compared, strict=True):
        contents = read_contents(part, order.rule, 0, compared)["content"].copy()
        bounds.append([0, *np.searchsorted(contents, begins).tolist(), compared])
    for number in range(ranges):
        rows = _numbered(order, [(ends[number], ends[number + 1]) for ends in bounds])
        groups = candidates(rows["content"])
        if groups:
            members = np.concatenate(groups)
            sizes = dict(zip(rows["number"][members].tolist(), rows["size"][members].tolist(), strict=True))
            yield _Candidates([rows["number"][group].astype(np.intp) for group in groups], sizes)


def _limited(alike: _Candidates, limit: int) -> _Candidates:
    """Return the first groups, of at most `limit` members together, and warn if there are more."""
    ends = np.cumsum([len(group) for group in alike.groups])
    kept = int(np.searchsorted(ends, limit, side="right"))
    if kept == len(alike.groups):
        return alike
    compared = int(ends[kept - 1]) if kept else 0
    _log.warning(
        "%d rows seem to be equal to others: %d of them are compared, and only these count as duplicates",
        ends[-1],
        compared,
    )
    return _Candidates(alike.groups[:kept], alike.sizes)


def _numbered(order: Order, bounds: Sequence[tuple[int, int]]) -> NDArray[np.void]:
    """Return the contents between two bounds in each part, with numbers that count through all parts."""
    rows, filled = np.empty(sum(end - begin for begin, end in bounds), _NUMBERED), 0
    read = ordered_map(
        lambda item: read_contents(item[0], order.rule, item[1][0], item[1][1] - item[1][0]),
        zip(order.parts, bounds, strict=True),
        READERS,
    )
    for first, contents in zip(order.first_numbers, read, strict=True):
        target = rows[filled : filled + len(contents)]
        target["content"], target["size"] = contents["content"], contents["size"]
        target["number"] = contents["row"] + first
        filled += len(contents)
    return rows


def _write_groups(alike: _Candidates, order: Order, reader: RawReader, file: IO[bytes]) -> None:
    with progress("compare", len(alike.sizes)) as advance:

        def read(number: int) -> bytes:
            advance(1)
            return content_of_row(order.placed(number).example, reader)

        groups = confirm(alike.groups, read, alike.sizes.__getitem__)
    placed = ordered_map(order.placed, (int(number) for group in groups for number in group), READERS)
    for group in groups:
        images = [
            {"path": example.key, "split": SPLITS[split], "labels": list(example.labels)}
            for example, split in islice(placed, len(group))
        ]
        row = {"kind": "equal", "images": images}
        file.write(b"%d\t%b\n" % (group[0], json.dumps(row).encode("ascii")))


def content_of_row(row: RawExample, reader: RawReader) -> bytes:
    """Return what is compared: the columns of a row of a table without key and class, or the file of an image."""
    return entries_of(data_of(row.content))[: row.size] if row.content else reader.read(row)


class _Facts(GroupFacts):
    """The facts about groups of equal examples. A group whose examples have different labels is a contradiction."""

    def __init__(self, examples: Mapping[str, int]) -> None:
        super().__init__(examples)
        of = sum(examples.values())
        self.contradictions: dict[str, Any] = {"images": 0, "groups": 0, "of": of, "pairs": []}

    @override
    def add(self, row: Mapping[str, Any]) -> None:
        super().add(row)
        images = row["images"]
        # The order of the labels does not matter.
        other = next((each for each in images if set(each["labels"]) != set(images[0]["labels"])), None)
        if other:
            self.contradictions["images"] += len(images)
            self.contradictions["groups"] += 1
            if len(self.contradictions["pairs"]) < MAX_NAMES:
                pair = (images[0], other)
                self.contradictions["pairs"].append(
                    {"paths": [each["path"] for each in pair], "labels": [each["labels"] for each in pair]}
                )
