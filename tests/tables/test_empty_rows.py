"""Rows of a table without any value."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import SourceError
from pipeline.tables import row_ranges
from pipeline.tables.source import RawBatch, RejectedRow, without_empty_rows
from tests.tables.built import built, csv_of, parquet_of

NOTE = "2000 rows without any value were left out"


def test_empty_rows_are_left_out_and_counted_once(tmp_path: Path):
    lines = [f"{number},{number % 5},{number % 2}" for number in range(400)]
    made = built(csv_of(tmp_path / "t.csv", ["a,b,label", *lines, *[",,"] * 1000, *[" , ,"] * 1000]))
    assert (made.dataset.rejected["count"], made.dataset.source["listed"], made.schema.rows) == (0, 400, 400)
    assert NOTE in made.notes
    assert NOTE in (made.folder / "card.html").read_text()


def test_empty_rows_of_parquet_are_left_out(tmp_path: Path):
    columns = {"a": pa.array([*range(100), *[None] * 7]), "b": [*[0.5] * 100, *[float("nan")] * 7]}
    made = built(parquet_of(tmp_path / "t.parquet", **columns, label=[*("yn" * 50), *[None] * 7]))
    assert made.schema.rows == 100
    assert "7 rows without any value were left out" in made.notes


def test_empty_rows_of_views_are_left_out(tmp_path: Path):
    """Parquet files that Arrow wrote may hold text as views. Arrow cannot filter their rows."""
    columns = {
        "a": pa.array([*map(str, range(100)), *[None] * 7], pa.string_view()),
        "b": pa.array([*[b"x", b"y"] * 50, *[None] * 7], pa.binary_view()),
        "c": pa.array([*[["w"]] * 100, *[None] * 7], pa.list_(pa.string_view())),
        "d": pa.array([*[{"e": "z"}] * 100, *[None] * 7], pa.struct({"e": pa.string_view()})),
    }
    made = built(parquet_of(tmp_path / "t.parquet", **columns, label=[*("yn" * 50), *[None] * 7]))
    assert made.schema.rows == 100
    assert [column.name for column in made.schema.columns] == ["a", "b", "c", "d.e", "label"]


def test_the_columns_of_folders_do_not_count(tmp_path: Path):
    for country in ("de", "fr"):
        lines = [f"{number},{number % 2}" for number in range(100)]
        csv_of(tmp_path / f"t/country={country}/a.csv", ["x,label", *lines, ",", ","])
    made = built(tmp_path / "t")
    assert (made.schema.rows, made.dataset.rejected["count"]) == (200, 0)
    assert "4 rows without any value were left out" in made.notes


def test_rejected_rows_keep_the_numbers_of_their_lines(tmp_path: Path):
    """In one piece, and in several: the empty rows before a row count."""
    lines = [",,"] * 3 + ["1,2,"] + ["7,8,a", "1,2"] + [",,"] * 2 + ["3,4,"]
    lines += [f"{number},{number},{'ab'[number % 2]}" for number in range(400)]
    made = built(csv_of(tmp_path / "t.csv", ["x,y,label", *lines]))
    rejected = [json.loads(line)["path"] for line in (made.folder / "rejected.jsonl").read_text().splitlines()]
    assert sorted(rejected) == ["row 4", "row 9", "t.csv:7"]


def test_places_of_rejected_rows_follow_the_rows_that_stay():
    batch = pa.record_batch({"x": pa.array([None, 1, None, 2, 3]), "y": pa.array([None, 1, None, 2, None])})
    rejected = [RejectedRow("a", "", "", after) for after in (0, 1, 2, 5)]
    raw = without_empty_rows(RawBatch(batch, rejected, prefix="t.csv:", first_number=2), ["x", "y"])
    assert raw.batch.to_pydict() == {"x": [1, 2, 3], "y": [1, 2, None]}
    assert [each.after for each in raw.rejected] == [0, 0, 1, 3]
    assert (list(raw.empty), raw.rows) == ([0, 1], 9)
    # Of nine rows, the first is rejected, the second empty, the third rejected.
    assert raw.places_of([0, 1, 2]) == ["t.csv:5", "t.csv:8", "t.csv:9"]


def test_a_table_of_empty_rows_is_refused(tmp_path: Path):
    with pytest.raises(SourceError, match="no valid row"):
        built(csv_of(tmp_path / "t.csv", ["a,label", *[","] * 5]))


def test_ranges_of_a_table_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = [f"{number}.5,{number},{'ab'[number % 2]}" for number in range(4000)]
    for number in range(100, 4000, 100):
        lines[number : number + 3] = [",,", f"-,{number},a", "1,2"]
    source = csv_of(tmp_path / "t.csv", ["x,y,label", *lines])
    whole = built(source)
    monkeypatch.setattr(row_ranges, "range_bytes", lambda: 20_000)
    monkeypatch.setattr(row_ranges.TableLister, "list_all", lambda self: pytest.fail("the table was not divided"))
    parts = built(source, workspace=str(tmp_path / "w"))
    assert whole.notes[0] == "39 rows without any value were left out"
    assert "39 of 3922 values are not numbers, such as '-' (t.csv:103)" in whole.notes[1]
    assert (parts.dataset.version, parts.notes) == (whole.dataset.version, whole.notes)
    assert (parts.folder / "rejected.jsonl").read_bytes() == (whole.folder / "rejected.jsonl").read_bytes()
