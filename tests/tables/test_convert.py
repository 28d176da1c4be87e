import csv
import math
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.errors import SourceError
from pipeline.storage import Place
from pipeline.tables import convert
from pipeline.tables.convert import converted, record_schema
from pipeline.tables.infer import Columns, infer_schema
from pipeline.tables.schema import Column, Schema
from pipeline.tables.source import read_table

REMOVE = "correct the value, or remove the row"


def schema_of(*columns: Column) -> Schema:
    """Return a schema with these columns and a label."""
    return Schema([*columns, Column("label", "string", role="label")], 0, "classification")


def column_of(array: pa.Array, column: Column) -> tuple[list[Any], dict[int, str]]:
    """Return the converted values of a column, and the reasons of the rejected rows."""
    batch = pa.record_batch([array, pa.array(["a"] * len(array))], names=[column.name, "label"])
    found = converted(batch, schema_of(column))
    assert found.batch.schema == record_schema(schema_of(column))
    found.batch.validate(full=True)
    return found.batch.column(column.name).to_pylist(), {row: reason for row, (reason, _) in found.rejected.items()}


def of_table(files: Sequence[Place], **options: Any) -> tuple[Schema, pa.Table]:
    schema = infer_schema(read_table(files), Columns("label", **options))
    results = [converted(raw.batch, schema) for raw in read_table(files)]
    assert not any(result.rejected for result in results)
    return schema, pa.Table.from_batches([result.batch for result in results]).combine_chunks()


# The types of records.

NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
NOON_US = 1_577_880_000_000_000


@pytest.mark.parametrize(
    ("array", "kind", "expected"),
    [
        (pa.array(["-5", None, ""]), "int", [-5, None, None]),
        (pa.array([" 5", "9007199254740993", "1.0", "2e3\t"]), "int", [5, 2**53 + 1, 1, 2000]),
        (pa.array([5, None]), "string", ["5", None]),
        (pa.array([True]), "string", ["true"]),
        (pa.array([-5, None], pa.int16()), "int", [-5, None]),
        (pa.array([5], pa.uint64()), "int", [5]),
        (pa.array([5.0, math.nan, None]), "int", [5, None, None]),
        (pa.array([Decimal("5.00")]), "int", [5]),
        (
            pa.array([Decimal(2**63 - 1), Decimal(-(2**63)), None], pa.decimal128(38, 0)),
            "int",
            [2**63 - 1, -(2**63), None],
        ),
        (pa.array([Decimal(7)], pa.decimal256(76, 0)), "int", [7]),
        (pa.array([Decimal(7)], pa.decimal32(3, 0)), "int", [7]),
        (pa.array([Decimal(700)], pa.decimal128(3, -2)), "int", [700]),
        (pa.array([Decimal(2**24 + 1)], pa.decimal128(38, 0)), "float", [float(2**24)]),
        (pa.array(["0.1", "nan", "", None, "inf", "7"]), "float", [float(np.float32(0.1)), *[None] * 3, math.inf, 7.0]),
        (pa.array([0.1, math.nan, -math.inf]), "float", [float(np.float32(0.1)), None, -math.inf]),
        (pa.array([0.1, math.nan], pa.float32()), "float", [float(np.float32(0.1)), None]),
        (pa.array(np.array([0.1, np.nan], np.float16)), "float", [float(np.float16(0.1)), None]),
        (pa.array([2**24 + 1]), "float", [float(2**24)]),
        (pa.array([Decimal("0.1"), None]), "float", [float(np.float32(0.1)), None]),
        # The cast of Arrow to float64 is one step off, which decides how it is rounded to float32.
        (
            pa.array([Decimal("60.8526973724365197630993883")]),
            "float",
            [float(np.float32(60.8526973724365197630993883))],
        ),
        (pa.array(["TRUE", "false", "True", None]), "bool", [True, False, True, None]),
        (pa.array([True, None]), "bool", [True, None]),
        (pa.array(["a", "", None]), "string", ["a", "", None]),
        (pa.array(["a", "", None]).dictionary_encode(), "string", ["a", "", None]),
        (pa.array(["ü".encode(), None]), "string", ["ü", None]),
        (pa.array(["a"], pa.string_view()), "string", ["a"]),
        (pa.array(["1969-12-31", None]), "date", [-1, None]),
        (pa.array([date(1969, 12, 31)]), "date", [-1]),
        (pa.array([date(1969, 12, 31)], pa.date64()), "date", [-1]),
        (pa.array(["2020-01-01T13:00+01:00", "1970-01-02"]), "time", [NOON_US, 86_400_000_000]),
        (pa.array(["2020-01-01T12:00:00.0000019Z"]), "time", [NOON_US + 1]),
        (pa.array([NOON, None], pa.timestamp("s", "Asia/Tokyo")), "time", [NOON_US, None]),
        (pa.array([date(1970, 1, 2)]), "time", [86_400_000_000]),
        (pa.array([-1, 1999], pa.timestamp("ns")), "time", [-1, 1]),
        (pa.nulls(2), "float", [None, None]),
    ],
)
def test_values_get_the_type_of_records(array: pa.Array, kind: str, expected: list[Any]):
    assert column_of(array, Column("x", kind)) == (expected, {})
    padded = pa.concat_arrays([array, array, array])  # Slices do not begin at the first value.
    assert column_of(padded[len(array) : -len(array)], Column("x", kind)) == (expected, {})


def test_the_types_of_arrow_are_exact():
    kinds = ["int", "float", "bool", "string", "date", "time"]
    columns = [Column(kind, kind) for kind in kinds] + [Column(f"{kind}s", kind, is_list=True) for kind in kinds]
    types = [pa.int64(), pa.float32(), pa.bool_(), pa.large_string(), pa.int64(), pa.int64()]
    expected = dict(zip([column.name for column in columns], types + list(map(pa.large_list, types)), strict=True))
    assert {field.name: field.type for field in record_schema(schema_of(*columns))} == {
        **expected,
        "label": pa.large_string(),
    }


def test_columns_are_in_the_order_of_the_schema():
    batch = pa.record_batch({"label": ["a"], "other": [1], "y": ["2"], "x": ["1"]})
    found = converted(batch, schema_of(Column("x", "int"), Column("y", "int")))
    assert found.batch.to_pylist() == [{"x": 1, "y": 2, "label": "a"}]
    assert found.batch.schema.names == ["x", "y", "label"]


@pytest.mark.parametrize(
    ("array", "kind", "expected"),
    [
        (pa.array([[1, 2], None, [], [3]], pa.list_(pa.int8())), "int", [[1, 2], None, [], [3]]),
        (pa.array([[0.5, 1.5], None], pa.list_(pa.float64(), 2)), "float", [[0.5, 1.5], None]),
        (pa.array([[0.5], None], pa.large_list(pa.float32())), "float", [[0.5], None]),
        (pa.array([["a", ""], []]), "string", [["a", ""], []]),
        (pa.array([[date(1970, 1, 2)]]), "date", [[1]]),
        (pa.array([[NOON]], pa.list_(pa.timestamp("ns", "UTC"))), "time", [[NOON_US]]),
        (pa.array([[True]]), "bool", [[True]]),
        (pa.array([[], None], pa.list_(pa.null())), "int", [[], None]),
        (pa.nulls(2), "int", [None, None]),
    ],
)
def test_lists_are_large_lists(array: pa.Array, kind: str, expected: list[Any]):
    assert column_of(array, Column("x", kind, is_list=True)) == (expected, {})
    if len(array) > 1:
        assert column_of(array[1:], Column("x", kind, is_list=True)) == (expected[1:], {})


def test_a_list_of_another_length_is_no_vector():
    array = pa.array([[1, 2], [1], None, [], [1, 2, 3], [3, 4]])
    values, reasons = column_of(array, Column("x", "int", is_list=True, length=2))
    assert values == [[1, 2], None, None, None, None, [3, 4]]
    assert reasons == {
        1: "the list in column 'x' has 1 elements instead of 2",
        4: "the list in column 'x' has 3 elements instead of 2",
    }


def test_a_list_with_a_gap_is_rejected():
    array = pa.array([[0.5, 1.5], [0.5, None], [math.nan], None, [1e300, 1.0], [2.5]])
    values, reasons = column_of(array, Column("x", "float", is_list=True))
    assert values == [[0.5, 1.5], None, None, None, None, [2.5]]
    reason = "a list in column 'x' has a missing element, or one that is not a number of 32 bits"
    assert reasons == dict.fromkeys((1, 2, 4), reason)


# Rejected rows.


@pytest.mark.parametrize(
    ("array", "kind", "shown", "noun"),
    [
        (pa.array(["1", "007"]), "int", "'007'", "a whole number of 64 bits"),
        (pa.array(["1", "9223372036854775808"]), "int", "'9223372036854775808'", "a whole number of 64 bits"),
        (pa.array(["1", "1.5"]), "int", "'1.5'", "a whole number of 64 bits"),
        (pa.array([1.0, 1.5]), "int", "1.5", "a whole number of 64 bits"),
        (pa.array([1.0, 2.0**63]), "int", "9.223372036854776e+18", "a whole number of 64 bits"),
        (pa.array([1.0, math.inf]), "int", "inf", "a whole number of 64 bits"),
        (
            pa.array([Decimal("1.0"), Decimal(f"{2**53 + 1}.0")]),
            "int",
            f"Decimal('{2**53 + 1}.0')",
            "a whole number of 64 bits",
        ),
        (pa.array([Decimal(1), Decimal(2**63)]), "int", f"Decimal('{2**63}')", "a whole number of 64 bits"),
        (pa.array([1, 2**63], pa.uint64()), "int", "9223372036854775808", "a whole number of 64 bits"),
        (pa.array(["1", "1e39"]), "float", "'1e39'", "a number of 32 bits"),
        (pa.array([1.0, -1e39]), "float", "-1e+39", "a number of 32 bits"),
        (pa.array(["1", "+1"]), "float", "'+1'", "a number of 32 bits"),
        (pa.array(["1", "x" * 100]), "float", f"'{'x' * 79}...", "a number of 32 bits"),
        (pa.array(["false", "maybe"]), "bool", "'maybe'", "true or false"),
        (pa.array([b"a", b"\xff"]), "string", r"b'\xff'", "text in UTF-8"),
        (pa.array(["2020-01-01", "2020-02-30"]), "date", "'2020-02-30'", "a date (YYYY-MM-DD)"),
        (pa.array(["2020-01-01", "noon"]), "time", "'noon'", "a time (ISO 8601)"),
        (pa.array([0, 2**62], pa.timestamp("s")), "time", "4611686018427387904", "a time (ISO 8601)"),
    ],
)
def test_a_value_that_does_not_fit_is_rejected(array: pa.Array, kind: str, shown: str, noun: str):
    batch = pa.record_batch([array, pa.array(["a", "b"])], names=["x", "label"])
    found = converted(batch, schema_of(Column("x", kind)))
    assert found.rejected == {1: (f"column 'x' holds {shown}, which is not {noun}", REMOVE)}
    assert found.batch["x"][1].as_py() is None
    assert found.batch["x"][0].as_py() is not None
    assert found.batch["label"].to_pylist() == ["a", "b"]


def test_a_row_without_a_label_or_key_is_rejected():
    schema = Schema([Column("key", "string", role="key"), Column("label", "float", role="label")], 0, "regression")
    batch = pa.record_batch({"key": ["a", "", None, "d", "e", ""], "label": ["1", "2", "3", "nan", "-inf", ""]})
    found = converted(batch, schema)
    key = ("the key is missing (column 'key')", "fill in the key, or remove the row")
    assert found.rejected == {
        1: key,
        2: key,
        3: ("the label is missing (column 'label')", "fill in the label, or remove the row"),
        4: ("the label is infinite (column 'label')", "correct the label, or remove the row"),
        5: key,
    }
    assert list(found.rejected) == [1, 2, 3, 4, 5]
    assert found.batch.to_pydict() == {
        "key": ["a", None, None, "d", "e", None],
        "label": [1.0, 2.0, 3.0, None, None, None],
    }


def test_a_label_that_does_not_fit_is_not_reported_as_missing():
    schema = Schema([Column("label", "int", role="label")], 0, "classification")
    found = converted(pa.record_batch({"label": ["1", "one"]}), schema)
    assert found.rejected == {1: ("column 'label' holds 'one', which is not a whole number of 64 bits", REMOVE)}


def test_a_label_of_integers_may_be_written_as_floats():
    schema = Schema([Column("label", "int", role="label")], 0, "classification")
    missing = ("the label is missing (column 'label')", "fill in the label, or remove the row")
    for labels in (["1.0", "0", "2e0", "0.5", "", "nan"], [1.0, 0.0, 2.0, 0.5, None, math.nan]):
        found = converted(pa.record_batch({"label": labels}), schema)
        assert found.batch["label"].to_pylist() == [1, 0, 2, None, None, None]
        shown = repr(labels[3])
        assert found.rejected == {
            3: (f"column 'label' holds {shown}, which is not a whole number of 64 bits", REMOVE),
            4: missing,
            5: missing,
        }


def test_a_feature_without_a_value_is_not_rejected():
    assert column_of(pa.array(["", None]), Column("x", "int")) == ([None, None], {})


def test_long_values_are_rejected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(convert, "MAX_TEXT_BYTES", 4)
    monkeypatch.setattr(convert, "MAX_ELEMENTS", 2)
    values, reasons = column_of(pa.array(["abcd", "abcde", "ééé", None]), Column("x", "string"))
    assert values == ["abcd", None, None, None]
    assert reasons == {
        1: "the text in column 'x' has 5 characters, more than 4 bytes",
        2: "the text in column 'x' has 3 characters, more than 4 bytes",
    }
    values, reasons = column_of(pa.array([[1, 2], [1, 2, 3]]), Column("x", "int", is_list=True))
    assert (values, reasons) == ([[1, 2], None], {1: "the list in column 'x' has 3 elements, more than 2"})


@pytest.mark.parametrize(
    ("array", "column", "message"),
    [
        (pa.array([0.5]), Column("x", "string"), "the column 'x' holds double, but its schema says string: write"),
        (pa.array([1]), Column("x", "bool"), "'x' holds int64, but its schema says bool"),
        (pa.array([True]), Column("x", "int"), "'x' holds bool, but its schema says int"),
        (pa.array([NOON]), Column("x", "date"), "'x' holds timestamp.*, but its schema says date"),
        (pa.array([[1]]), Column("x", "int"), "'x' holds list<.*>, but its schema says int"),
        (pa.array([1]), Column("x", "int", is_list=True), "'x' holds int64, but its schema says lists of int"),
        (pa.array([[0.5]]), Column("x", "string", is_list=True), "'x' holds list<.*>, but its schema says lists"),
        (pa.array([{"a": 1}]), Column("x", "int"), "'x' holds struct<.*>, but its schema says int"),
        (pa.array([1]), Column("y", "int"), "the table has no column 'y', which is in its schema"),
    ],
)
def test_a_column_of_another_type_is_refused(array: pa.Array, column: Column, message: str):
    batch = pa.record_batch([array, pa.array(["a"])], names=["x", "label"])
    with pytest.raises(SourceError, match=message):
        converted(batch, schema_of(column))


# The same rows give the same records.


def frame_of(rows: int) -> pd.DataFrame:
    numbers = np.random.default_rng(9)
    frame = pd.DataFrame(
        {
            "number": numbers.normal(size=rows) * 10.0 ** numbers.integers(-20, 20, rows),
            "count": pd.array(numbers.integers(-(2**62), 2**62, rows), "Int64"),
            "word": numbers.choice(["a", "b c", "ü,\n", 'say "yes"', "x" * 100], rows),
            "time": pd.Timestamp("1960-01-01", tz="UTC")
            + pd.to_timedelta(numbers.integers(0, 10**18, rows), unit="ns"),
            "flag": pd.array(numbers.choice([True, False], rows), "boolean"),
            "day": [date(1900, 1, 1) + timedelta(int(days)) for days in numbers.integers(0, 90_000, rows)],
        }
    ).mask(lambda each: numbers.random(each.shape) < 0.1)
    frame["label"] = numbers.choice(["yes", "no"], rows)
    return frame


def test_csv_and_parquet_give_the_same_records(tmp_path: Path):
    frame = frame_of(30_000)
    frame.to_csv(tmp_path / "a.csv", index=False)
    types = pa.schema(
        {
            "number": pa.float64(),
            "count": pa.int64(),
            "word": pa.string(),
            "time": pa.timestamp("ns", "UTC"),
            "flag": pa.bool_(),
            "day": pa.date32(),
            "label": pa.string(),
        }
    )
    table = pa.Table.from_pandas(frame, types, preserve_index=False)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7000)
    (tmp_path / "parts").mkdir()
    for number in range(3):
        names = list(frame.columns)
        random.Random(number).shuffle(names)
        part = table.slice(number * 10_000, 10_000).select(names)
        parquet.write_table(part, tmp_path / f"parts/{number}.parquet", row_group_size=100 + 3000 * number)
    schema, records = of_table([tmp_path / "a.csv"])
    assert [column.type for column in schema.columns] == ["float", "int", "string", "time", "bool", "date", "string"]
    assert of_table([tmp_path / "a.parquet"]) == (schema, records)
    other_schema, other_records = of_table([tmp_path / f"parts/{number}.parquet" for number in range(3)])
    assert {column.name: column for column in other_schema.columns} == {
        column.name: column for column in schema.columns
    }
    assert other_records.select(records.column_names).equals(records)


def test_the_records_are_the_values_of_pandas(tmp_path: Path):
    frame = frame_of(5000)
    frame.to_csv(tmp_path / "a.csv", index=False)
    _, records = of_table([tmp_path / "a.csv"])
    with np.errstate(over="ignore", under="ignore"):
        numbers = frame["number"].astype(np.float32)
    np.testing.assert_array_equal(records["number"].to_numpy(), numbers.to_numpy())
    assert records["count"].to_pylist() == [None if pd.isna(each) else each for each in frame["count"]]
    assert records["word"].to_pylist() == [None if pd.isna(each) else each for each in frame["word"]]
    assert records["flag"].to_pylist() == [None if pd.isna(each) else each for each in frame["flag"]]
    days = [None if pd.isna(each) else (each - date(1970, 1, 1)).days for each in frame["day"]]
    assert records["day"].to_pylist() == days
    times = [None if pd.isna(each) else each.value // 1000 for each in frame["time"]]
    assert records["time"].to_pylist() == times


@pytest.mark.parametrize("seed", range(40))
def test_a_row_is_converted_alike_in_any_batch(seed: int):
    """Also in batches with rejected rows, whose values are parsed in another way."""
    chosen = random.Random(seed)
    texts = ["1", "-0", "0.5", "1e39", "nan", "007", "+1", "", "true", "No", "2020-01-01", "2020-02-30", "x", " 1"]
    texts += ["2020-01-01T10:00", "2020-01-01 10:00:00.1234567Z", "2020-01-01T10:00:00+01:00", "inf", "1_0", "nan(1)"]
    kind = ["int", "float", "bool", "date", "time"][seed % 5]
    array = pa.array(chosen.choices([*texts, None], k=60), chosen.choice([pa.string(), pa.large_string()]))
    batch = pa.record_batch([array, pa.array(["a"] * 60)], names=["x", "label"])
    schema = schema_of(Column("x", kind))
    whole = converted(batch, schema)
    alone = [converted(batch.slice(row, 1), schema) for row in range(60)]
    assert (
        pa.Table.from_batches([each.batch for each in alone])
        .combine_chunks()
        .equals(pa.Table.from_batches([whole.batch]))
    )
    assert whole.rejected == {row: each.rejected[0] for row, each in enumerate(alone) if each.rejected}
    assert whole.rejected


def test_many_rejected_rows_take_little_time():
    batch = pa.record_batch({"x": [f"2021-02-{number % 32:02}" for number in range(20_000)], "label": ["a"] * 20_000})
    found = converted(batch, schema_of(Column("x", "date")))
    assert len(found.rejected) == sum(number % 32 not in range(1, 29) for number in range(20_000))


def test_rows_of_a_csv_file_are_those_of_the_csv_module(tmp_path: Path):
    rows = [["a", "1", "yes"], ["b\n,", "", "no"], ['"', "-3", "yes"]]
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([["word", "count", "label"], *rows])
    _, records = of_table([tmp_path / "a.csv"])
    assert [list(row.values()) for row in records.to_pylist()] == [
        [word, int(count) if count else None, label] for word, count, label in rows
    ]


def test_an_empty_batch_is_converted():
    schema = schema_of(Column("x", "int"), Column("y", "float", is_list=True))
    batch = pa.record_batch({"x": pa.array([], pa.string()), "y": pa.nulls(0), "label": pa.nulls(0)})
    found = converted(batch, schema)
    assert (found.batch.schema, found.batch.num_rows, found.rejected) == (record_schema(schema), 0, {})
