"""Equal rows are numbered through all parts, and found one range of contents after another."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.contents import equal_contents
from pipeline.plan.copies import copies_in_earlier_parts
from pipeline.plan.order import Order
from pipeline.plan.sort import SplitRule
from pipeline.snapshot.part import PartLimits
from pipeline.snapshot.raw_example import RawExample
from tests.plan.test_order import image, ordered, snapshot_of

RULE = SplitRule(split_seed=0, validation_fraction=0.2, numbers_copies=True)


def rows_of(counts: dict[str, int]) -> list[RawExample]:
    """Return equal rows: those with one key are equal."""
    return [image(key) for key, count in counts.items() for _ in range(count)]


def flat(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


COUNTS = {"a": 1, "b": 9, "c": 2, "d": 1, "e": 25, "f": 3}


@pytest.mark.parametrize("rows_per_range", [1, 7, 1000])
@pytest.mark.parametrize("part_rows", [1, 4, 10, 100])
def test_each_copy_is_counted_once(tmp_path: Path, part_rows: int, rows_per_range: int):
    snapshot = snapshot_of(rows_of(COUNTS), tmp_path, PartLimits(part_rows))
    seen: Counter[int] = Counter()
    found = list(copies_in_earlier_parts(snapshot.parts, RULE, rows_per_range))
    assert len(found) == len(snapshot.parts)
    for part, earlier in zip(snapshot.parts, found, strict=True):
        hashes = part.columns()["order"].tolist()
        expected = [(row, seen[hash_]) for row, hash_ in enumerate(hashes) if seen[hash_]]
        assert [tuple(each) for each in earlier.tolist()] == expected
        seen.update(hashes)


@pytest.mark.parametrize("rows_per_range", [1, 7, 1000])
def test_rows_with_equal_contents_are_found(tmp_path: Path, rows_per_range: int):
    snapshot = snapshot_of(rows_of(COUNTS), tmp_path, PartLimits(6))
    numbers = [rows["number"].tolist() for rows in equal_contents(snapshot.parts, RULE, rows_per_range)]
    assert all(each == sorted(each) for each in numbers)
    # "a" is the first row, and "d" comes after 12 others.
    assert sorted(flat(numbers)) == [number for number in range(41) if number not in (0, 12)]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_order_of_equal_rows_does_not_depend_on_the_parts(tmp_path: Path, split: str):
    rows = rows_of({f"{number:03d}": 1 + number % 7 for number in range(200)})
    orders = []
    for part_rows in (10_000, 50, 3):
        order = Order(snapshot_of(rows, tmp_path, PartLimits(part_rows)), RULE)
        total = order.examples[split]
        orders.append(ordered(order, split, [0, total // 3, total // 2, total]))
    assert orders[0] == orders[1] == orders[2]
    keys = flat(orders[0])
    adjacent = sum(one == other for one, other in pairwise(keys))
    assert adjacent < len(keys) / 20
    # Without numbers, all copies follow each other.
    plain = Order(snapshot_of(rows, tmp_path, PartLimits(50)), SplitRule(0, 0.2))
    assert set(flat(ordered(plain, split, [0, total]))) == set(keys)


def test_a_part_after_other_ones_is_sorted_again(tmp_path: Path):
    """The numbers of its rows depend on the parts before it, and its name is that of its rows alone."""
    first = snapshot_of(rows_of({"a": 3, "b": 3}), tmp_path, PartLimits(3))
    alone = snapshot_of(rows_of({"b": 3}), tmp_path, PartLimits(3))
    assert alone.parts[0] == first.parts[1]
    after_itself = snapshot_of(rows_of({"b": 6}), tmp_path, PartLimits(3))
    assert after_itself.parts == [alone.parts[0]] * 2
    for snapshot, count in ((first, 6), (alone, 3), (after_itself, 6), (alone, 3)):
        order = Order(snapshot, RULE)
        keys = [key for split in ("train", "validation") for key in flat(ordered(order, split, [0, count]))]
        assert len(keys) == count
