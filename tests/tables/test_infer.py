import json
import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pipeline.config.settings import settings_from
from pipeline.errors import SettingsError, SourceError
from pipeline.kinds.table.data import RowKind
from pipeline.snapshot.snapshot import Snapshot
from pipeline.tables import infer
from pipeline.tables.infer import Columns, Inference, infer_schema
from pipeline.tables.schema import MAX_POSITIONS, Column, Schema, TextRules
from pipeline.tables.source import RawBatch, RejectedRow, read_table
from pipeline.tables.values import TEXT

Texts = Sequence[str | None]


def text_batch(**columns: Texts) -> pa.RecordBatch:
    """Return a batch as it comes from CSV."""
    arrays = [pa.array(column, pa.string()) for column in columns.values()]
    return pa.record_batch(arrays, names=list(columns)).replace_schema_metadata(TEXT)


def of_text(*batches: Texts) -> Column:
    """Return the column of some texts, each sequence of which is a batch."""
    return schema_of(text_batch(x=texts, label=["a"] * len(texts)) for texts in batches).column("x")


def of_arrow(*arrays: pa.Array) -> Column:
    """Return the column of some arrays, each of which is a batch."""
    batches = [pa.record_batch([array, pa.array(["a"] * len(array))], names=["x", "label"]) for array in arrays]
    return schema_of(batches).column("x")


def schema_of(batches: Iterable[pa.RecordBatch], **options: Any) -> Schema:
    raws = (RawBatch(batch, []) for batch in batches)
    return infer_schema(raws, Columns(**{"label": "label", **options}))


def facts(column: Column) -> tuple[Any, ...]:
    return column.type, column.missing, column.distinct, column.low, column.high


# The type of text.


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-20", "0"], "int"),
        (["9223372036854775807", "-9223372036854775808"], "int"),
        (["9223372036854775808", "1"], "string"),
        (["-9223372036854775809"], "string"),
        (["007", "1"], "string"),
        (["1", "00"], "string"),
        (["-01"], "string"),
        (["+1"], "string"),
        (["+1.5", "2.5"], "string"),
        (["007.5"], "string"),
        (["0x10"], "string"),
        ([" 1"], "int"),
        (["1 ", " 2.5"], "float"),
        (["\ttrue", "false "], "bool"),
        ([" 2020-02-29"], "date"),
        (["1_000"], "string"),
        (["1,5"], "string"),
        (["٣"], "string"),
        (["-0"], "int"),
        (["1", "2.5"], "float"),
        (["1e5", "-.5", "5.", "0.5", "-0.5", "0", "1E-3"], "float"),
        (["1", "inf"], "float"),
        (["Infinity", "-INF"], "float"),
        (["1", "NaN"], "int"),
        (["1.5", "nan(1)"], "string"),
        (["true", "False", "TRUE"], "bool"),
        (["true", "1"], "string"),
        (["yes", "no"], "string"),
        (["false"], "bool"),
        (["0", "1"], "int"),
        (["2020-02-29", "1969-12-31"], "date"),
        (["2021-02-29"], "string"),
        (["2020-2-1"], "string"),
        (["20200201"], "int"),
        (["2020-02-01T10:00:00", "2020-02-01 10:00"], "time"),
        (["2020-02-01T10:00:00Z"], "time"),
        (["2020-02-01T10:00:00.123456789+02:00", "2020-02-01", "2020-02-01T10:00:00Z"], "time"),
        (["2020-02-01T25:00:00"], "string"),
        (["10:00:00"], "string"),
        (["2020-02-01", "1"], "string"),
        (["1", "a"], "string"),
        (["a", None], "string"),
        ([None, None], "string"),
    ],
)
def test_the_type_of_text(texts: list[str], kind: str, monkeypatch: pytest.MonkeyPatch):
    for distinct in (10_000, 1):  # The parser sees different values up to a limit, and all values after it.
        monkeypatch.setattr(infer, "MAX_DISTINCT", distinct)
        assert of_text(texts).type == kind
        assert of_text(*([text] for text in texts)).type == kind
        assert of_text(*([text] for text in reversed(texts))).type == kind
        assert of_text(texts[::-1], texts * 3).type == kind


def test_one_late_value_decides_about_all_rows():
    many = [str(number) for number in range(30_000)]
    assert facts(of_text(many)) == ("int", 0, None, 0, 29_999)
    assert facts(of_text(many, ["2.5"])) == ("float", 0, None, 0.0, 29_999.0)
    assert facts(of_text(many, ["nan", "", None, "-inf"])) == ("float", 3, None, 0.0, 29_999.0)
    assert facts(of_text(many, ["007"])) == ("string", 0, None, "0", "9999")
    days = [(date(1900, 1, 1) + timedelta(number)).isoformat() for number in range(30_000)]
    first, last = (date(1900, 1, 1) - date(1970, 1, 1)).days, (date(1900, 1, 1) - date(1970, 1, 1)).days + 29_999
    assert facts(of_text(days)) == ("date", 0, None, first, last)
    time = of_text(days, ["1800-01-01T00:00:00Z"])
    low = (date(1800, 1, 1) - date(1970, 1, 1)).days
    assert facts(time) == ("time", 0, None, low * 86_400_000_000, last * 86_400_000_000)


# The facts of text.


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["3", "1", None, "3", ""], ("int", 2, 2, 1, 3)),
        (["0.1", "0.10", None, "nan", "NaN", "-nan"], ("float", 4, 1, float(np.float32(0.1)), float(np.float32(0.1)))),
        (["1", "inf", "-inf", "1e39"], ("float", 0, 3, 1.0, 1.0)),
        (["nan"], ("float", 1, 0, None, None)),
        (["False", "false", None], ("bool", 1, 1, 0, 0)),
        (["true", "FALSE"], ("bool", 0, 2, 0, 1)),
        (["b", "", "a", None], ("string", 1, 3, "", "b")),
        (["", None], ("string", 1, 1, "", "")),
        ([None, None], ("string", 2, 0, None, None)),
        (["é", "z", "Z"], ("string", 0, 3, "Z", "é")),
        (["1969-12-31", "1970-01-02", None], ("date", 1, 2, -1, 1)),
        (
            ["1970-01-01T01:00+01:00", "1970-01-01T00:00:00Z", "1970-01-01", "1969-12-31T23:59:59.9999999"],
            ("time", 0, 2, -1, 0),
        ),
    ],
)
def test_the_facts_of_text(texts: list[str], expected: tuple[Any, ...]):
    for batches in ([texts], [[text] for text in texts], [texts[::-1]], [[], texts[:1], texts[1:]]):
        assert facts(of_text(*batches)) == expected


def test_the_values_of_strings_are_listed_in_order():
    column = of_text(["b", "a", None, "b"], ["", "c"])
    assert column.values == ("", "a", "b", "c")
    assert of_text(["1"]).values == ()


@pytest.mark.parametrize("count", [10_000, 10_001])
@pytest.mark.parametrize("form", [str, "{}.5".format, "x{}".format])
def test_up_to_ten_thousand_values_are_counted(count: int, form: Callable[[int], str]):
    texts = [form(number) for number in range(count)]
    column = of_text(texts[:6000], texts[5000:], texts)
    typed = of_arrow(pa.array(texts[5000:]), pa.array(texts))
    assert column.distinct == typed.distinct if column.type == "string" else True
    assert column.distinct == (count if count == 10_000 else None)
    assert len(column.values) == (count if count == 10_000 and column.type == "string" else 0)


@pytest.mark.parametrize("role", ["key", "group"])
@pytest.mark.parametrize("texts", [["anna", "bert"], ["1", "2"], ["true", "false"], ["2026-01-31", "2026-02-01"]])
def test_no_value_of_a_person_is_listed(role: str, texts: list[str]):
    schema = schema_of([text_batch(label=["0", "1"], who=texts)], **{role: "who"})
    column = schema.column("who")
    assert (column.distinct, column.low, column.high, column.values) == (2, None, None, ())


def test_a_label_of_too_many_whole_floats_has_too_many_values():
    texts = [f"{number}.0" for number in range(10_001)]
    with pytest.raises(SettingsError, match="which has more than 10,000 different values"):
        schema_of([text_batch(label=texts)], task="classification")


def test_long_texts_are_not_listed():
    texts = [f"{number:06}" * 1000 for number in range(1000)]
    for column in (of_text(texts), of_arrow(pa.array(texts))):
        assert facts(column) == ("string", 0, None, texts[0][:200], texts[-1][:200])
        assert column.values == ()


@pytest.mark.parametrize(("columns", "distinct"), [(5, 3), (9, None)])
def test_memory_is_limited_for_many_columns(columns: int, distinct: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(infer, "_MAX_ALL_DISTINCT", 20)
    texts = ["1", "2", "3"]
    schema = schema_of([text_batch(label=texts, **{f"x{number}": texts for number in range(columns)})])
    assert {column.distinct for column in schema.features} == {distinct}
    assert schema.label.values == ("1", "2", "3")


# A second implementation, a value at a time in Python.


def is_float(text: str) -> bool:
    if re.match(r"-?0\d|\+", text):
        return False
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def parsed(texts: Sequence[str]) -> tuple[str, list[Any]]:
    """Return the type and the values of a column."""
    given, texts = texts, [text.strip() for text in texts]
    if all(re.fullmatch(r"0|-?[1-9]\d*", text) and -(2**63) <= int(text) < 2**63 for text in texts):
        return "int", [int(text) for text in texts]
    if all(map(is_float, texts)):
        numbers = [float(text) for text in texts]
        finite = [number for number in numbers if number == number]
        if finite and all(math.isfinite(number) and number.is_integer() for number in finite):
            return "int", [int(number) if number == number else number for number in numbers]
        with np.errstate(over="ignore"):
            return "float", [float(np.float32(float(text))) for text in texts]
    if all(text.lower() in ("true", "false") for text in texts):
        return "bool", [int(text.lower() == "true") for text in texts]
    try:
        if all(re.fullmatch(r"\d{4}-\d\d-\d\d", text) for text in texts):
            return "date", [(date.fromisoformat(text) - date(1970, 1, 1)).days for text in texts]
        if all(re.match(r"\d{4}-\d\d-\d\d", text) for text in texts):
            times = [datetime.fromisoformat(text) for text in texts]
            times = [time if time.tzinfo else time.replace(tzinfo=UTC) for time in times]
            return "time", [(time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) for time in times]
    except ValueError:
        pass
    return "string", list(given)


def expected_facts(texts: Texts) -> tuple[Any, ...]:
    present = [text for text in texts if text]
    kind, values = parsed(present) if present else ("string", [])
    if kind == "string":
        values = [text for text in texts if text is not None]
    values = [value for value in values if value == value]
    finite = [value for value in values if not isinstance(value, float) or math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (None, None)
    return kind, len(texts) - len(values), len(set(values)), low, high


POOLS = {
    "ints": ["0", "1", "-5", "7 ", " 12345678901"],
    "floats": ["0.5", "0.0", "-0.0", "1e3", ".25", "5.", "inf", "nan", "3.14159", "1e-50"],
    "codes": ["007", "+1", "0x1", "1 x"],
    "bools": ["true", "False", "TRUE"],
    "dates": ["2020-02-29", "1969-07-20", "0001-01-01", "9999-12-31"],
    "times": [
        "2020-02-29T12:00:00",
        "1969-07-20T20:17:40.5Z",
        "2020-01-01T00:00:00+05:30",
        "2020-01-01 10:11:12.123456",
    ],
    "words": ["a", "ü", "2020-02-30", "2020-13-01T00:00:00", "nine"],
}


@pytest.mark.parametrize("seed", range(120))
def test_random_columns_have_the_facts_that_plain_python_finds(seed: int, monkeypatch: pytest.MonkeyPatch):
    chosen = random.Random(seed)
    names = chosen.sample(list(POOLS), k=chosen.choice([1, 1, 2, 3]))
    pool = [text for name in names for text in chosen.sample(POOLS[name], k=chosen.randrange(1, 4))]
    if chosen.random() < 0.5:
        pool += [None, ""]
    texts = chosen.choices(pool, k=chosen.randrange(1, 40))
    cuts = sorted(chosen.choices(range(len(texts) + 1), k=3))
    batches = [texts[start:end] for start, end in zip([0, *cuts], [*cuts, len(texts)], strict=True)]
    assert facts(of_text(*batches)) == expected_facts(texts)
    limit = chosen.randrange(1, 5)
    monkeypatch.setattr(infer, "MAX_DISTINCT", limit)
    few = of_text(*batches)
    kind, missing, _, low, high = expected_facts(texts)
    assert (few.type, few.missing, few.low, few.high) == (kind, missing, low, high)
    assert few.distinct == of_text(*([text] for text in chosen.sample(texts, k=len(texts)))).distinct


def test_the_facts_of_a_csv_file_are_those_of_pandas(tmp_path: Path):
    numbers = np.random.default_rng(5)
    rows = 50_000
    frame = pd.DataFrame(
        {
            "number": numbers.normal(size=rows).round(3),
            "count": numbers.integers(-50, 50, rows),
            "word": numbers.choice(["a", "b", "ccc"], rows),
            "day": pd.Timestamp("2001-02-03") + pd.to_timedelta(numbers.integers(0, 9000, rows), unit="D"),
            "label": numbers.choice(["yes", "no"], rows),
        }
    ).mask(lambda each: numbers.random(each.shape) < 0.1)
    frame["count"] = frame["count"].astype("Int64")
    frame.to_csv(tmp_path / "a.csv", index=False)
    schema = infer_schema(read_table([tmp_path / "a.csv"]), Columns("label"))
    assert schema.rows == rows
    assert [column.type for column in schema.columns] == ["float", "int", "string", "date", "string"]
    for column in schema.columns:
        expected = frame[column.name]
        assert column.missing == expected.isna().sum()
        assert column.distinct == expected.nunique()
    assert np.float32(frame["number"].min()) == schema.column("number").low
    assert np.float32(frame["number"].max()) == schema.column("number").high
    assert (schema.column("count").low, schema.column("count").high) == (-50, 49)
    assert (schema.column("day").high or 0) == (frame["day"].max() - pd.Timestamp(0)).days


# Types of Arrow.

NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
NOON_US = 1_577_880_000_000_000


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([3, None, 1], pa.int8()), ("int", 1, 2, 1, 3)),
        (pa.array([3, 2**63 - 1], pa.uint64()), ("int", 0, 2, 3, 2**63 - 1)),
        (pa.array([0.5, math.nan, None], pa.float64()), ("float", 2, 1, 0.5, 0.5)),
        (pa.array([0.1], pa.float64()), ("float", 0, 1, float(np.float32(0.1)), float(np.float32(0.1)))),
        (pa.array(np.array([0.5, np.nan], np.float16)), ("float", 1, 1, 0.5, 0.5)),
        (pa.array([1e300, math.inf, 1.0]), ("float", 0, 2, 1.0, 1.0)),
        (pa.array([Decimal(2**63 - 1), None], pa.decimal128(38, 0)), ("int", 1, 1, 2**63 - 1, 2**63 - 1)),
        (pa.array([Decimal("1.10"), None]), ("float", 1, 1, float(np.float32(1.1)), float(np.float32(1.1)))),
        (pa.array([True, False, None]), ("bool", 1, 2, 0, 1)),
        (pa.array(["007", None, ""]), ("string", 1, 2, "", "007")),
        (pa.array(["1", "2"], pa.large_string()), ("string", 0, 2, "1", "2")),
        (pa.array(["1", "2"], pa.string_view()), ("string", 0, 2, "1", "2")),
        (pa.array(["b", "a", None, "b"]).dictionary_encode(), ("string", 1, 2, "a", "b")),
        (pa.array([5, 6, 5]).dictionary_encode(), ("int", 0, 2, 5, 6)),
        (pa.array(["é".encode(), None]), ("string", 1, 1, "é", "é")),
        (pa.array([date(1969, 12, 31), None]), ("date", 1, 1, -1, -1)),
        (pa.array([date(1969, 12, 31)], pa.date64()), ("date", 0, 1, -1, -1)),
        (pa.array([NOON], pa.timestamp("s", "UTC")), ("time", 0, 1, NOON_US, NOON_US)),
        (pa.array([NOON], pa.timestamp("ms", "Europe/Berlin")), ("time", 0, 1, NOON_US, NOON_US)),
        (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")), ("time", 0, 1, NOON_US, NOON_US)),
        (pa.array([-1, 999, 1000, None], pa.timestamp("ns")), ("time", 1, 3, -1, 1)),
        (pa.nulls(2), ("string", 2, 0, None, None)),
        (pa.nulls(2, pa.float64()), ("float", 2, 0, None, None)),
    ],
)
def test_the_facts_of_arrow_types(array: pa.Array, expected: tuple[Any, ...]):
    assert facts(of_arrow(array)) == expected
    assert facts(of_arrow(array[:1], array[1:], array[:0])) == expected
    if array.type != pa.string_view():  # Arrow cannot reverse these.
        assert facts(of_arrow(array[::-1])) == expected


@pytest.mark.parametrize(
    ("array", "kind", "length", "missing"),
    [
        (pa.array([[1], None, []]), "int", 1, 2),  # An empty list is a missing vector.
        (pa.array([[1], None, [], [1, 2]]), "int", None, 1),
        (pa.array([[0.5], None], pa.large_list(pa.float32())), "float", 1, 1),
        (pa.array([[0.5, 1.5], None], pa.list_(pa.float64(), 2)), "float", 2, 1),
        (pa.array([None, [0.5, 1.5]], pa.list_(pa.float64(), 2)), "float", 2, 1),
        (pa.array([[True, False], [False, False]]), "bool", 2, 0),
        (pa.array([["a"], None]), "string", None, 1),
        (pa.array([[date(2020, 1, 1)], None]), "date", None, 1),
        (pa.array([[], None], pa.list_(pa.null())), "string", None, 2),
        (pa.array([[], None], pa.list_(pa.int8())), "int", None, 2),
    ],
)
def test_lists(array: pa.Array, kind: str, length: int | None, missing: int):
    for batches in ([array], [array[:1], array[1:]]):
        column = of_arrow(*batches)
        assert (column.type, column.is_list, *facts(column)[1:]) == (kind, True, missing, None, None, None)
        assert column.length == length


@pytest.mark.parametrize(("size", "length"), [(MAX_POSITIONS, MAX_POSITIONS), (MAX_POSITIONS + 1, None)])
def test_lists_that_are_too_long_are_no_vectors(size: int, length: int | None):
    """A list of audio would become as many inputs of a model as it has samples."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2 * size, np.int8)), size)
    schema = schema_of([pa.record_batch({"x": lists, "label": ["a", "b"]})])
    assert schema.column("x").length == length
    too_long = "column 'x': lists of 65537 numbers; the model sees the mean of their logarithms. A vector has at most"
    assert list(schema.notes) == ([] if length else [f"{too_long} 65,536 values"])


def test_a_list_of_a_rejected_row_is_no_vector_of_another_length():
    """A missing element makes a row one to reject, so the length of its list does not count."""
    assert of_arrow(pa.array([[1, 2], [None], [3, 4, None], None])).length == 2
    assert of_arrow(pa.array([[0.5, 1.5], [float("nan")], []])).length == 2
    assert of_arrow(pa.array([[9.0], [0.5, 1.5], [None, 1.5]], pa.list_(pa.float32(), -1))[1:]).length == 2


def test_the_length_of_lists_is_part_of_the_fingerprint():
    """A list of a row that is rejected for another reason may decide it alone."""
    tables = [pa.record_batch({"x": [[1, 2], lists], "label": ["a", None]}) for lists in ([3, 4], [3])]
    snapshots = [cast(Snapshot, SimpleNamespace(table=schema_of([table]).to_json())) for table in tables]
    one, other = (RowKind().fingerprinted(snapshot) for snapshot in snapshots)
    assert one != other


def test_files_may_have_types_that_can_be_joined():
    ints, floats = pa.array([1, 2**24 + 1]), pa.array([0.5, 2.0**24, None])
    for batches in ([ints, floats], [floats, ints], [pa.nulls(0), floats[:1], ints, floats[1:]]):
        assert facts(of_arrow(*batches)) == ("float", 1, 3, 0.5, 2.0**24)
    many = pa.array(range(6000)), pa.array(np.arange(6000) + 0.5)
    assert facts(of_arrow(*many)) == ("float", 0, None, 0.0, 5999.5)
    days, times = pa.array([date(1970, 1, 2)]), pa.array([NOON])
    assert facts(of_arrow(days, times)) == facts(of_arrow(times, days)) == ("time", 0, 2, 86_400_000_000, NOON_US)
    assert facts(of_arrow(pa.nulls(3), pa.array([7], pa.int16()), pa.array([8]))) == ("int", 3, 2, 7, 8)
    assert of_arrow(pa.nulls(1), pa.array([[1]])).is_list


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            [pa.array([{"a": 1}])],
            "the column 'x' holds struct<a: int64>, which is not supported: leave it out with drop",
        ),
        ([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], "'x' holds map<string, int64.*>, which is not"),
        ([pa.array([[[1]]])], "'x' holds list<.*>, which is not supported"),
        ([pa.array([1], pa.time64("us"))], "'x' holds time64"),
        ([pa.array([1], pa.duration("us"))], "'x' holds duration"),
        ([pa.array([2**63], pa.uint64())], "'x' holds uint64 with 1 values that cannot be stored"),
        ([pa.array([Decimal(2**63)])], "'x' holds decimal128.19, 0. with 1 values that cannot .* with drop_columns"),
        ([pa.array([b"\xff", b"a"])], "'x' holds binary with 1 values .*UTF-8"),
        ([pa.array([2**62], pa.timestamp("s"))], "'x' holds timestamp.s. with 1 values"),
        ([pa.array([1]), pa.array(["a"])], "'x' holds int and string: write it with one type"),
        ([pa.array([True]), pa.array([1])], "'x' holds bool and int"),
        ([pa.array([1]), pa.array([[1]])], "'x' holds lists and single values"),
    ],
)
def test_columns_that_cannot_be_stored_are_named(arrays: list[pa.Array], message: str):
    with pytest.raises(SourceError, match=message):
        of_arrow(*arrays)


# Roles, label and task.


def test_columns_have_the_roles_of_the_settings():
    schema = schema_of([text_batch(a=["1"], b=["val"], label=["3"], c=["4"], d=["5"])], key="d", group="a", split="b")
    assert [(column.name, column.role) for column in schema.columns] == [
        ("a", "group"),
        ("b", "split"),
        ("label", "label"),
        ("c", "feature"),
        ("d", "key"),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": ""}, "label_column must be set to the column to learn. The columns are 'x', 'label'$"),
        ({"label": "y"}, "label_column is 'y', but the table has no such column. The columns are 'x', 'label'$"),
        ({"key": "y"}, "key_column is 'y', but"),
        ({"group": "y"}, "group_column is 'y', but"),
        ({"split": "y"}, "split_column is 'y', but"),
        ({"key": "label"}, "key_column and label_column are both 'label': name different columns. The columns are 'x'"),
        ({"group": "x", "split": "x"}, "split_column and group_column are both 'x'"),
    ],
)
def test_settings_that_name_no_column_of_their_own_are_refused(options: dict[str, str], message: str):
    with pytest.raises(SettingsError, match=message):
        schema_of([text_batch(x=["1"], label=["2"])], **options)


@pytest.mark.parametrize("metadata", [TEXT, None])
def test_the_values_of_keys_and_groups_are_counted_but_not_listed(metadata: Any):
    names = {name: ["anna", "bert", "anna"] for name in ("key", "group", "split", "x", "label")}
    names["split"] = ["test", "train", "test"]
    batch = text_batch(**names).replace_schema_metadata(metadata)
    schema = schema_of([batch], key="key", group="group", split="split")
    for column in schema.columns:
        assert column.distinct == 2
        values = ["test", "train"] if column.name == "split" else ["anna", "bert"]
        assert list(column.values) == ([] if column.name in ("key", "group") else values)


def test_an_error_shows_twenty_columns():
    batch = text_batch(**{f"x{number}": ["1"] for number in range(25)})
    with pytest.raises(SettingsError, match=r"'x18', 'x19' and 5 more$"):
        schema_of([batch])


@pytest.mark.parametrize(
    ("labels", "task", "values"),
    [
        (["b", "a", None, "b"], "classification", ("a", "b")),
        (["10", "9", "9"], "classification", ("9", "10")),
        (["True", "false"], "classification", ("false", "true")),
        ([str(number) for number in range(20)], "classification", tuple(map(str, range(20)))),
        ([str(number) for number in range(21)], "regression", tuple(map(str, range(21)))),
        (["0.5", "10.1", "nan", "9"], "regression", ("0.5", "9.0", "10.1")),
    ],
)
def test_the_label_decides_what_is_learned(labels: list[str], task: str, values: tuple[str, ...]):
    schema = schema_of([text_batch(x=labels, label=labels)])
    assert (schema.task, schema.label.values) == (task, values)


@pytest.mark.parametrize(
    ("labels", "task", "kind", "values"),
    [
        (["1.0", "0.0", None, "1.0"], "classification", "int", ("0", "1")),
        (["1", "0.0", "10.", "2e0", "nan", "inf"], "classification", "int", ("0", "1", "2", "10")),
        (["-1.0", "1.0"], "classification", "int", ("-1", "1")),
        (["1.0", "0.5"], "regression", "float", ("0.5", "1.0")),
        ([f"{number}.0" for number in range(21)], "regression", "int", tuple(map(str, range(21)))),
        (["16777217.0", "1.0"], "classification", "int", ("1", "16777217")),
        # A double does not hold all whole numbers of this size.
        (["9007199254740992.0", "1.0"], "regression", "float", ("1.0", "9.007199e+15")),
    ],
)
def test_few_whole_numbers_as_floats_are_classes(labels: list[str], task: str, kind: str, values: tuple[str, ...]):
    for order in (labels, labels[::-1]):
        numbers = pa.array([None if text is None else float(text) for text in order])
        halves = [pa.record_batch({"label": half}) for half in (numbers[:2], numbers[2:])]
        for batches in ([text_batch(label=order)], halves):
            schema = schema_of(batches)
            assert (schema.task, schema.label.type, schema.label.values) == (task, kind, values)
        if kind == "int":
            assert (schema.label.low, schema.label.high) == (int(values[0]), int(values[-1]))


def test_parts_of_a_table_agree_that_whole_numbers_are_classes():
    parts = [Inference(Columns("label")) for _ in range(2)]
    for part, values in zip(parts, ([1, 0, 1], [1.0, None, 0.0]), strict=True):
        part.add(RawBatch(pa.record_batch({"label": values}), []))
    parts[0].merge(parts[1])
    assert parts[0].schema().label == Column(
        "label", "int", role="label", missing=1, distinct=2, low=0, high=1, values=("0", "1")
    )


def test_the_task_can_be_set():
    floats = text_batch(label=[f"{number}.0" for number in range(100)])
    assert schema_of([floats], task="classification").label.type == "int"
    assert schema_of([text_batch(label=["1.0", "0.0"])], task="regression").label.type == "int"
    few, many = text_batch(label=["1", "2"]), text_batch(label=list(map(str, range(100))))
    assert schema_of([few], task="regression").task == "regression"
    assert schema_of([many], task="classification").task == "classification"


def test_an_empty_label_or_key_is_missing():
    for metadata in (TEXT, None):
        batch = text_batch(label=["", "a", None], key=["", "b", "c"], x=["", "a", None]).replace_schema_metadata(
            metadata
        )
        schema = schema_of([batch], key="key")
        assert [column.missing for column in schema.columns] == [2, 1, 1]
        assert (schema.label.values, schema.column("x").values) == (("a",), ("", "a"))


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        (["2020-01-01"], "auto", "label_column is 'label', which holds dates: name a column of text, numbers or"),
        (["2020-01-01T10:00"], "regression", "which holds times"),
        ([None, ""], "auto", "which has no value in any row"),
        (["nan"], "auto", "which has no value in any row"),
        (["a", "b"], "regression", "which holds strings: regression needs numbers"),
        (["0.5"], "classification", "which holds numbers with a fraction.*: store its values as integers or as text"),
        ([f"x{number}" for number in range(10_001)], "auto", "which has more than 10,000 different values"),
    ],
)
def test_a_label_that_cannot_be_learned_is_refused(labels: list[str], task: str, message: str):
    with pytest.raises(SettingsError, match=message):
        schema_of([text_batch(label=labels)], task=task)


def test_a_label_of_lists_is_refused():
    with pytest.raises(SettingsError, match="which holds lists"):
        schema_of([pa.record_batch({"label": pa.array([[1]])})])


def test_rejected_rows_are_rows():
    rejected = [RejectedRow("a.csv:2", "reason", "advice", 0)] * 3
    raws = [RawBatch(text_batch(label=["a"]), rejected), RawBatch(text_batch(label=[]), rejected[:1])]
    schema = infer_schema(raws, Columns("label"))
    assert schema.rows == 5


def test_a_table_without_rows_is_refused():
    with pytest.raises(SourceError, match="no valid row"):
        schema_of([])


def test_a_schema_survives_json():
    batch = text_batch(a=["1"], b=["2.5"], label=["yes"], c=["2020-01-01"], d=["x"])
    schema = schema_of([batch])
    assert Schema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False))) == schema


def test_times_of_zones_are_converted():
    zone = timezone(timedelta(hours=-3, minutes=-30))
    column = of_text([datetime(2020, 1, 1, 8, 30, tzinfo=zone).isoformat()])
    assert (column.low, column.high) == (NOON_US, NOON_US)


# Facts of several processes.

PARTS: dict[str, Sequence[Texts]] = {
    "numbers": (["1", "2"], ["3.5", "nan", "1e300"], ["4", None]),
    "doubles": ([f"{1.7e9 + number / 8}" for number in range(30)], [f"{number / 3}" for number in range(40)]),
    "few others": ([str(number) for number in range(60)], ["-", " ", "7"], ["x", "-", "2020-01-01"]),
    "codes": ([str(number) for number in range(60)], ["007", "08"], ["009"]),
    "long integers": (["5", "6"], ["92233720368547758080"], ["7"]),
    "times": (["2020-01-01", "NaN", "NaN"], ["2020-01-01T10:00"], ["2020-01-03"]),
    "words alone": (["NaN", "NaN"], ["2020-01-01"], ["NA", "2020-01-02"]),
    "NaN alone": (["NaN"], ["nan", None]),
    "dates and NAN": (["2020-01-01"], ["NAN"]),
    "NAN and dates": (["NAN"], ["2020-01-01"]),
    "truth and NaN": (["true"], ["-nan", "NaN"]),
    "long and NaN": (["1", "9007199254740993"], ["NaN", "1"]),
    "truth": (["true"], ["false", "NA"], ["true", "perhaps"], ["true"] * 30),
    "nothing": ([None, None], ["", None], ["NA"]),
    "texts": (["b", "a" * 300], ["c", "b"], ["a", "1", "NA"]),
    "equal samples": (["1", "x"], ["x", "y", "2"], ["z"] + ["3"] * 40),
}
LABEL = Columns(label="label")
DEFAULT_WORDS = TextRules(missing=tuple(settings_from({}).missing_values))
WORDS = ["1", "2", "2.5", "007", "NaN", "NAN", "NA", "", " 3", "x", "y", "2020-01-01", "2020-01-01T01:00", "true", None]


def raws_of(parts: Sequence[Texts], first_number: int = 2) -> list[RawBatch]:
    """Return a batch for each part of a file."""
    raws = []
    for texts in parts:
        batch = text_batch(x=texts, label=["ab"[number % 2] for number in range(len(texts))])
        raws.append(RawBatch(batch, [], prefix="t.csv:", first_number=first_number))
        first_number += len(texts)
    return raws


def joined_schema(parts: Sequence[Texts], options: Columns = LABEL) -> Schema:
    """Return the schema by the facts of each part alone, which pass through JSON."""
    total, rows = Inference(options), 0
    for texts in parts:
        one = Inference(options)
        one.add(*raws_of([texts]))
        content = json.loads(json.dumps(one.to_json()))

        def moved(place: str, before: int = rows) -> str:
            name, number = place.split(":")
            return f"{name}:{int(number) + before}"

        total.merge(Inference.from_json(options, content), moved)
        rows += len(texts)
    return total.schema()


@pytest.mark.parametrize("options", [LABEL, replace(LABEL, group="x"), replace(LABEL, texts=DEFAULT_WORDS)])
@pytest.mark.parametrize("limit", [2, 50, 10_000])
@pytest.mark.parametrize("name", PARTS)
def test_facts_of_several_processes_are_those_of_one(
    name: str, limit: int, options: Columns, monkeypatch: pytest.MonkeyPatch
):
    """Types, counts, ranges, values and notes with their samples and places."""
    monkeypatch.setattr(infer, "MAX_DISTINCT", limit)
    whole = infer_schema(raws_of(PARTS[name]), options)
    assert joined_schema(PARTS[name], options) == whole


@pytest.mark.parametrize("word", ["NaN", "nan", "NAN"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [("9007199254740993", "int"), ("1.5", "float"), ("2020-01-01", "date"), ("true", "bool"), ("a", "string")],
)
def test_nan_decides_no_type(value: str, kind: str, word: str):
    """If it is no missing value, dates and truth values beside it are texts, so that no row is rejected."""
    if word == "NAN" and kind in ("date", "bool"):
        kind = "string"
    options = replace(LABEL, texts=DEFAULT_WORDS)
    for parts in ([[value, word]], [[word, value]], [[word], [value]], [[value], [word, value]]):
        column = infer_schema(raws_of(parts), options).column("x")
        assert (column.type, column.missing) == (kind, 0 if kind == "string" else 1)
        assert kind != "int" or column.high == int(value)


@pytest.mark.parametrize("limit", [3, 10_000])
def test_random_facts_of_several_processes_are_those_of_one(limit: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(infer, "MAX_DISTINCT", limit)
    generator = random.Random(limit)
    for _ in range(60):
        words = generator.sample(WORDS, generator.randint(1, 6))
        parts = [generator.choices(words, k=generator.randint(1, 12)) for _ in range(generator.randint(2, 5))]
        parts[0] += ["5"] * generator.choice([0, 100])
        assert joined_schema(parts) == infer_schema(raws_of(parts), Columns(label="label")), parts


def test_numbers_that_become_equal_in_one_of_several_processes_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(infer, "MAX_DISTINCT", 50)
    close, far = pa.array(1.7e9 + np.arange(60) / 8), pa.array(np.arange(200) / 4)
    for order in ((close, far), (far, close)):
        parts = [Inference(LABEL), Inference(LABEL)]
        for part, numbers in zip(parts, order, strict=True):
            part.add(RawBatch(pa.record_batch({"x": numbers, "label": ["a"] * len(numbers)}), []))
        parts[0].merge(parts[1])
        [note] = parts[0].schema().notes
        assert note.startswith("column 'x': 60 different numbers become 1 in the records")


def test_typed_facts_of_several_processes_are_those_of_one():
    arrays = [
        [pa.array([1, None, 2**60]), pa.array([3], pa.int32())],
        [pa.array([0.1, math.inf, None]), pa.array([2.0], pa.float32()), pa.array([7])],
        [pa.array([True, False]), pa.array([None, True])],
        [pa.array(["b", "ä", None]), pa.array(["a"]).dictionary_encode()],
        [pa.array([date(2020, 1, 1)]), pa.array([datetime(2020, 1, 2, 3)])],
        [pa.array([[1, 2], None]), pa.array([[3]])],
        [pa.array([[1, 2], [], None]), pa.array([[3, 4]])],
    ]
    for column in arrays:
        batches = [pa.record_batch([each, pa.array(["a"] * len(each))], names=["x", "label"]) for each in column]
        total = Inference(Columns(label="label"))
        for batch in batches:
            one = Inference(Columns(label="label"))
            one.add(RawBatch(batch, []))
            total.merge(Inference.from_json(Columns(label="label"), json.loads(json.dumps(one.to_json()))))
        assert total.schema() == schema_of(batches)
