"""Rows are sorted with little memory, and each range reads its own ones."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.sources import sorted_rows
from pipeline.sources.key_range import EVERYTHING, KeyRange, ranges_between
from pipeline.sources.sorted_rows import SortedRows, write_sorted


def tables_of(rows: list[tuple[bytes, int]], size: int) -> Iterator[pa.Table]:
    for start in range(0, len(rows), size):
        keys, numbers = zip(*rows[start : start + size], strict=True)
        yield pa.table({"key": pa.array(keys, pa.large_binary()), "number": numbers})


def rows_of(file: Path, keys: KeyRange = EVERYTHING) -> list[tuple[bytes, int]]:
    batches = list(SortedRows(file).batches(keys))
    return [(row["key"], row["number"]) for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small runs, a few rows need a merge of many."""
    monkeypatch.setattr(sorted_rows, "RUN_ROWS", 40)
    monkeypatch.setattr(sorted_rows, "PART_ROWS", 4)


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("names", [1, 3, 200, 100_000])
@pytest.mark.parametrize("count", [1, 39, 40, 1000])
def test_rows_are_sorted_by_their_keys_and_equal_keys_keep_their_order(count: int, names: int, tmp_path: Path):
    chosen = random.Random(count)
    # A row without a path has an empty key.
    rows = [(b"%x\xff" % chosen.randrange(names) if number % 3 else b"", number) for number in range(count)]
    write_sorted(tmp_path / "rows.arrow", tables_of(rows, 17))
    assert rows_of(tmp_path / "rows.arrow") == sorted(rows)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.arrow"]
    boundaries = SortedRows(tmp_path / "rows.arrow").boundaries(8, 1)
    parts = [rows_of(tmp_path / "rows.arrow", keys) for keys in ranges_between(boundaries)]
    assert [row for part in parts for row in part] == sorted(rows)
    if names > count >= 40:
        assert max(map(len, parts[1:])) <= count // 8 + 2


@pytest.mark.usefixtures("small_runs")
def test_rows_with_equal_keys_are_in_one_batch(tmp_path: Path):
    rows = [(b"%d" % (number % 7), number) for number in range(1000)]
    write_sorted(tmp_path / "rows.arrow", tables_of(rows, 9))
    keys = [set(batch["key"].to_pylist()) for batch in SortedRows(tmp_path / "rows.arrow").batches(EVERYTHING)]
    assert sum(map(len, keys)) == 7


def test_there_can_be_no_row(tmp_path: Path):
    write_sorted(tmp_path / "rows.arrow", iter([]))
    rows = SortedRows(tmp_path / "rows.arrow")
    assert list(rows.batches(EVERYTHING)) == rows.boundaries(8, 1) == []


def test_no_more_than_a_step_of_the_merge_is_in_memory(tmp_path: Path):
    """A step has about as many rows as a run, and holds no more than a part of each run beside them."""
    count = 500_003
    rows = [(b"%07d" % (7 * number % count), number) for number in range(count)]
    before = pa.total_allocated_bytes()
    runs = sorted_rows._runs(tables_of(rows, 10_000))
    spans = sorted_rows._write(tmp_path / "runs", runs, sorted_rows.PART_ROWS)
    last, most, held = b"", 0, 0
    for step in sorted_rows._merged(tmp_path / "runs", spans):
        keys = step["key"].to_pylist()
        assert keys == sorted(keys)
        assert keys[0] > last
        last, most, held = keys[-1], max(most, len(keys)), max(held, pa.total_allocated_bytes() - before)
    assert most < 1.5 * sorted_rows.RUN_ROWS
    # A row has 7 bytes of its key, 8 of their offset and 8 of its number. A step holds its rows in two orders.
    assert held < 6 * 23 * sorted_rows.RUN_ROWS


@pytest.mark.usefixtures("small_runs")
def test_a_step_of_the_merge_of_many_runs_holds_few_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a merge in groups, it would hold a part of each of 250 runs, 25 times as many rows as a run."""
    join = sorted_rows._joined

    def checked(rows: Mapping[int, pa.RecordBatch]) -> pa.Table:
        assert len(rows) * sorted_rows.PART_ROWS < 6 * sorted_rows.RUN_ROWS
        return join(rows)

    monkeypatch.setattr(sorted_rows, "_joined", checked)
    numbers = list(range(10_000))
    random.Random(1).shuffle(numbers)
    rows = [(b"%05d" % number, number) for number in numbers]
    write_sorted(tmp_path / "rows.arrow", tables_of(rows, 40))
    assert rows_of(tmp_path / "rows.arrow") == sorted(rows)


@pytest.mark.usefixtures("small_runs")
def test_renamed_rows_are_sorted_again(tmp_path: Path):
    rows = [(b"%d" % (number % 700), number) for number in range(1000)]

    def renamed(table: pa.Table) -> pa.Table:
        keys = table["key"].to_pylist()
        if len(keys) == len(set(keys)):
            return table
        numbers = table["number"].to_pylist()
        others = [b"9-%03d" % n if keys.count(k) > 1 else k for k, n in zip(keys, numbers, strict=True)]
        return table.set_column(0, "key", pa.array(others, pa.large_binary()))

    write_sorted(tmp_path / "rows.arrow", tables_of(rows, 9), renamed)
    expected = [(b"9-%03d" % number if number % 700 < 300 else key, number) for key, number in rows]
    assert rows_of(tmp_path / "rows.arrow") == sorted(expected)
