"""Types of columns that the settings state."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.settings import settings_from
from pipeline.errors import SettingsError
from pipeline.tables.stated_types import StatedType, stated_types
from tests.tables.built import Built, built, csv_of, parquet_of


def table(tmp_path: Path, values: list[Any], suffix: str = ".csv", **settings: Any) -> Built:
    """Return the dataset of a table with the column `x`."""
    labels = ["yn"[number % 2] for number in range(len(values))]
    if suffix == ".parquet":
        columns = {"x": values, "other": list(range(len(values))), "label": labels}
        return built(parquet_of(tmp_path / "t.parquet", **columns), **settings)
    lines = [f"{value},{number},{label}" for number, (value, label) in enumerate(zip(values, labels, strict=True))]
    return built(csv_of(tmp_path / "t.csv", ["x,other,label", *lines]), **settings)


def test_a_name_comes_before_a_pattern_and_a_pattern_before_later_ones():
    types = {"code_*": "string", "code_b": "int", "*": "float", "x[1]": "date:%d.%m.%Y"}
    assert stated_types(types, ["code_a", "code_b", "x[1]", "other"]) == {
        "code_a": StatedType("string"),
        "code_b": StatedType("int"),
        "x[1]": StatedType("date", "%d.%m.%Y"),
        "other": StatedType("float"),
    }
    assert stated_types({"Code_*": "int"}, ["Code_a", "code_b"]) == {"Code_a": StatedType("int")}


def test_a_name_or_pattern_without_a_column_is_refused(tmp_path: Path):
    for key in ("zipp", "zip_*"):
        with pytest.raises(SettingsError, match=rf"column_types names '{key[:3]}.*no such column. The columns are 'x'"):
            table(tmp_path, ["1"] * 30, column_types={key: "string"})


@pytest.mark.parametrize("key", ["x", "x*", "?"])
@pytest.mark.parametrize(
    ("values", "stated", "expected"),
    [
        (["01234", "1234"], "string", [b"01234", b"1234"]),
        (["01234", "1234", "+5"], "string", [b"01234", b"1234", b"+5"]),
        (["7", "8.0"], "int", [7, 8]),
        (["7", "8"], "float", [7.0, 8.0]),
        (["true", "FALSE"], "bool", [1, 0]),
        (["1970-01-02", "1970-01-03"], "time", [86_400_000_000, 2 * 86_400_000_000]),
        (["02.01.1970", "3.1.1970"], "date:%d.%m.%Y", [1, 2]),
        (["01/02/70", "01/03/70"], "date:%m/%d/%y", [1, 2]),
        (["02.01.1970 00:00:01", "02.01.1970 00:00:02"], "time:%d.%m.%Y %H:%M:%S", [86_401_000_000, 86_402_000_000]),
        (["2.1.70 0:00:00.5", "2.1.70 0:00:00.000001"], "time:%d.%m.%y %H:%M:%S.%f", [86_400_500_000, 86_400_000_001]),
        (["1970-01-01T01:00+0100", "1970-01-01T00:00+0000"], "time:%Y-%m-%dT%H:%M%z", [0, 0]),
    ],
)
def test_stated_types_of_csv(tmp_path: Path, key: str, values: list[str], stated: str, expected: list[Any]):
    made = table(tmp_path, values * 50, column_types={key: stated})
    assert made.types["x"] == stated.partition(":")[0]
    assert made.column("x").format == stated.partition(":")[2]
    assert made.dataset.rejected["count"] == 0
    assert {row["x"] for row in made.rows()} == set(expected)


@pytest.mark.parametrize(
    ("values", "stated", "expected"),
    [
        ([1234, 5], "string", {b"1234", b"5"}),
        ([True, False], "string", {b"true", b"false"}),
        (["7", " 8.0"], "int", {7, 8}),
        ([7.0, 8.0], "float", {7.0, 8.0}),
        (["02.01.1970", "03.01.1970"], "date:%d.%m.%Y", {1, 2}),
        ([datetime(1970, 1, 2, tzinfo=UTC)] * 2, "time", {86_400_000_000}),
    ],
)
def test_stated_types_of_parquet(tmp_path: Path, values: list[Any], stated: str, expected: set[Any]):
    made = table(tmp_path, values * 50, ".parquet", column_types={"x": stated})
    assert {row["x"] for row in made.rows()} == expected


def test_rows_with_another_value_are_rejected(tmp_path: Path):
    days = [f"{day:02}.01.2026" for day in range(1, 29)] * 10
    odd = ["31.02.2026", "2026-01-01", "soon"]
    made = table(tmp_path, [*days, *odd, "NA", " 05.01.2026 "], column_types={"x": "date:%d.%m.%Y"})
    assert (made.dataset.rejected["count"], made.column("x").missing) == (3, 1)
    assert made.notes == ["column 'x': 1 value 'NA' is missing"]
    reasons = (made.folder / "rejected.jsonl").read_text()
    for text in odd:
        assert f"column 'x' holds '{text}', which is not in the format '%d.%m.%Y'" in reasons


@pytest.mark.parametrize("stated", ["string", "float", "int"])
def test_lists_have_their_own_type(tmp_path: Path, stated: str):
    values = [[number, 2] for number in range(60)]
    if stated == "int":
        assert table(tmp_path, values, ".parquet", column_types={"x": stated}).types["x"] == "int"
        return
    with pytest.raises(SettingsError, match=f"column_types states {stated} for the column 'x', which holds list<"):
        table(tmp_path, values, ".parquet", column_types={"x": stated})


def test_a_type_that_the_values_do_not_have_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="column_types states bool for the column 'x', which holds double: state"):
        table(tmp_path, [0.5, 1.5] * 30, ".parquet", column_types={"x": "bool"})


def test_the_label_and_the_key_can_have_a_stated_type(tmp_path: Path):
    lines = [f"{number},{number},{number % 3}.0" for number in range(300)]
    source = csv_of(tmp_path / "t.csv", ["id,x,label", *lines])
    made = built(source, key_column="id", column_types={"id": "int", "label": "float"}, table_task="regression")
    assert made.types == {"id": "int", "x": "int", "label": "float"}
    as_text = built(source, column_types={"label": "string"}, on_columns="continue", dataset_name="other")
    assert as_text.dataset.labels == ("0.0", "1.0", "2.0")


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"x": "text"}, "column_types must state int, float, bool, string, date, time, or date or time with a colon"),
        ({"x": "int:%d"}, "only a date or a time has a format"),
        ({"x": "date:"}, "only a date or a time has a format, such as %d.%m.%Y"),
        ({"x": "time:%H:%Q"}, "'Q' is a bad directive"),
        ("{", "must be an object in JSON"),
    ],
)
def test_unknown_types_are_refused_by_the_settings(types: Any, message: str):
    with pytest.raises(SettingsError, match=message):
        settings_from({"column_types": types})


def test_types_may_be_given_as_text():
    assert settings_from({"column_types": '{"zip": "string"}'}).column_types == {"zip": "string"}
    assert settings_from({"missing_values": "-, n/a,"}).missing_values == ["-", "n/a"]
    assert settings_from({"missing_values": '["a,b"]'}).missing_values == ["a,b"]
    assert settings_from({"missing_values": ""}).missing_values == []


def test_another_type_is_another_version(tmp_path: Path):
    """Also if the rows are the same: a model reads new rows by these settings."""
    lines = [f"{number}.5,{'yn'[number % 2]}" for number in range(200)]
    source = csv_of(tmp_path / "t.csv", ["x,label", *lines])
    settings: list[dict[str, Any]] = [
        {},
        {"column_types": {"x": "float"}},
        {"missing_values": ["-"]},
        {"strip_texts": True},
        {"decimal_comma": True},
    ]
    versions = {built(source, on_columns="continue", **each).dataset.version for each in settings}
    assert len(versions) == 5
