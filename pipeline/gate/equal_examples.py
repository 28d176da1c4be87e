"""Find equal examples among all parts of a snapshot, and what they mean: duplicates, leaks and contradictions.

`pipeline/plan/contents.py` finds examples with equal contents. Images with equal contents agree in size and CRC32C.
Only these are read, because others may agree in both, too. The content of a row of a table is a hash of all of it, so
no row is read. One range of contents after another is searched. Memory does not grow with the number of examples.
"""

import heapq
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import groupby, islice
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from pipeline.gate.duplicates import MAX_NAMES, READERS, GroupFacts, candidates, confirm, count_of
from pipeline.plan.contents import ROWS_PER_RANGE, equal_contents, rows_by_part
from pipeline.plan.order import Order
from pipeline.snapshot.part import SPLITS
from pipeline.snapshot.raw_example import RawExample
from pipeline.snapshot.raw_reader import RawReader
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

MAX_NAMED = 50
"""This many groups of rows of a table are named by a row that is read. The dataset card shows as many."""


def equal_examples(
    order: Order,
    reader: RawReader | None,
    lines: IO[bytes],
    rows_per_range: int = ROWS_PER_RANGE,
    name_of: Callable[[RawExample], str] = lambda example: example.key,
) -> dict[str, Any]:
    """Write a line of `duplicates.jsonl` for each group of equal examples, in the order of their first examples.

    Args:
        order: The order of the examples.
        reader: Reads images with equal contents. None: equal contents are enough, as for a table.
        lines: The file.
        rows_per_range: A range of contents has about this many rows.
        name_of: Returns what a person looks for to find an example of a kind that is not read.

    Returns:
        The facts `duplicates`, `contradictions` and `leaks`, in the form of `quality` in `dataset.json`.
    """
    facts = _Facts(order.examples)
    with ExitStack() as stack:
        found = []
        for rows in equal_contents(order.parts, order.rule, rows_per_range):
            file = stack.enter_context(tempfile.TemporaryFile(prefix="tenfold-"))
            numbered = _counted_groups(rows, order) if reader is None else _read_groups(rows, order, reader)
            file.writelines(b"%d\t%b\n" % (first, json.dumps(row).encode("ascii")) for first, row in numbered)
            file.seek(0)
            found.append(map(_Numbered.read, file))
        merged = heapq.merge(*found)
        groups = _named(merged, order, name_of) if reader is None else map(_Numbered.loaded, merged)
        for row, line in groups:
            facts.add(row)
            lines.write(line)
    return {"duplicates": facts.duplicates, "contradictions": facts.contradictions, "leaks": facts.leaks}


class _Numbered(NamedTuple):
    """A line of `duplicates.jsonl`, and the number of its first example."""

    first: int
    line: bytes

    @classmethod
    def read(cls, line: bytes) -> "_Numbered":
        first, _, rest = line.partition(b"\t")
        return cls(int(first), rest)

    def loaded(self) -> tuple[dict[str, Any], bytes]:
        return json.loads(self.line), self.line


def _named(
    numbered: Iterable[_Numbered], order: Order, name_of: Callable[[RawExample], str]
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield groups of rows. The first ones, and the first ones of several splits or labels, are named by a row."""
    left = mixed_left = MAX_NAMED
    for each in numbered:
        row, line = each.loaded()
        is_mixed = len(row["images"]) > 1
        if left or (is_mixed and mixed_left):
            left, mixed_left = max(0, left - 1), max(0, mixed_left - is_mixed)
            name = name_of(order.placed(each.first).example)
            row["images"] = [{**images, "path": name} for images in row["images"]]
            line = json.dumps(row).encode("ascii") + b"\n"
        yield row, line


def _read_groups(rows: NDArray[np.void], order: Order, reader: RawReader) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of the first image of each group of images whose bytes are equal, and the group."""
    numbers, sizes = rows["number"].tolist(), rows["size"].tolist()
    with progress("compare", len(rows)) as advance:

        def read(index: int) -> bytes:
            advance(1)
            return reader.read(order.placed(numbers[index]).example)

        groups = confirm(candidates(rows["content"]), read, sizes.__getitem__)
    placed = ordered_map(order.placed, (numbers[index] for group in groups for index in group), READERS)
    for group in groups:
        images = [
            {"path": example.key, "split": SPLITS[split], "labels": list(example.labels)}
            for example, split in islice(placed, len(group))
        ]
        yield numbers[group[0]], {"kind": "equal", "images": images}


def _counted_groups(rows: NDArray[np.void], order: Order) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of the first row of each group of equal rows, and how many rows have which split and label."""
    rows = rows[rows["size"] > 0]  # Others are rejected.
    of_parts = [part.labels() for part in order.parts]
    labels = sorted(set().union(*of_parts))
    position = {label: number for number, label in enumerate(labels)}
    sides = np.empty(len(rows), np.intp)
    """A number for the split and the label of each row."""
    for number, some, columns in rows_by_part(order.parts, rows):
        own = np.array([position[label] for label in of_parts[number]], np.intp)
        sides[some] = order.splits_of(number, columns) * np.intp(len(labels)) + own[columns["label"]]
    contents, firsts, groups = np.unique(rows["content"], return_index=True, return_inverse=True)
    # The groups are numbered by their first rows.
    by_first = np.argsort(firsts)
    ranks = np.empty_like(by_first)
    ranks[by_first] = np.arange(len(by_first))
    width = len(SPLITS) * len(labels)
    found, counts = np.unique(ranks[groups] * width + sides, return_counts=True)
    members = zip((found // width).tolist(), (found % width).tolist(), counts.tolist(), strict=True)
    numbers, names = rows["number"][firsts[by_first]].tolist(), contents[by_first].tolist()
    for rank, of_group in groupby(members, lambda member: member[0]):
        images = [
            {
                "path": f"{names[rank]:016x}",
                "split": SPLITS[side // len(labels)],
                "labels": [label] if (label := labels[side % len(labels)]) else [],
                "rows": count,
            }
            for _, side, count in of_group
        ]
        yield numbers[rank], {"kind": "equal", "images": images}


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
            self.contradictions["images"] += count_of(images)
            self.contradictions["groups"] += 1
            if len(self.contradictions["pairs"]) < MAX_NAMES:
                pair = (images[0], other)
                self.contradictions["pairs"].append(
                    {"paths": [each["path"] for each in pair], "labels": [each["labels"] for each in pair]}
                )
