"""Groups on both sides of a stated split are counted as a slow, simple definition does."""

from pathlib import Path

import pytest

from pipeline.gate.group_leaks import with_leaks_by_group
from pipeline.plan.order import Order
from pipeline.plan.sort import SplitRule
from pipeline.snapshot.part import PartLimits
from tests.plan.test_order import image, snapshot_of

NO_LEAKS = {"images": 0, "of": 0, "names": []}


@pytest.mark.parametrize("rows_per_range", [3, 1000])
@pytest.mark.parametrize("part_rows", [4, 1000])
def test_groups_on_both_sides_are_counted_as_one_by_one(tmp_path: Path, part_rows: int, rows_per_range: int):
    """Some examples have no group, some are equal to a training example, and some are rejected without being read."""
    rows = [
        image(f"{number:03d}", ("", "", "test")[number % 3], f"g{number % 29}" * (number % 5 > 0), 1 + number % 67)
        for number in range(100)
    ]
    rows += [image("rejected", "test", "g1")._replace(crc32c=None), image("alone", "test", "g-alone")]
    rule = SplitRule(split_seed=0, validation_fraction=0.2)
    rows.sort(key=lambda row: row.key)
    order = Order(snapshot_of(rows, tmp_path, PartLimits(part_rows)), rule)
    is_training = [order.placed(number).split == 0 for number in range(len(rows))]
    training = [row for row, trains in zip(rows, is_training, strict=True) if trains]
    groups, contents = {row.group for row in training}, {row.crc32c for row in training}
    leaked = [
        row
        for row, trains in zip(rows, is_training, strict=True)
        if not trains and row.crc32c and row.group and row.group in groups and row.crc32c not in contents
    ]
    assert leaked
    found = with_leaks_by_group({**NO_LEAKS, "images": 4, "names": [["a", "b"]]}, order, rows_per_range)
    assert (found["images"], found["only_by_group"]) == (4 + len(leaked), len(leaked))
    assert found["names"][0] == ["a", "b"]
    by_key = {row.key: row for row in rows}
    pairs = [(by_key[one], by_key[other]) for one, other in found["names"][1:]]
    assert {other.group for _, other in pairs} <= {row.group for row in leaked}
    assert all(one in training and other in leaked and one.group == other.group for one, other in pairs)
    assert len(pairs) == min(19, len({row.group for row in leaked}))


def test_the_groups_of_a_split_of_tenfold_are_on_one_side(tmp_path: Path):
    rows = [image(f"{number:03d}", group=f"g{number % 9}") for number in range(60)]
    order = Order(snapshot_of(rows, tmp_path, PartLimits(7)), SplitRule(split_seed=0, validation_fraction=0.2))
    assert not order.states_splits
    assert with_leaks_by_group(NO_LEAKS, order)["images"] == 0
