"""The order of all images is the same in however many parts the snapshot is, and equal to a slow, simple definition."""

import io
import json
import random
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import FileSystemError
from pipeline.gate.equal_examples import equal_examples
from pipeline.plan import order as orders
from pipeline.plan.assign import salted
from pipeline.plan.merge import MIN_ROWS, merged_lines
from pipeline.plan.order import ROWS_PER_BIN, Order
from pipeline.plan.sort import SortedPart, SplitRule, line_order, sorted_part
from pipeline.snapshot.part import COLUMNS, SPLITS, Arrange, PartLimits, blocks_of, hash_texts, rows_of, write_parts
from pipeline.snapshot.raw_example import Origin, RawExample, content_of, from_line, to_line
from pipeline.snapshot.raw_reader import RawReader
from pipeline.snapshot.snapshot import Snapshot
from pipeline.sources.key_range import bytes_of

RULE = SplitRule(split_seed=0, validation_fraction=0.2)


def hash_text(text: str) -> int:
    return int(hash_texts([text])[0])


def image(key: str, split: str = "", group: str = "", crc32c: int = 0, label: str = "a") -> RawExample:
    return RawExample(key, [label], split, 10, crc32c or hash_text(key) % 2**32, group, [], 1)


def images(count: int, **fields: Any) -> list[RawExample]:
    return [image(f"a/{number:05d}", **fields) for number in range(count)]


def snapshot_of(
    rows: Sequence[RawExample], folder: Path, limits: PartLimits, arrange: Arrange | None = None
) -> Snapshot:
    ordered = sorted(rows, key=lambda row: bytes_of(row.key))
    labels = sorted({row.labels[0] for row in rows})
    return Snapshot(
        source_uri="/nowhere",
        origin=Origin(str(folder)),
        kind="images",
        source_kind="folder",
        parts=list(write_parts(blocks_of(ordered), folder, limits, arrange)),
        started_ns=0,
        fingerprint="f",
        listed=len(rows),
        bytes=10 * len(rows),
        labels=labels,
        stated_labels=[],
        texts={},
        classes=dict.fromkeys(labels, 1),
        multi_label=False,
        has_boxes=False,
        box_labels=[],
        skipped={},
        skipped_suffixes={},
    )


def hashed(number: int, purpose: str, seed: int) -> int:
    return int(salted(np.array([number], np.uint64), purpose, seed)[0])


def slowly_ordered(rows: Sequence[RawExample], rule: SplitRule) -> dict[str, list[str]]:
    """Return the keys of each split in order: the definition, without parts and arrays."""
    groups = [hash_text(row.group) if row.group else row.size << 32 | row.crc32c for row in rows]
    sides = [hashed(group, "split", rule.split_seed) for group in groups]
    splits = [row.split or "train" for row in rows]
    for number, side in enumerate(sides):
        if splits[number] == "train" and 2**64 - 1 - side < min(rule.test_fraction * 2**64, 2**64 - 1):
            splits[number] = "test"
    free = [split != "test" for split in splits]
    if all(row.split != "validation" for row in rows) and any(free):
        limit = min(rule.validation_fraction * 2**64, 2**64 - 1)
        lowest = min(side for side, is_free in zip(sides, free, strict=True) if is_free)
        is_low = [side < limit for side in sides]
        if not any(low and is_free for low, is_free in zip(is_low, free, strict=True)):
            is_low = [side == lowest for side in sides]
        splits = [
            "validation" if low and is_free else split for low, is_free, split in zip(is_low, free, splits, strict=True)
        ]
    placed = sorted(
        (hashed(hash_text(row.key), "order", rule.split_seed), bytes_of(row.key), row.key, split)
        for row, split in zip(rows, splits, strict=True)
    )
    return {name: [key for *_, key, split in placed if split == name] for name in SPLITS}


def ordered(order: Order, split: str, cuts: Sequence[int]) -> list[list[str]]:
    """Return the keys between each cut and the next, as a task gets them."""
    return [[from_line(line).key for line in merged_lines(pieces)] for pieces in order.pieces(split, cuts)]


CASES: dict[str, tuple[list[RawExample], SplitRule]] = {
    "one image": (images(1), RULE),
    "few images, of which no hash is low": (images(3), SplitRule(0, 0.0001)),
    "another seed": (images(60), SplitRule(5, 0.5)),
    "none held back by the fraction": (images(60), SplitRule(0, 0)),
    "all held back by the fraction": (images(30), SplitRule(0, 1)),
    "a group is held back": ([image(f"{at:03d}", group=f"g{at % 3}") for at in range(30)], SplitRule(0, 0)),
    "validation stated by one": ([*images(50), image("b/1", "validation")], RULE),
    "test and train stated": ([image(f"{at:03d}", ("train", "test", "")[at % 3]) for at in range(60)], RULE),
    "all stated": ([image(f"{at:03d}", SPLITS[at % 3]) for at in range(60)], RULE),
    "a test fraction": (images(60), SplitRule(0, 0.2, 0.3)),
    "a test fraction, few images": (images(3), SplitRule(0, 0.0001, 0.5)),
    "a test fraction of all": (images(30), SplitRule(0, 0.2, 1)),
    "a test fraction beside stated validation": (
        [*images(50), *(image(f"b/{at}", "validation") for at in range(20))],
        SplitRule(0, 0.2, 0.3),
    ),
    "a test fraction of groups": (
        [image(f"{at:03d}", group=f"g{at % 20}") for at in range(100)],
        SplitRule(1, 0.2, 0.3),
    ),
    "only test": (images(9, split="test"), RULE),
    "equal contents stay together": ([image(f"{at:03d}", crc32c=1 + at % 5) for at in range(40)], RULE),
    "names": ([image(f"{chr(at)}/\udcff{at}\n\r") for at in (*range(32, 48), 127, 160, 233, 0x4E00)], RULE),
}


@pytest.mark.parametrize(
    "part_rows", [pytest.param(1, marks=pytest.mark.long), 7, pytest.param(10_000, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("case", CASES)
def test_the_order_does_not_depend_on_the_parts(case: str, part_rows: int, tmp_path: Path):
    rows, rule = CASES[case]
    assert_ordered(rows, rule, PartLimits(part_rows), tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_lines_that_a_part_stores_in_order_are_not_copied(case: str, tmp_path: Path):
    """With another rule, they are."""
    rows, rule = CASES[case]
    arrange = partial(line_order, rule=rule)
    assert_ordered(rows, rule, PartLimits(7), tmp_path, arrange)
    assert not list(tmp_path.glob("*.lines"))
    other = SplitRule(99, 0.5)
    assert_ordered(rows, other, PartLimits(7), tmp_path, arrange)
    assert len(rows) == 1 or list(tmp_path.glob("*.lines"))


@pytest.mark.parametrize(
    ("free", "at_once"), [(0, 1), (899_999_999, 2), (10**12, 4)], ids=["no memory", "memory for two", "four cores"]
)
def test_as_many_parts_are_sorted_at_once_as_memory_allows(
    free: int, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With more, `plan` would be killed on a machine with little memory."""
    together, threads = threading.Barrier(at_once, timeout=60), set()

    def sort(*arguments: Any) -> SortedPart:
        threads.add(threading.get_ident())
        together.wait()
        return sorted_part(*arguments)

    monkeypatch.setattr(orders, "sorted_part", sort)
    monkeypatch.setattr(orders, "usable_cores", lambda: 4)
    monkeypatch.setattr(orders, "available_memory", lambda: free, raising=False)
    assert_ordered(images(12), RULE, PartLimits(1), tmp_path)
    assert len(threads) == at_once


def test_rows_keep_their_numbers_whatever_the_order_of_their_lines(tmp_path: Path):
    rows = images(30)
    arranged = snapshot_of(rows, tmp_path, PartLimits(10), partial(line_order, rule=RULE))
    found = [part.row(number).example.key for part in arranged.parts for number in range(part.listed)]
    assert found == [row.key for row in rows]
    assert [row.key for row in rows_of(arranged.parts)] != found
    assert sorted(row.key for row in rows_of(arranged.parts)) == found


def test_parts_of_equal_lines_and_other_columns_have_other_names(tmp_path: Path):
    """The rows came in another order. A part that is in use must not change."""
    arrange = partial(line_order, rule=RULE)
    names = set()
    for rows in (images(10), images(10)[::-1]):
        [part] = write_parts(blocks_of(rows), tmp_path, PartLimits(10), arrange)
        names.add(part.rows)
    assert len(names) == 2
    assert len({Path(name).read_bytes() for name in names}) == 1


def test_the_order_of_many_images(tmp_path: Path):
    """There are several bins of hashes, and pieces of several reads."""
    assert_ordered(images(3 * ROWS_PER_BIN), RULE, PartLimits(1000), tmp_path)


def assert_ordered(
    rows: list[RawExample], rule: SplitRule, limits: PartLimits, tmp_path: Path, arrange: Arrange | None = None
) -> None:
    expected = slowly_ordered(rows, rule)
    order = Order(snapshot_of(rows, tmp_path, limits, arrange), rule)
    assert order.examples == {split: len(keys) for split, keys in expected.items()}
    for split, keys in expected.items():
        cuts = sorted(random.Random(0).choices(range(len(keys) + 1), k=5))
        cuts = [0, *cuts, len(keys)]
        assert ordered(order, split, cuts) == [keys[start:end] for start, end in pairwise(cuts)]
        assert [row.key for row in order.first_rows(split, 3)] == keys[:3]
        assert order.classes[split].total() == len(keys)
    split_of = {key: split for split, keys in expected.items() for key in keys}
    placed = [order.placed(number) for number in range(0, len(rows), 1 + len(rows) // 20)]
    assert [SPLITS[each.split] for each in placed] == [split_of[each.example.key] for each in placed]


def test_added_images_do_not_move_others_between_splits(tmp_path: Path):
    held_back = []
    for count in (400, 600):
        order = Order(snapshot_of(images(count), tmp_path, PartLimits(70)), RULE)
        held_back.append(set(ordered(order, "validation", [0, order.examples["validation"]])[0]))
    assert {key for key in held_back[1] if key < "a/00400"} == held_back[0]
    assert 60 <= len(held_back[0]) <= 100  # near 80 of 400


def test_another_test_fraction_moves_images_only_between_training_and_test(tmp_path: Path):
    found = []
    for fraction in (0.0, 0.1, 0.3):
        rule = SplitRule(0, 0.2, fraction)
        order = Order(snapshot_of(images(1000), tmp_path, PartLimits(170)), rule)
        splits = {split: set(ordered(order, split, [0, order.examples[split]])[0]) for split in ("validation", "test")}
        assert abs(len(splits["test"]) - 1000 * fraction) < 50
        found.append(splits)
    assert found[0]["validation"] == found[1]["validation"] == found[2]["validation"]
    assert found[1]["test"] < found[2]["test"]


def test_a_part_ends_at_its_limit_of_bytes(tmp_path: Path):
    parts = snapshot_of(images(100), tmp_path, PartLimits(bytes=1000)).parts
    assert len(parts) == 5
    assert sum(part.listed for part in parts) == 100
    assert max(Path(part.rows).stat().st_size for part in parts) < 1200


def test_a_piece_is_read_in_steps(tmp_path: Path):
    """More rows than a piece reads at once, from several parts."""
    rows = images(3 * MIN_ROWS)
    order = Order(snapshot_of(rows, tmp_path, PartLimits(MIN_ROWS * 2)), SplitRule(0, 0))
    [pieces] = order.pieces("train", [0, order.examples["train"]])
    assert [from_line(line).key for line in merged_lines(pieces, rows_in_memory=2)] == slowly_ordered(
        rows, SplitRule(0, 0)
    )["train"]


@pytest.mark.parametrize("is_arranged", [False, True])
@pytest.mark.parametrize("part_rows", [1, 3, 100])
def test_equal_hashes_are_ordered_by_the_bytes_of_their_lines(tmp_path: Path, part_rows: int, is_arranged: bool):
    """Among ten billion keys, three pairs have one hash."""
    keys = ["a", "a b", 'a"', "a!", "é", "\udcff", "z", "\n"]
    splits = ["test", "", "", "test", "", "test", "test", ""]
    rows = [image(key, split) for key, split in zip(keys, splits, strict=True)]
    arrange = partial(line_order, rule=SplitRule(0, 0.5)) if is_arranged else None
    snapshot = snapshot_of(rows, tmp_path, PartLimits(part_rows), arrange)
    for part in snapshot.parts:  # All keys get one hash.
        columns = np.fromfile(str(part.beside(".columns")), COLUMNS)
        columns["order"] = 7
        columns.tofile(str(part.beside(".columns")))
    order = Order(snapshot, SplitRule(0, 0.5))
    for split in SPLITS:
        of_split = [row for row in rows if split_in(order, snapshot, row.key) == split]
        expected = [row.key for row in sorted(of_split, key=lambda row: to_line(content_of(row), row))]
        cuts = list(range(len(expected) + 1))
        assert ordered(order, split, cuts) == [[key] for key in expected]
        assert ordered(order, split, [0, len(expected)]) == [expected]


def split_in(order: Order, snapshot: Snapshot, key: str) -> str:
    placed = [order.placed(number) for number in range(snapshot.listed)]
    return next(SPLITS[each.split] for each in placed if each.example.key == key)


@pytest.mark.parametrize("damaged", [b"", b'{"name": "x", "sec', b"[]", b"{}"])
def test_a_part_whose_description_is_torn_is_sorted_again(damaged: bytes, tmp_path: Path):
    [part] = snapshot_of(images(30), tmp_path, PartLimits(30)).parts
    described = sorted_part(part, RULE)
    [description] = tmp_path.glob("*.sorted")
    content = description.read_bytes()
    description.write_bytes(damaged)
    assert sorted_part(part, RULE) == described
    assert description.read_bytes() == content


SNAPSHOT_IS_LOST = r"it belongs to the snapshot, so remove all files .*\.\*, and begin with `extract`"
PART_IS_LOST = r"remove all files .*\.\*, and run `shard` again.*begin with `extract`"
RULE_ORDER = partial(line_order, rule=RULE)


@pytest.mark.parametrize(("arrange", "advice"), [(None, PART_IS_LOST), (RULE_ORDER, SNAPSHOT_IS_LOST)])
def test_a_lost_file_of_a_sorted_part_is_named(arrange: Arrange | None, advice: str, tmp_path: Path):
    order = Order(snapshot_of(images(30), tmp_path, PartLimits(10), arrange), RULE)
    [pieces] = order.pieces("train", [0, 20])
    lines = Path(pieces[1].lines)
    content = lines.read_bytes()
    lines.write_bytes(content[: len(content) // 2])
    with pytest.raises(FileSystemError, match=rf"{lines.name} is missing or too short: {advice}"):
        list(merged_lines(pieces))
    lines.unlink()
    with pytest.raises(FileSystemError, match=rf"{lines.name} is missing or too short: {advice}"):
        list(merged_lines(pieces))


@pytest.mark.parametrize(
    ("arrange", "file", "advice"),
    [
        (None, "lines", PART_IS_LOST),
        (None, "index_file", PART_IS_LOST),
        (RULE_ORDER, "lines", SNAPSHOT_IS_LOST),
        # The lines are damaged as far as a task can tell.
        (RULE_ORDER, "index_file", f"{PART_IS_LOST}|{SNAPSHOT_IS_LOST}"),
    ],
)
def test_damaged_rows_are_noticed(arrange: Arrange | None, file: str, advice: str, tmp_path: Path):
    """Otherwise, an image could get another label. A bucket states no checksum of a part of an object."""
    order = Order(snapshot_of(images(30), tmp_path, PartLimits(10), arrange), RULE)
    [pieces] = order.pieces("train", [0, 20])
    path = Path(getattr(pieces[1], file))
    content = path.read_bytes()
    for position in range(0, len(content), 3):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with suppress(FileSystemError):
            # The damage may be in a row that no shard of this task has.
            assert [from_line(line).key for line in merged_lines(pieces)] == slowly_ordered(images(30), RULE)["train"][
                :20
            ]
    path.write_bytes(content[: len(content) // 2] + b"\xff" * (len(content) - len(content) // 2))
    with pytest.raises(FileSystemError, match=rf"(is damaged|too short): ({advice})"):
        list(merged_lines(pieces))


@pytest.mark.parametrize("file", ["lines", "index_file"])
def test_rows_of_a_damaged_table_are_listed_again_as_the_error_advises(file: str, tmp_path: Path):
    """The new part has the same name, so damage in an index that is kept would stay."""
    order = Order(snapshot_of(images(30), tmp_path, PartLimits(10), RULE_ORDER), RULE)
    [pieces] = order.pieces("train", [0, 20])
    path = Path(getattr(pieces[1], file))
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(FileSystemError) as raised:
        list(merged_lines(pieces))
    for pattern in re.findall(r"remove all files (\S+), ", str(raised.value)):
        for each in tmp_path.glob(Path(pattern).name):
            each.unlink()
    assert_ordered(images(30), RULE, PartLimits(10), tmp_path, RULE_ORDER)


@pytest.mark.parametrize("rows_per_range", [5, *(pytest.param(rows, marks=pytest.mark.long) for rows in (1, 1000))])
@pytest.mark.parametrize("part_rows", [4, *(pytest.param(rows, marks=pytest.mark.long) for rows in (1, 1000))])
def test_equal_images_are_grouped_across_all_parts(tmp_path: Path, part_rows: int, rows_per_range: int):
    """40 files, of which some are equal, some have only an equal size and CRC32C, and some contradict or leak."""
    rows = []
    for number in range(40):
        content = number % 15
        raw = b"%03d" % content
        key = f"{number:03d}"
        # 13 and 14 have the checksum of another file with other bytes.
        row = image(key, "test" if number > 35 else "", crc32c=1 + content % 13, label="ab"[number == 20])
        (tmp_path / key).write_bytes(raw)
        rows.append(row._replace(size=len(raw)))
    rows.append(image("empty", crc32c=5)._replace(size=0))
    snapshot = snapshot_of(rows, tmp_path, PartLimits(part_rows))
    order = Order(snapshot, RULE)
    lines = io.BytesIO()
    facts = equal_examples(order, RawReader(snapshot.origin), lines, rows_per_range)
    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    contents = {row.key: int(row.key) % 15 for row in rows[:-1]}
    groups = [[key for key in contents if contents[key] == content] for content in range(15)]
    assert [[each["path"] for each in row["images"]] for row in found] == groups
    split_of = {each.example.key: SPLITS[each.split] for each in map(order.placed, range(len(rows)))}
    leaks = [group for group in groups if len({split_of[key] == "train" for key in group}) == 2]
    assert leaks
    assert facts["duplicates"] == {"images": 40, "groups": 15}
    assert facts["leaks"]["images"] == sum(split_of[key] != "train" for group in leaks for key in group)
    assert facts["leaks"]["of"] == order.examples["validation"] + order.examples["test"]
    assert [pair[0] for pair in facts["leaks"]["names"]] == [
        next(key for key in group if split_of[key] == "train") for group in leaks
    ]
    assert facts["contradictions"] == {
        "images": 3,
        "groups": 1,
        "of": 41,
        "pairs": [{"paths": ["005", "020"], "labels": [["a"], ["b"]]}],
    }
