"""CSV files of other dialects, and what an error says about them."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.settings import settings_from
from pipeline.errors import SettingsError, SourceError, TenfoldError
from pipeline.tables.dialect import Dialect
from pipeline.tables.source import TableReader, pieces_of_table, read_table
from tests.tables.built import built, csv_of

HEADER = ("a", "b", "label")


def lines_of(delimiter: str = ",", count: int = 300) -> list[str]:
    return [delimiter.join((str(n), str(n % 7), "yn"[n % 2])) for n in range(count)]


@pytest.mark.parametrize(
    ("begin", "delimiter", "settings"),
    [
        (["a;b;label"], ";", {"csv_delimiter": ";"}),
        (["a\tb\tlabel"], "\t", {"csv_delimiter": "tab"}),
        (["a|b|label"], "|", {"csv_delimiter": "|"}),
        (["# made by hand", '# on "Monday', "a,b,label"], ",", {"csv_skip_lines": 2}),
        ([], ",", {"csv_columns": ["a", "b", "label"]}),
        (["# no header"], ";", {"csv_columns": "a, b, label", "csv_skip_lines": 1, "csv_delimiter": ";"}),
    ],
)
def test_the_settings_of_a_dialect(tmp_path: Path, begin: list[str], delimiter: str, settings: dict[str, Any]):
    made = built(csv_of(tmp_path / "t.csv", [*begin, *lines_of(delimiter)]), **settings)
    assert (made.types, made.schema.rows) == ({"a": "int", "b": "int", "label": "string"}, 300)
    assert made.dataset.rejected["count"] == 0


@pytest.mark.parametrize(
    ("begin", "delimiter", "message"),
    [
        (["a;b;label"], ";", r"Its first line, 'a;b;label', has another delimiter: set csv_delimiter to ';'"),
        (["a\tb\tlabel"], "\t", r"has another delimiter: set csv_delimiter to '\\t'"),
        (["# made by hand", "a,b,label"], ",", r"'# made by hand', is a comment: set csv_skip_lines to the number"),
        ([], ",", r"Its first line, '0,0,y', looks like a row: if the file has no header, set csv_columns"),
    ],
)
@pytest.mark.parametrize("label", ["label", ""])
def test_an_error_shows_the_first_line_and_names_the_setting(
    tmp_path: Path, begin: list[str], delimiter: str, message: str, label: str
):
    with pytest.raises(TenfoldError, match=message):
        built(csv_of(tmp_path / "t.csv", [*begin, *lines_of(delimiter)]), label_column=label)


def test_a_row_with_equal_fields_is_taken_for_one(tmp_path: Path):
    with pytest.raises(SourceError, match=r"two columns '1': rename one. Its first line, '1,1,y', looks like a row"):
        built(csv_of(tmp_path / "t.csv", ["1,1,y", *lines_of()]))


def test_a_header_is_no_reason_for_advice(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"The columns are 'a', 'b', 'label'$"):
        built(csv_of(tmp_path / "t.csv", [",".join(HEADER), *lines_of()]), label_column="class")


def test_names_for_another_number_of_fields_are_refused(tmp_path: Path):
    with pytest.raises(SourceError, match="its first row has 3 fields, but csv_columns has 2 names"):
        built(csv_of(tmp_path / "t.csv", lines_of()), csv_columns=["a", "label"])


def test_a_decimal_comma(tmp_path: Path):
    lines = [f"{n},5;{n};{'1.5' if n == 7 else f'{n},25'};{'yn'[n % 2]}" for n in range(300)]
    made = built(csv_of(tmp_path / "t.csv", ["a;b;c;label", *lines]), csv_delimiter=";", decimal_comma=True)
    assert made.types == {"a": "float", "b": "int", "c": "string", "label": "string"}
    assert {row["a"] for row in made.rows()} == {n + 0.5 for n in range(300)}
    # With a point, 1.500 could be one thousand five hundred.
    assert "1 of 300 values are not numbers, such as '1.5' (t.csv:9)" in made.notes[0]
    assert (
        "If the comma is a decimal one"
        in built(
            csv_of(tmp_path / "u.csv", ["a;label", *(f"{n};{n % 2}" for n in range(300)), "1,5;1"]), csv_delimiter=";"
        ).notes[0]
    )


def test_pieces_of_a_file_without_a_header_have_the_same_rows(tmp_path: Path):
    lines = lines_of(";", 2000)
    lines[700] = "1;2"
    path = csv_of(tmp_path / "t.csv", lines)
    dialect = Dialect(delimiter=";", names=HEADER)
    pieces = pieces_of_table([path], dialect, 4000)
    assert len(pieces) > 3
    reader = TableReader([path], dialect)
    rows = [row for piece in pieces for raw in reader.read(piece) for row in raw.batch.to_pylist()]
    whole = list(read_table([path], dialect))
    assert rows == [row for raw in whole for row in raw.batch.to_pylist()]
    assert len(rows) == 1999
    assert [each.key for raw in whole for each in raw.rejected] == ["t.csv:701"]
    assert whole[0].place_of(0) == "t.csv:1"


def test_lines_before_the_header_count(tmp_path: Path):
    lines = lines_of(",", 100)
    lines[5] = "1,2"
    path = csv_of(tmp_path / "t.csv", ["# one", '# a "quote', "", ",".join(HEADER), *lines])
    [raw] = read_table([path], Dialect(skipped_lines=3))
    assert [each.key for each in raw.rejected] == ["t.csv:10"]
    assert (raw.place_of(0), raw.place_of(5)) == ("t.csv:5", "t.csv:11")
    assert len(pieces_of_table([path], Dialect(skipped_lines=3), 100)) == 1


def test_a_stray_quote_is_named_by_its_line(tmp_path: Path):
    path = csv_of(tmp_path / "t.csv", ["# one", ",".join(HEADER), "1,2,y", '1,2"3,n'])
    with pytest.raises(SourceError, match="line 4 has a quote"):
        list(read_table([path], Dialect(skipped_lines=1)))
    with pytest.raises(SourceError, match="line 2 has a quote"):
        list(read_table([csv_of(tmp_path / "u.csv", ["a|b", '1|"2"3'])], Dialect(delimiter="|")))


@pytest.mark.parametrize("delimiter", [";;", "x", '"', "5", "§"])
def test_a_delimiter_is_one_character(delimiter: str):
    with pytest.raises(SettingsError, match="csv_delimiter must"):
        settings_from({"csv_delimiter": delimiter})
    assert settings_from({"csv_delimiter": "tab"}).csv_delimiter == "\t"
