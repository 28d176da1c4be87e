"""JSON lines as tables."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import SourceError
from pipeline.stages.build import build
from pipeline.tables import json_lines
from pipeline.tables.files import table_files
from pipeline.tables.source import read_table


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table_of(place: Path) -> pa.Table:
    return pa.Table.from_batches([raw.batch for raw in read_table(table_files(place))])


def test_lines_are_rows_with_the_columns_of_all_files(tmp_path: Path):
    write(tmp_path / "a.jsonl", {"x": 1, "t": "a", "l": []}, {"x": None, "b": True})
    write(tmp_path / "b.ndjson", {"x": 2.5, "l": [1, 2]}, {"c": "01234"})
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'\xef\xbb\xbf{"x": 3}\n\n  \n{"x": 4}'))
    assert table_of(tmp_path).to_pylist() == [
        {"x": 1.0, "t": "a", "l": [], "b": None, "c": None},
        {"x": None, "t": None, "l": None, "b": True, "c": None},
        {"x": 2.5, "t": None, "l": [1, 2], "b": None, "c": None},
        {"x": None, "t": None, "l": None, "b": None, "c": "01234"},
        {"x": 3.0, "t": None, "l": None, "b": None, "c": None},
        {"x": 4.0, "t": None, "l": None, "b": None, "c": None},
    ]


def test_the_columns_do_not_depend_on_the_order_of_the_lines(tmp_path: Path):
    rows: list[dict[str, Any]] = [{"b": 1, "a": 2}, {"c": 3}]
    for number, order in enumerate((rows, rows[::-1])):
        place = write(tmp_path / f"{number}.jsonl", *order)
        assert table_of(place).column_names == ["a", "b", "c"]


def test_the_types_do_not_depend_on_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = [
        {"i": number, "f": number if number % 9 else number + 0.5, "d": "2026-01-31" if number % 50 else "unknown"}
        for number in range(200)
    ]
    whole = table_of(write(tmp_path / "a.jsonl", *rows))
    monkeypatch.setattr(json_lines, "_BLOCK", 100)
    assert table_of(tmp_path / "a.jsonl").equals(whole)
    assert whole.to_pylist() == [{**row, "f": float(row["f"])} for row in rows]


def test_dates_and_times_are_those_of_csv(tmp_path: Path):
    rows = [
        {
            "day": f"2026-01-{number % 28 + 1:02}",
            "at": f"2026-01-31T10:00:{number % 60:02}Z",
            "zip": "12345",
            "y": number % 2,
        }
        for number in range(100)
    ]
    place = write(tmp_path / "a.jsonl", *rows)
    values = {"label_column": "y", "workspace": str(tmp_path / "workspace"), "num_shards": 2, "example_kind": "table"}
    table = load(Path(build(settings_from({**values, "source_uri": str(place)}))["dataset"])).table
    types = {column["name"]: column["type"] for column in table["columns"]}
    # A text that looks like a number stays a text.
    assert types == {"day": "date", "at": "time", "zip": "string", "y": "int"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"x": 1}\n{"x": \n', r"a.jsonl cannot be read as a table: JSON parse error: .*row 2: each line must be one"),
        (b'{"x": 1}\n{"x": "a"}\n', r"changed from number to string in row 2: write the column with one type"),
        (b"[1]\n", r"each line must be one object"),
        (b'{"x": 1}\n{"x": 9223372036854775813}\n', r"'x' holds 9223372036854775813, a whole number of more than 64"),
        (b"", r"a.jsonl has no row with a value"),
        (b"\n\n", r"a.jsonl has no row with a value"),
        (b'{"": 1}\n', r"a.jsonl has no name for column 1"),
        (b'{"x": "caf\xe9"}\n', r"a.jsonl has invalid values in the column 'x' .*UTF"),
    ],
)
def test_lines_that_are_no_rows_are_refused(content: bytes, message: str, tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        table_of(tmp_path / "a.jsonl")


def test_large_floats_are_floats(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"x": 1e300, "y": 9223372036854775807}\n{"x": 12345678901234567890.5, "y": 1}\n')
    assert table_of(tmp_path / "a.jsonl").to_pylist()[0] == {"x": 1e300, "y": 2**63 - 1}


def test_a_row_is_named_by_its_place_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(json_lines, "_BLOCK", 50)
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' * 99 + "{x}\n")
    with pytest.raises(SourceError, match="in row 100: each line"):
        table_of(tmp_path / "a.jsonl")


def test_a_very_long_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(json_lines, "_BLOCK", 100)
    (tmp_path / "a.jsonl").write_text('{"x": "' + "a" * 1000 + '"}\n')
    with pytest.raises(SourceError, match="a line has more than"):
        table_of(tmp_path / "a.jsonl")
