"""Equal rows are counted by arrays. The counts are those of a slow, simple definition."""

import io
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from pipeline.gate.equal_rows import equal_rows
from pipeline.plan.order import Order
from pipeline.plan.sort import SplitRule
from pipeline.snapshot.part import Part, PartLimits
from pipeline.snapshot.raw_example import RawExample
from tests.plan.test_order import image, snapshot_of

RULE = SplitRule(split_seed=0, validation_fraction=0.2, numbers_copies=True)


def rows_of(count: int, contents: int) -> list[RawExample]:
    """Return rows with few contents. Some state their split, and some have another label than their equals."""
    return [
        image(f"{number:03d}", ("", "", "test")[number % 3], crc32c=1 + number % contents, label="abc"[number % 7 % 3])
        for number in range(count)
    ]


@pytest.mark.parametrize("rows_per_range", [3, 20, 1000])
@pytest.mark.parametrize("part_rows", [2, 30, 1000])
def test_equal_rows_are_counted_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_rows: int, rows_per_range: int
):
    rows = [*rows_of(100, 31), image("empty", crc32c=1)._replace(size=0)]
    order = Order(snapshot_of(rows, tmp_path, PartLimits(part_rows)), RULE)
    groups: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows[:-1]):
        groups[row.crc32c].append(number)
    equal = [members for members in groups.values() if len(members) > 1]
    splits = [("train", "validation", "test")[order.placed(number).split] for number in range(100)]
    lines = io.BytesIO()
    # The contents have all that is compared. Otherwise, each range would read all parts.
    monkeypatch.delattr(Part, "columns")
    facts = equal_rows(order, lambda row: f"row {row.key}", lines, rows_per_range)
    found = [json.loads(line)["images"] for line in lines.getvalue().splitlines()]
    assert [each[0]["path"] for each in found] == [f"{members[0]:03d}" for members in equal]
    values = [json.loads(line)["values"] for line in lines.getvalue().splitlines()]
    assert values == [f"row {members[0]:03d}" for members in equal]
    for images, members in zip(found, equal, strict=True):
        counts = Counter((splits[number], rows[number].labels[0]) for number in members)
        assert {(each["split"], *each["labels"]): each["rows"] for each in images} == counts
    leaks = [members for members in equal if len({splits[number] == "train" for number in members}) == 2]
    mixed = [members for members in equal if len({rows[number].labels[0] for number in members}) > 1]
    assert leaks
    assert mixed
    assert facts["duplicates"] == {"images": sum(map(len, equal)), "groups": len(equal)}
    assert facts["leaks"]["images"] == sum(splits[number] != "train" for members in leaks for number in members)
    assert facts["contradictions"]["images"] == sum(map(len, mixed))
    assert facts["contradictions"]["groups"] == len(mixed)
    assert (facts["contradictions"]["of"], len(facts["contradictions"]["pairs"])) == (101, min(20, len(mixed)))


def test_late_contradictions_are_named_after_many_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.gate.equal_rows.MAX_NAMED", 2)
    rows = [image(f"{number:03d}", ("test", "")[number % 2], crc32c=1 + number // 2) for number in range(60)]
    rows += [image(f"{number:03d}", crc32c=1000, label="ab"[number % 2]) for number in (70, 71)]
    order = Order(snapshot_of(rows, tmp_path, PartLimits(50)), SplitRule(0, 0.0001, numbers_copies=True))
    read: list[str] = []
    facts = equal_rows(order, lambda row: read.append(row.key) or row.key, io.BytesIO())  # type: ignore[func-returns-value]
    assert read == ["000", "002", "070"]
    assert facts["contradictions"]["pairs"] == [{"paths": ["070", "070"], "labels": [["a"], ["b"]]}]
