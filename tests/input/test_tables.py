"""The batches of a table whose column `number` is the number of the row, through all splits."""

import random
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipeline.dataset.manifest import load, to_json
from pipeline.errors import DatasetError
from pipeline.input import BatchOptions, Server, damage_named, steps_per_epoch, training_batches, validation_batches
from pipeline.input.shard_pieces import buffered_bytes, shuffle_elements
from pipeline.input.tables import mask_name, raw_batches, value_of_text, with_ids
from pipeline.tables.schema import Column, Task
from tests.made_tables import Row, make_table

OPTIONS = BatchOptions(image_size=1, batch_size=7, shuffle_bytes=2000)
TRAIN, VALIDATION = 46, 14
COLUMNS = (
    Column("number", "int"),
    Column("share", "float", missing=20),
    Column("größe (cm)/max", "int", missing=20),
    Column("color", "string", missing=12),
    Column("city", "string"),
    Column("words", "string", is_list=True),
    Column("scores", "float", is_list=True, missing=20),
    Column("vector", "float", is_list=True, length=2),
    Column("tiles", "int", is_list=True, length=3, missing=20),
    Column("day", "date"),
    Column("moment", "time"),
    Column("good", "bool"),
    Column("row id", "string", role="key"),
    Column("label", "int", role="label"),
)
MOMENT = 1_700_000_000_123_456
"""Microseconds, which float32 cannot hold."""


def row_of(number: int) -> Row:
    """Return a row whose values all follow from its number."""
    return {
        "number": number,
        "share": number / 4 if number % 3 else None,
        "größe (cm)/max": -number if number % 3 == 1 else None,
        "color": f"color {number % 4}" if number % 5 else None,
        "city": "東京" if number % 2 else "",
        "words": [f"word {each}" for each in range(number % 4)],
        "scores": [float(number)] * (number % 2) if number % 3 else None,
        "vector": [number / 4, -1.0],
        "tiles": [number, -number, MOMENT] if number % 3 else None,
        "day": -number,
        "moment": MOMENT + number,
        "good": number % 2,
        "row id": f"row {number}",
        "label": 7 - 4 * (number % 3),  # -1, 3 and 7: the ids are in the order of the texts
    }


def made(folder: Path, train: int, validation: int, columns: Sequence[Column] = COLUMNS, **options: Any) -> Path:
    rows = [row_of(number) for number in range(train + validation)]
    splits = {"train": rows[:train], "validation": rows[train:], "test": []}
    return make_table(folder, columns, splits, **{"task": "classification", **options})


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 rows in 4 training shards. Tests must not change it."""
    return made(tmp_path_factory.mktemp("tables") / "published", TRAIN, VALIDATION)


def numbers(batches: Iterable[tuple[Any, ...]], weight: float = 1.0) -> list[int]:
    """Return the numbers of the rows with that weight."""
    return [
        int(number)
        for features, _, weights, *_ in batches
        for number, each in zip(features["number"].numpy(), weights.numpy(), strict=True)
        if each == weight
    ]


def assert_equal(batches: list[Any], others: list[Any]) -> None:
    assert len(batches) == len(others)
    for one, other in zip(batches, others, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


# --- the values of a batch --------------------------------------------------------------------------------------------


def test_a_batch_holds_the_values_of_its_rows_and_the_ids_of_texts(published: Path):
    labels_of = dict(zip(load(published).labels, range(3), strict=True))
    preprocessing = load(published).table["preprocessing"]
    assert [*labels_of] == ["-1", "3", "7"]
    for features, labels, weights in [*training_batches(published, OPTIONS), *validation_batches(published, OPTIONS)]:
        assert {name: (tensor.dtype.name, tensor.shape[0]) for name, tensor in features.items()} == DTYPES
        for place, number in enumerate(features["number"].numpy()):
            row = row_of(int(number))
            assert labels[place] == labels_of[str(row["label"])]
            for column in COLUMNS[:12]:
                # In a batch, a missing list is an empty one. A missing vector has a mask.
                expected = row[column.name] or [] if column.is_ragged else row[column.name]
                assert value_of(features, column, place, preprocessing[column.name]) == expected, column.name
        assert (labels.dtype, weights.dtype) == (tf.int32, tf.float32)


DTYPES = {
    "number": ("int64", 7),
    "share": ("float32", 7),
    "share_is_present": ("float32", 7),
    "größe (cm)/max": ("int64", 7),
    "größe (cm)/max_is_present": ("float32", 7),
    "color": ("int64", 7),
    "color_is_present": ("float32", 7),
    "city": ("int64", 7),
    "words": ("int64", 7),
    "words_is_present": ("float32", 7),
    "scores": ("float32", 7),
    "scores_is_present": ("float32", 7),
    "vector": ("float32", 7),
    "tiles": ("int64", 7),
    "tiles_is_present": ("float32", 7),
    "day": ("int64", 7),
    "moment": ("int64", 7),
    "good": ("int64", 7),
}


def value_of(features: dict[str, tf.Tensor], column: Column, place: int, facts: dict[str, Any]) -> Any:
    """Return the value of a column in a row, as `row_of` states it."""
    value = features[column.name][place].numpy()

    def of(each: Any) -> Any:
        listed = ["", None, *(text for text in facts.get("vocabulary", ()) if text)]
        return listed[each] if column.type == "string" else each.item()

    if column.is_ragged:
        mask = features[mask_name(column.name)][place].numpy() > 0
        assert not np.any(value[~mask])  # The rest is filled up with 0.
        return [of(each) for each in value[mask]]
    if mask_name(column.name) in features and not features[mask_name(column.name)][place]:
        assert not np.any(value)
        return None
    return [of(each) for each in value] if column.length else of(value)


def test_raw_batches_hold_the_texts(published: Path):
    raw, same = [*raw_batches(published, 7)], [*validation_batches(published, OPTIONS)]
    assert_equal([(with_ids(features, load(published)), *others) for features, *others in raw], same)
    [(features, *_), *_] = raw
    assert features["color"].numpy().tolist() == [
        (row_of(number)["color"] or "").encode() for number in range(TRAIN, TRAIN + 7)
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("column", "values"),
    [
        (Column("label", "string", role="label"), {"ja": "ja", "nein": "nein", "東京": "東京"}),
        (Column("label", "float", role="label"), {0.5: "0.5", -1.25: "-1.25"}),
        (Column("label", "bool", role="label"), {0: "0", 1: "1"}),
    ],
)
def test_labels_of_any_type_become_ids(tmp_path: Path, column: Column, values: dict[Any, str]):
    columns = [Column("number", "int"), column]
    rows = [{"number": number, "label": [*values][number % len(values)]} for number in range(20)]
    folder = make_table(tmp_path / "made", columns, {"train": rows, "validation": rows}, "classification")
    labels = load(folder).labels
    for features, ids, _ in training_batches(folder, OPTIONS):
        expected = [labels.index(values[rows[number]["label"]]) for number in features["number"].numpy()]
        assert ids.numpy().tolist() == expected


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "-3", -3),
        ("bool", "true", 1),
        ("bool", "False", 0),
        ("bool", "1", 1),
        ("date", "1970-01-03", 2),
        ("date", "-2", -2),
        ("time", "1970-01-01T00:00:01", 1_000_000),
        ("time", "1970-01-01T01:00:00.000001+01:00", 1),
        ("time", "5", 5),
        ("string", "5", b"5"),
        ("float", "1e3", 1000.0),
    ],
)
def test_the_text_of_a_label_is_converted_to_a_value(kind: Any, text: str, value: Any):
    assert value_of_text(Column("label", kind), text) == value


def test_a_text_that_is_no_value_is_refused():
    with pytest.raises(DatasetError, match="the label 'many' is no int of the column 'count'"):
        value_of_text(Column("count", "int"), "many")


def test_labels_of_a_regression_keep_their_unit(tmp_path: Path):
    columns = [Column("number", "int"), Column("price", "int", role="label")]
    rows = [{"number": number, "price": 100 * number} for number in range(20)]
    folder = make_table(tmp_path / "made", columns, {"train": rows, "validation": rows[:3]}, "regression")
    for features, labels, _ in training_batches(folder, OPTIONS):
        assert labels.dtype == tf.float64
        assert np.array_equal(labels, 100 * features["number"].numpy())


def test_an_unknown_label_stops_the_epoch(published: Path, tmp_path: Path):
    folder = shutil.copytree(published, tmp_path / "copy")
    dataset = load(folder)
    (folder / "dataset.json").write_bytes(to_json(replace(dataset, labels=("-1", "3"))))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not in dataset\.json"):
        numbers(training_batches(folder, OPTIONS))


# --- exactly once, and exactly again ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("shuffle_bytes", [1, 10**6])
def test_an_epoch_shows_every_row_once(published: Path, batch_size: int, shuffle_bytes: int):
    options = replace(OPTIONS, batch_size=batch_size, shuffle_bytes=shuffle_bytes)
    trained = numbers(training_batches(published, options))
    validated = numbers(validation_batches(published, options))
    assert Counter(trained) == Counter(range(TRAIN))
    assert validated == [*range(TRAIN, TRAIN + VALIDATION)]


@pytest.mark.parametrize("servers", [1, 2, 3, pytest.param(8, marks=pytest.mark.long)])
def test_all_servers_together_show_every_row_once(published: Path, servers: int):
    shown: Counter[int] = Counter()
    for index in range(servers):
        server = Server(index, servers)
        both = (
            [*training_batches(published, OPTIONS, server=server)],
            [*validation_batches(published, OPTIONS, server=server)],
        )
        steps = [steps_per_epoch(load(published), 7, servers, split) for split in ("train", "validation")]
        assert [len(each) for each in both] == steps
        shown.update(numbers(both[0] + both[1]))
    assert shown == Counter(range(TRAIN + VALIDATION))


@pytest.mark.parametrize("server", [pytest.param(Server(0, 1), marks=pytest.mark.long), Server(1, 3)])
def test_training_resumes_exactly_at_its_position(published: Path, server: Server):
    steps = steps_per_epoch(load(published), OPTIONS.batch_size, server.count)
    whole = [*training_batches(published, OPTIONS, epochs=3, server=server, numbered=True)]
    assert len(whole) == 3 * steps
    edges = {0, 1, steps - 1, steps, steps + 1, 2 * steps, 3 * steps - 1, 3 * steps}
    for start in sorted({*edges, *random.Random(0).sample(range(len(whole)), k=2)}):
        rest = training_batches(published, OPTIONS, epochs=3, start=start, server=server, numbered=True)
        assert_equal([*rest], whole[start:])


def test_the_order_depends_only_on_seed_and_epoch(published: Path):
    first = numbers(training_batches(published, replace(OPTIONS, seed=3)))
    tf.random.set_seed(11)  # The model uses this seed.
    again = numbers(training_batches(published, replace(OPTIONS, seed=3), epochs=2))
    assert (again[:TRAIN], sorted(again[TRAIN:])) == (first, sorted(first))
    assert again[TRAIN:] != first
    assert numbers(training_batches(published, replace(OPTIONS, seed=4))) != first


def test_the_order_of_rows_is_pinned(published: Path):
    """If it changed, every checkpoint would resume at other rows."""
    options = replace(OPTIONS, shuffle_bytes=ELEMENTS * buffered_bytes(load(published)))
    assert numbers(training_batches(published, options)) == PINNED


def test_the_memory_of_a_row_in_the_shuffle_buffer_includes_its_tensors(published: Path):
    dataset = load(published)
    split = dataset.splits["train"]
    memory = split.bytes // split.examples + 350
    assert buffered_bytes(dataset) == memory
    assert [shuffle_elements(dataset, size) for size in (1, 5 * memory, 10**9)] == [1, 5, TRAIN]


ELEMENTS = 8
"""The shuffle buffer of the pinned order holds this many rows."""
PINNED = [
    *(12, 1, 25, 36, 2, 0, 38, 14, 26, 13, 28, 39, 16, 40, 29, 4, 3, 15, 27, 37, 5, 17, 18, 30, 43, 7, 41, 24),
    *(32, 6, 44, 19, 33, 8, 20, 22, 42, 9, 31, 23, 11, 45, 21, 34, 35, 10),
]


def test_numbers_are_places_in_the_training_shards(published: Path):
    for features, _, _, mirrored, places in training_batches(published, OPTIONS, numbered=True):
        assert np.array_equal(places, features["number"])  # The rows are in the shards in their order.
        assert not np.any(mirrored)


def test_padding_repeats_rows_with_weight_zero(published: Path):
    batches = [*training_batches(published, OPTIONS)]
    assert numbers(batches[:-1], weight=0.0) == []
    padding = numbers(batches[-1:], weight=0.0)
    assert len(padding) == -TRAIN % 7
    assert set(padding) <= set(range(TRAIN))


def test_records_are_parsed_in_whole_batches(published: Path, monkeypatch: pytest.MonkeyPatch):
    """If one row were parsed at a time, an epoch would take ten times as long."""
    shapes = []
    parse = tf.io.parse_example
    monkeypatch.setattr(
        tf.io, "parse_example", lambda serialized, spec: shapes.append(serialized.shape) or parse(serialized, spec)
    )
    training_batches(published, OPTIONS)
    assert {tuple(shape) for shape in shapes} == {(7,)}


# --- what is refused --------------------------------------------------------------------------------------------------


def test_balanced_rows_are_refused(published: Path):
    with pytest.raises(DatasetError, match="rows of a table, which cannot be balanced: set balanced=false"):
        training_batches(published, replace(OPTIONS, balanced=True))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([COLUMNS[-1]], "has no feature"),
        ([Column("a", "int", missing=1), Column("a_is_present", "int"), COLUMNS[-1]], "has the name of the mask of"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(tmp_path: Path, columns: Sequence[Column], message: str):
    task: Task = "classification"
    rows = [dict.fromkeys(("a", "a_is_present"), 1) | {"label": number % 2} for number in range(8)]
    folder = make_table(tmp_path / "made", columns, {"train": rows, "validation": rows[:2]}, task)
    with pytest.raises(DatasetError, match=message):
        training_batches(folder, OPTIONS)


def test_a_shard_cut_between_records_stops_the_epoch(published: Path, tmp_path: Path):
    folder = shutil.copytree(published, tmp_path / "copy")
    shard = folder / load(folder).splits["train"].shards[1].name
    content = shard.read_bytes()
    batches = training_batches(folder, OPTIONS)
    shard.write_bytes(content[: int.from_bytes(content[:8], "little") + 16])
    with (
        pytest.raises(DatasetError, match=rf"{shard.name} holds 1 records, but \d+ were committed"),
        damage_named(folder),
    ):
        numbers(batches)
