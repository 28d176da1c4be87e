"""Find equal rows of a table, and what they mean: duplicates, leaks and contradictions.

The content of a row is a hash of its columns, so no row is read to compare it. Only a few rows are read to name groups.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.gate.equal_examples import EqualFacts, Numbered, in_order
from pipeline.plan.contents import ROWS_PER_RANGE, equal_contents, slices_by_part
from pipeline.plan.order import Order
from pipeline.snapshot.part import SPLITS, TRAIN
from pipeline.snapshot.raw_example import RawExample
from pipeline.system.progress import progress

MAX_NAMED = 50
"""One row names each of the first groups: this many, and as many leaks and contradictions. The dataset card shows them.
"""


def equal_rows(
    order: Order, values_of: Callable[[RawExample], str], lines: IO[bytes], rows_per_range: int = ROWS_PER_RANGE
) -> dict[str, Any]:
    """Write a line of `duplicates.jsonl` for each group of equal rows, in the order of their first rows.

    Rows of one group with the same split and label are one element of `images`, whose number is `rows`. The first
    groups have the key of their first row, and what `values_of` returns for it. Values may be personal data, so the
    facts have only keys.

    Returns:
        The facts `duplicates`, `contradictions` and `leaks`, in the form of `quality` in `dataset.json`.
    """
    facts = EqualFacts(order.examples)
    left = dict.fromkeys(("group", "leak", "contradiction"), MAX_NAMED)
    with progress("compare", sum(part.listed for part in order.parts), "rows") as advance:
        ranges = equal_contents(order.parts, order.rule, rows_per_range, advance)
        for first, line in in_order(_groups(rows[rows["size"] > 0], order, facts) for rows in ranges):
            # Most lines have one element and need not be parsed.
            if left["group"] or line.count(b'"rows"') > 1:
                row = json.loads(line)
                meanings = _meanings(row)
                if any(left[meaning] for meaning in meanings):
                    left |= {meaning: max(0, left[meaning] - 1) for meaning in meanings}
                    example = order.placed(first).example
                    row["images"] = [{**each, "path": example.key} for each in row["images"]]
                    if values := values_of(example):
                        row["values"] = values
                    facts.name(row)
                    line = json.dumps(row).encode("ascii") + b"\n"
            lines.write(line)
    return facts.to_json()


def _meanings(row: Mapping[str, Any]) -> list[str]:
    """Return what a group is: each is a group, and may be a leak or a contradiction."""
    images = row["images"]
    is_leak = len({each["split"] == TRAIN for each in images}) > 1
    is_contradiction = any(each["labels"] != images[0]["labels"] for each in images)
    return ["group", *["leak"] * is_leak, *["contradiction"] * is_contradiction]


def _groups(rows: NDArray[np.void], order: Order, facts: EqualFacts) -> Iterator[Numbered]:
    """Yield groups of equal rows, and count them. Rejected rows have no size and are left out before."""
    labels, sides = _sides(rows, order)
    contents, firsts, groups = np.unique(rows["content"], return_index=True, return_inverse=True)
    # The groups are numbered by their first rows.
    by_first = np.argsort(firsts)
    ranks = np.empty_like(by_first)
    ranks[by_first] = np.arange(len(by_first))
    width = len(SPLITS) * len(labels)
    found, counts = np.unique(ranks[groups] * width + sides, return_counts=True)
    sides, starts = found % width, np.flatnonzero(np.diff(found // width, prepend=-1))
    _count(facts, starts, counts, splits=sides // len(labels), labels=sides % len(labels))
    texts = {side: _text(SPLITS[side // len(labels)], labels[side % len(labels)]) for side in np.unique(sides).tolist()}
    numbers, names = rows["number"][firsts[by_first]].tolist(), contents[by_first].tolist()
    members = list(zip(sides.tolist(), counts.tolist(), strict=True))
    for rank, (begin, end) in enumerate(pairwise([*starts.tolist(), len(found)])):
        images = [
            f'{{"path": "{names[rank]:016x}", {texts[side]}, "rows": {count}}}' for side, count in members[begin:end]
        ]
        yield Numbered(numbers[rank], f'{{"kind": "equal", "images": [{", ".join(images)}]}}\n'.encode("ascii"))


def _sides(rows: NDArray[np.void], order: Order) -> tuple[list[str], NDArray[np.intp]]:
    """Return all labels, and a number for the split and the label of each row."""
    of_parts = [part.labels() for part in order.parts]
    labels = sorted(set().union(*of_parts))
    position = {label: number for number, label in enumerate(labels)}
    sides = np.empty(len(rows), np.intp)
    for number, some in slices_by_part(order.parts, rows):
        own = np.array([position[label] for label in of_parts[number]], np.intp)
        splits = order.splits_of_kinds(number, rows["kind"][some])
        sides[some] = splits * np.intp(len(labels)) + own[rows["label"][some]]
    return labels, sides


def _count(
    facts: EqualFacts,
    starts: NDArray[np.intp],
    counts: NDArray[np.intp],
    *,
    splits: NDArray[np.intp],
    labels: NDArray[np.intp],
) -> None:
    """Add groups to the facts. `starts` says where each group begins in the other arrays."""
    if not len(starts):
        return
    totals = np.add.reduceat(counts, starts)
    held_back = np.add.reduceat(np.where(splits != SPLITS.index(TRAIN), counts, 0), starts)
    is_contradiction = np.minimum.reduceat(labels, starts) != np.maximum.reduceat(labels, starts)
    facts.duplicates["images"] += int(totals.sum())
    facts.duplicates["groups"] += len(starts)
    facts.leaks["images"] += int(held_back[held_back < totals].sum())
    facts.contradictions["images"] += int(totals[is_contradiction].sum())
    facts.contradictions["groups"] += int(is_contradiction.sum())


def _text(split: str, label: str) -> str:
    """Return the split and the label of a row as fields of JSON. A row of a regression has no label."""
    return json.dumps({"split": split, "labels": [label] if label else []})[1:-1]
