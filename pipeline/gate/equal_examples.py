"""Find equal examples among all parts of a snapshot, and what they mean: duplicates, leaks and contradictions.

`pipeline/plan/contents.py` finds examples with equal contents, one range of contents after another. Memory does not
grow with the number of examples. Images with equal contents agree in size and CRC32C. Only these are read, because
different images may agree in both, too. `equal_rows.py` does the same for a table.
"""

import heapq
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from pipeline.gate.duplicates import MAX_NAMES, READERS, GroupFacts, candidates, confirm
from pipeline.plan.contents import ROWS_PER_RANGE, equal_contents
from pipeline.plan.order import Order
from pipeline.snapshot.part import SPLITS
from pipeline.snapshot.raw_reader import RawReader
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress


def equal_examples(
    order: Order, reader: RawReader, lines: IO[bytes], rows_per_range: int = ROWS_PER_RANGE
) -> dict[str, Any]:
    """Write a line of `duplicates.jsonl` for each group of equal images, in the order of their first images.

    Returns:
        The facts `duplicates`, `contradictions` and `leaks`, in the form of `quality` in `dataset.json`.
    """
    facts = EqualFacts(order.examples)
    ranges = equal_contents(order.parts, order.rule, rows_per_range)
    for numbered in in_order(_groups(rows, order, reader) for rows in ranges):
        facts.add(json.loads(numbered.line))
        lines.write(numbered.line)
    return facts.to_json()


class Numbered(NamedTuple):
    """A line of `duplicates.jsonl`, and the number of its first example."""

    first: int
    line: bytes

    @classmethod
    def read(cls, line: bytes) -> "Numbered":
        """Return what `in_order` stored."""
        first, _, rest = line.partition(b"\t")
        return cls(int(first), rest)


def in_order(ranges: Iterable[Iterable[Numbered]]) -> Iterator[Numbered]:
    """Yield the lines of several ranges by their numbers, which ascend within each range."""
    with ExitStack() as stack:
        found = []
        for of_range in ranges:
            file = stack.enter_context(tempfile.TemporaryFile(prefix="tenfold-"))
            file.writelines(b"%d\t%b" % numbered for numbered in of_range)
            file.seek(0)
            found.append(map(Numbered.read, file))
        yield from heapq.merge(*found)


def _groups(rows: NDArray[np.void], order: Order, reader: RawReader) -> Iterator[Numbered]:
    """Yield the groups of images with equal bytes, of some images with equal contents."""
    numbers, sizes = rows["number"].tolist(), rows["size"].tolist()
    with progress("compare", len(rows), "images") as advance:

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
        line = json.dumps({"kind": "equal", "images": images}).encode("ascii")
        yield Numbered(numbers[group[0]], line + b"\n")


class EqualFacts(GroupFacts):
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
        if any(set(each["labels"]) != set(images[0]["labels"]) for each in images):
            self.contradictions["images"] += len(images)
            self.contradictions["groups"] += 1

    @override
    def name(self, row: Mapping[str, Any]) -> None:
        super().name(row)
        images = row["images"]
        other = next((each for each in images if set(each["labels"]) != set(images[0]["labels"])), None)
        if other and len(self.contradictions["pairs"]) < MAX_NAMES:
            pair = (images[0], other)
            self.contradictions["pairs"].append(
                {"paths": [each["path"] for each in pair], "labels": [each["labels"] for each in pair]}
            )

    def to_json(self) -> dict[str, Any]:
        """Return the facts in the form of `quality` in `dataset.json`."""
        return {"duplicates": self.duplicates, "contradictions": self.contradictions, "leaks": self.leaks}
