"""The entries of records, compared with those of the encoder of single features and with TensorFlow.

A batch is a mapping from the name of a column to its type and its values. None is a missing value.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.records import example
from pipeline.tables import encode
from pipeline.tables.encode import encode_columns

TYPES = {"int": pa.int64(), "float": pa.float32(), "bool": pa.bool_(), "string": pa.large_string()} | {
    f"{name} list": pa.large_list(type_)
    for name, type_ in (("int", pa.int64()), ("float", pa.float32()), ("string", pa.large_string()))
}
KINDS = {"int": "int64", "bool": "int64", "float": "float", "string": "bytes"}
LISTS = {"int64": "int64_list", "float": "float_list", "bytes": "bytes_list"}

Columns = Mapping[str, tuple[str, Sequence[Any]]]


def batch_of(columns: Columns) -> pa.RecordBatch:
    arrays = [pa.array(values, TYPES[type_]) for type_, values in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def rows_of(batch: pa.RecordBatch, names: Sequence[str] | None = None) -> list[bytes]:
    found = encode_columns(batch, batch.schema.names if names is None else names)
    assert found.type == pa.large_binary()
    return found.to_pylist()


def expected_of(batch: pa.RecordBatch) -> list[bytes]:
    """Return the entries of each row from the encoder of single features."""
    kinds = {field.name: kind_of(field.type) for field in batch.schema}
    return [
        b"".join(entry(name, kinds[name], row[name]) for name in sorted(row) if row[name] is not None)
        for row in batch.to_pylist()
    ]


def kind_of(type_: pa.DataType) -> str:
    return KINDS[next(name for name, known in TYPES.items() if known == type_).split()[0]]


def entry(name: str, kind: str, value: Any) -> bytes:
    if value == [] and isinstance(value, list):
        return example.list_entry_head(name, kind, 0)
    if kind == "bytes":
        value = [text.encode() for text in value] if isinstance(value, list) else value.encode()
    return example.encode_entries({name: value})


def check_with_tensorflow(batch: pa.RecordBatch, rows: Sequence[bytes]) -> None:
    import tensorflow as tf

    kinds = {field.name: kind_of(field.type) for field in batch.schema}
    for row, values in zip(rows, batch.to_pylist(), strict=True):
        features = tf.train.Example.FromString(example.example_head(len(row)) + row).features.feature
        assert set(features) == {name for name, value in values.items() if value is not None}
        for name, feature in features.items():
            assert feature.WhichOneof("kind") == LISTS[kinds[name]]
            found = list(getattr(feature, LISTS[kinds[name]]).value)
            value = values[name] if isinstance(values[name], list) else [values[name]]
            assert found == ([text.encode() for text in value] if kinds[name] == "bytes" else value)


def random_value(draw: random.Random, type_: str) -> Any:
    match type_:
        case "int":
            return draw.choice((1, -1)) * draw.getrandbits(draw.choice((1, 7, 8, 14, 15, 31, 40, 63)))
        case "float":
            return float(np.float32(draw.choice((0.0, -0.0, draw.random(), draw.gauss(0, 1e30), float("inf")))))
        case "bool":
            return draw.random() < 0.5
        case "string":
            return "".join(draw.choices('az 0\0\n"éß語😀', k=draw.choice((0, 1, 5, 31, 127, 128, 300))))
        case _:
            return [random_value(draw, type_.split()[0]) for _ in range(draw.choice((0, 0, 1, 2, 17, 64)))]


def random_batch(seed: int) -> pa.RecordBatch:
    """Return columns of all types, in random order, with names of lengths around those that change the head."""
    draw = random.Random(seed)
    columns: dict[str, tuple[str, list[Any]]] = {}
    rows = draw.choice((1, 2, 9, 40))
    for type_ in draw.choices(list(TYPES), k=draw.choice((1, 3, 20))):
        name = draw.choice("aÄ語😀 /") * draw.choice((1, 2, 30, 110, 115, 120, 128)) + str(len(columns))
        missing = draw.choice((0, 0, 0.1, 0.9, 1))
        values = [None if draw.random() < missing else random_value(draw, type_) for _ in range(rows)]
        columns[name] = (type_, values)
    return batch_of(columns)


@pytest.mark.parametrize("seed", range(40))
def test_random_batches_equal_the_encoder_of_single_features_and_tensorflow_agrees(seed: int):
    batch = random_batch(seed)
    rows = rows_of(batch)
    assert rows == expected_of(batch)
    check_with_tensorflow(batch, rows)


@pytest.mark.long
def test_thousands_of_random_batches_equal_the_encoder_of_single_features():
    for seed in range(1000, 4000):
        batch = random_batch(seed)
        assert rows_of(batch) == expected_of(batch), seed


def test_the_bytes_stay_as_they_are():
    """The bytes are part of a dataset's version."""
    batch = batch_of(
        {
            "é": ("string", ["ü", None]),
            "b": ("bool", [True, False]),
            "f": ("float", [0.5, None]),
            "i": ("int", [300, -1]),
            "n": ("int list", [[1, 128], []]),
            "t": ("string list", [["", "x"], []]),
            "v": ("float list", [[1.0, -2.0], []]),
        }
    )
    assert [row.hex(" ") for row in rows_of(batch)] == [
        "0a 0a 0a 01 62 12 05 1a 03 0a 01 01 0a 0d 0a 01 66 12 08 12 06 0a 04 00 00 00 3f 0a 0b 0a 01 69 12 06 1a 04 "
        "0a 02 ac 02 0a 0c 0a 01 6e 12 07 1a 05 0a 03 01 80 01 0a 0c 0a 01 74 12 07 0a 05 0a 00 0a 01 78 0a 11 0a 01 "
        "76 12 0c 12 0a 0a 08 00 00 80 3f 00 00 00 c0 0a 0c 0a 02 c3 a9 12 06 0a 04 0a 02 c3 bc",
        "0a 0a 0a 01 62 12 05 1a 03 0a 01 00 0a 13 0a 01 69 12 0e 1a 0c 0a 0a ff ff ff ff ff ff ff ff ff 01 0a 07 0a "
        "01 6e 12 02 1a 00 0a 07 0a 01 74 12 02 0a 00 0a 07 0a 01 76 12 02 12 00",
    ]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("type_", TYPES)
def test_each_type_alone(type_: str, missing: bool):
    draw = random.Random(type_)
    values = [None if missing and draw.random() < 0.3 else random_value(draw, type_) for _ in range(200)]
    batch = batch_of({"some name": (type_, values)})
    rows = rows_of(batch)
    assert rows == expected_of(batch)
    check_with_tensorflow(batch, rows)


@pytest.mark.parametrize("type_", TYPES)
def test_a_column_without_any_value_has_no_entries(type_: str):
    assert rows_of(batch_of({"a": (type_, [None, None])})) == [b"", b""]


@pytest.mark.parametrize("type_", [type_ for type_ in TYPES if type_.endswith("list")])
def test_a_column_of_only_empty_lists(type_: str):
    batch = batch_of({"a": (type_, [[], None, []])})
    assert rows_of(batch) == expected_of(batch)


def test_integers_of_every_length():
    values = [sign * (2**bits + step) for bits in range(64) for step in (-1, 0) for sign in (1, -1)]
    values = [value for value in values if -(2**63) <= value < 2**63]
    batch = batch_of({"a": ("int", [*values, -(2**63)]), "b": ("int list", [values] * (len(values) + 1))})
    assert rows_of(batch) == expected_of(batch)


@pytest.mark.parametrize("type_", ["string", "string list"])
def test_texts_of_lengths_that_change_the_head(type_: str):
    lengths = [0, *range(100, 140), *range(16_360, 16_400), 1 << 20, (1 << 21) - 40, 1 << 21]
    texts = ["x" * length for length in lengths]
    batch = batch_of({"a": (type_, [[text] for text in texts] if type_.endswith("list") else texts)})
    assert rows_of(batch) == expected_of(batch)


def test_names_of_lengths_that_change_the_head():
    draw = random.Random(0)
    names = [(f"{type_} ".ljust(length, "n"), type_) for type_ in TYPES for length in (*range(90, 130), 16_370, 20_000)]
    batch = batch_of({name: (type_, [random_value(draw, type_), None]) for name, type_ in names})
    assert rows_of(batch) == expected_of(batch)


def test_names_are_ordered_as_utf_8():
    names = ["a", "B", "", "ab", "a b", "é", "\uffee", "😀", "語"]
    batch = batch_of({name: ("int", [1]) for name in names})
    row = rows_of(batch)[0]
    assert row == example.encode_entries(dict.fromkeys(names, 1))
    assert list(example.decode(example.example_head(len(row)) + row)) == sorted(names, key=str.encode)


@pytest.mark.parametrize("seed", range(20))
def test_a_slice_of_a_batch_has_the_rows_of_the_slice(seed: int):
    batch = random_batch(seed)
    rows = rows_of(batch)
    for start, stop in ((1, batch.num_rows), (0, batch.num_rows - 1), (7, 8), (13, 31)):
        assert rows_of(batch.slice(start, max(0, stop - start))) == rows[start:stop]


@pytest.mark.parametrize("cells", [1, 7, 50])
def test_the_rows_encoded_at_once_do_not_change_the_bytes(cells: int, monkeypatch: pytest.MonkeyPatch):
    batches = [random_batch(seed) for seed in range(10)]
    before = [rows_of(batch) for batch in batches]
    monkeypatch.setattr(encode, "MAX_CELLS", cells)
    monkeypatch.setattr(encode, "MAX_INTEGERS", cells)
    assert [rows_of(batch) for batch in batches] == before


def test_values_behind_missing_ones_do_not_appear():
    """Arrow leaves open what is stored in the place of a missing value."""
    mask = np.array([False, True, False])
    texts = pa.array(["ab", "secret", "c"], pa.large_string())
    validity = pa.py_buffer(np.packbits(~mask, bitorder="little"))
    lists = [
        pa.LargeListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int64()), values, mask=pa.array(mask))
        for values in (pa.array([1, -9, 3], pa.int64()), pa.array([1, 9, 3], pa.float32()), texts)
    ]
    arrays = [
        pa.array(np.array([1, -9, 3]), pa.int64(), mask=mask),
        pa.array(np.array([1, 9, 3], np.float32), mask=mask),
        pa.Array.from_buffers(pa.large_string(), 3, [validity, *texts.buffers()[1:]]),
        *lists,
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=list("abcdef"))
    assert rows_of(batch)[1] == b""
    assert rows_of(batch) == expected_of(batch)


@pytest.mark.long
def test_ten_thousand_columns():
    draw = random.Random(0)
    types = [draw.choice(list(TYPES)) for _ in range(10_000)]
    batch = batch_of(
        {
            f"column {number}": (type_, [random_value(draw, type_), None, random_value(draw, type_)])
            for number, type_ in enumerate(types)
        }
    )
    assert rows_of(batch) == expected_of(batch)


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b"]])
def test_no_rows(names: list[str]):
    batch = batch_of({"a": ("int", []), "b": ("string list", [])})
    assert rows_of(batch, names) == []


def test_only_the_requested_columns_are_encoded():
    batch = batch_of({"a": ("int", [1, 2]), "b": ("int", [3, 4]), "c": ("int", [5, 6])})
    assert rows_of(batch, ["c", "a"]) == [example.encode_entries({"a": a, "c": c}) for a, c in ((1, 5), (2, 6))]
    assert rows_of(batch, []) == [b"", b""]


def test_another_type_is_refused():
    batch = pa.RecordBatch.from_arrays([pa.array([1.0], pa.float64())], names=["a"])
    with pytest.raises(TypeError, match="column 'a' has the type double: cast it"):
        encode_columns(batch, ["a"])


@pytest.mark.parametrize("type_", [type_ for type_ in TYPES if type_.endswith("list")])
def test_a_missing_value_in_a_list_is_refused(type_: str):
    value = random_value(random.Random(0), type_.split()[0])
    with pytest.raises(ValueError, match="a list of column 'a' contains a missing value"):
        encode_columns(batch_of({"a": (type_, [[value, None]])}), ["a"])
