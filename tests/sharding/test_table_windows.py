"""A window of versions of a table reads by the union of their columns."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.verify import verify
from pipeline.errors import DatasetError
from pipeline.input import BatchOptions, training_batches, validation_batches
from pipeline.input.tables import mask_name
from pipeline.kinds.table.facts import MIN_BUCKETS
from pipeline.kinds.table.union import find_conflict, union_of
from pipeline.records.tfrecord import read_records
from pipeline.stages.build import build
from pipeline.storage import Place
from pipeline.tables.schema import MAX_DISTINCT, Column, Schema
from pipeline.training.model.models import ModelOptions
from pipeline.training.model.table_model import build_table_model
from tests.dataset.test_dataset_schema import problems
from tests.published import changed, newest_dataset

ROWS = 40
"""Rows of each date. So few are written in this process."""
OPTIONS = BatchOptions(image_size=1, batch_size=8)
Row = dict[str, Any]
DAYS: Mapping[str, Sequence[str]] = {
    "2026-01-01": ("id", "x", "share", "color", "vip", "moment", "y"),
    "2026-01-02": ("y", "id", "x", "share", "vip", "moment"),  # no color
    "2026-01-03": ("id", "x", "share", "color", "vip", "moment", "size", "y"),  # a new column, and no value of share
}
"""The columns of each date."""


def row_of(number: int) -> Row:
    """Return the values of a row, all of which follow from its number."""
    return {
        "id": f"r{number}",
        "x": number * 1_000_003,
        "share": number / 7 if number < 2 * ROWS and number % 5 else None,
        "color": f"color {number % (3 if number < ROWS else 5)}" if number % 4 else None,
        "vip": "true" if number % 3 else "false",
        "moment": f"2026-01-0{1 + number // ROWS}T00:{number % 60:02}:00",
        "size": number / 2,
        "y": "yes" if number % 2 else "no",
    }


def write_day(folder: Path, day: str, rows: Sequence[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{day}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def settings_in(root: Path, **values: Any) -> Settings:
    places = {"source_uri": str(root / "sales" / "{date}.csv"), "workspace": str(root / "w")}
    fixed = {"example_kind": "table", "label_column": "y", "on_columns": "continue", "num_shards": 2, "window": 3}
    return settings_from({**places, **fixed, **values})


def build_days(root: Path, days: Mapping[str, Sequence[Row]], **values: Any) -> Settings:
    """Build a version of each date, and return the settings of a window of all dates."""
    for day, rows in days.items():
        write_day(root / "sales", day, rows)
        build(settings_in(root, data_date=day, **values).dated())
    return settings_in(root, **values)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A window of three dates. Tests must not change it."""
    rows = {
        day: [{name: row_of(ROWS * number + each)[name] for name in names} for each in range(ROWS)]
        for number, (day, names) in enumerate(DAYS.items())
    }
    return newest_dataset(build_days(tmp_path_factory.mktemp("tables"), rows, key_column="id"))


def ids_of(window: Place, split: str) -> list[int]:
    """Return the numbers of the rows of a split, from the keys in its records."""
    records = [record for shard in load(window).splits[split].shards for record in read_records(window / shard.name)]
    keys = [tf.train.Example.FromString(record).features.feature["id"].bytes_list.value[0] for record in records]
    return [int(key[1:]) for key in keys]


def frame_of(window: Place, split: str) -> pd.DataFrame:
    """Return the rows of a split, as the sources have them. A column that a date lacks is missing there."""
    names = list(DAYS.values())
    rows = [{name: row_of(number)[name] for name in names[number // ROWS]} for number in ids_of(window, split)]
    return pd.DataFrame(rows)


def test_a_window_has_the_columns_of_all_versions(window: Place):
    dataset = load(window)
    assert problems(json.loads((window / "dataset.json").read_bytes())) == []
    assert dataset.name == "sales"
    assert verify(window) == {"ok": True, "records": 3 * ROWS, "problems": []}
    schema = Schema.from_json(dataset.table)
    assert [column.name for column in schema.columns] == list(DAYS["2026-01-03"])
    assert (schema.rows, schema.task, dataset.labels) == (3 * ROWS, "classification", ("no", "yes"))
    assert set(dataset.features) == {column.name for column in schema.columns}
    rows = pd.concat([frame_of(window, split) for split in ("train", "validation")])
    assert len(rows) == 3 * ROWS
    for column in schema.columns:
        assert column.missing == rows[column.name].isna().sum(), column.name
    assert [schema.column(name).type for name in ("share", "size", "vip")] == ["float", "float", "bool"]
    assert (schema.column("x").low, schema.column("x").high) == (0, (3 * ROWS - 1) * 1_000_003)
    assert schema.column("share").high == pytest.approx(rows["share"].max())
    color = schema.column("color")
    assert (color.distinct, list(color.values)) == (5, sorted(rows["color"].dropna().unique()))
    assert (color.low, color.high) == ("color 0", "color 4")
    assert (schema.column("vip").distinct, schema.column("x").distinct) == (2, None)
    assert list(schema.label.values) == ["no", "yes"]


def test_the_facts_of_a_window_are_those_of_all_training_rows(window: Place):
    rows = frame_of(window, "train")
    facts = load(window).table["preprocessing"]
    assert list(facts) == [name for name in DAYS["2026-01-03"] if name not in ("id", "y")]
    rows["moment"] = (pd.to_datetime(rows["moment"]) - pd.Timestamp(0)) // pd.Timedelta(microseconds=1)
    for name in ("x", "share", "size", "moment"):
        assert facts[name]["count"] == rows[name].count()
        assert facts[name]["mean"] == pytest.approx(rows[name].mean(), rel=1e-7)
        assert facts[name]["deviation"] == pytest.approx(rows[name].std(ddof=0), rel=1e-6)
    counts = rows["color"].value_counts()
    assert dict(zip(facts["color"]["vocabulary"], facts["color"]["counts"], strict=True)) == counts.to_dict()
    assert facts["color"]["vocabulary"] == sorted(counts.index, key=lambda text: (-counts[text], text))
    assert facts["vip"] == {}


def test_the_reader_finds_the_rows_of_all_versions(window: Place):
    seen: dict[str, set[int]] = {}
    colors = load(window).table["preprocessing"]["color"]["vocabulary"]
    for split, batches in (("train", training_batches), ("validation", validation_batches)):
        seen[split] = set()
        for features, labels, weights in batches(window, OPTIONS):
            for place in np.flatnonzero(weights.numpy()):
                number = int(features["x"][place]) // 1_000_003
                seen[split].add(number)
                names = list(DAYS.values())[number // ROWS]
                row = {name: value for name, value in row_of(number).items() if name in names}
                assert labels[place] == (row["y"] == "yes")
                for name in ("share", "color", "size"):
                    is_present = bool(features[mask_name(name)][place])
                    assert is_present == (row.get(name) is not None), (name, number)
                    value = features[name][place].numpy()
                    if is_present:
                        expected = 2 + colors.index(row[name]) if name == "color" else row[name]
                        assert value == pytest.approx(expected, rel=1e-6)
                    else:
                        assert not value
        assert seen[split] == set(ids_of(window, split))
    assert len(seen["train"] | seen["validation"]) == 3 * ROWS


def test_a_model_can_be_built_from_a_window(window: Place):
    model = build_table_model(ModelOptions("mlp"), load(window))
    [(features, *_)] = [*training_batches(window, OPTIONS).take(1)]
    assert model(features).shape == (8, 2)


def test_the_card_shows_the_columns_and_the_dates(window: Place):
    page = (window / "card.html").read_text()
    assert "What each column holds" in page
    assert all(day in page for day in DAYS)
    assert "size" in page


FIVE = [{"x": number, "z": number % 3, "y": number % 2} for number in range(24)]


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (
            lambda row: {**row, "z": row["z"] + 0.5},
            {},
            r"the column 'z' holds values of type (int|float) in the first and (int|float) in the .*column_types=",
        ),
        (
            lambda row: {**row, "z": f"t{row['z']}"},
            {},
            "the column 'z' holds values of type (int|string) in the first and (int|string) in the second;",
        ),
        (lambda row: {**row, "y": f"{row['y']}.25"}, {}, "the task is '"),
        (
            lambda row: row,
            {"key_column": "x"},
            "the key column is '(x?)' in the first and '(x?)' in the second",
        ),
    ],
)
def test_versions_that_no_reader_can_read_together_are_refused(
    tmp_path: Path, change: Any, settings: dict[str, Any], message: str
):
    build_days(tmp_path, {"2026-01-01": FIVE})
    after = build_days(tmp_path, {"2026-01-02": [change(row) for row in FIVE]}, **settings)
    with pytest.raises(DatasetError) as error:
        newest_dataset(after)
    assert "(partition 2026-01-01)" in str(error.value)
    assert "(partition 2026-01-02)" in str(error.value)
    assert error.match(message)
    newest_dataset(changed(after, window=1))


def test_rows_of_several_dates_on_both_sides_are_named_by_their_key(tmp_path: Path):
    rows = [{"id": f"r{number}", "x": number, "y": number % 2} for number in range(24)]
    sides = [
        [{**row, "side": side if number < 4 else "train"} for number, row in enumerate(rows)]
        for side in ("validation", "train")  # A table whose rows are all of one split is split by the keys.
    ]
    days = dict(zip(("2026-01-01", "2026-01-02"), sides, strict=True))
    settings = build_days(tmp_path, days, key_column="id", split_column="side", on_leak="continue")
    quality = load(newest_dataset(settings)).quality
    # The records hold the split column, so the first four rows differ.
    assert (quality["unit"], quality["shared"]["images"]) == ("row", 20)
    assert quality["leaks"]["images"] > 0
    for training, other in quality["leaks"]["names"]:
        assert (training[:12], other[:12]) == ("2026-01-01: ", "2026-01-02: ")
        assert training[12:] == other[12:] in {row["id"] for row in rows}


# --- without a build --------------------------------------------------------------------------------------------------


def table(columns: Sequence[Column], rows: int = 10, **preprocessing: Any) -> dict[str, Any]:
    label = Column("y", "string", role="label", distinct=2, values=("a", "b"))
    return {**Schema([*columns, label], rows, "classification").to_json(), "preprocessing": preprocessing}


MANY = tuple(f"{number:05}" for number in range(MAX_DISTINCT))


@pytest.mark.parametrize(
    ("columns", "facts", "values", "expected"),
    [
        (
            [Column("t", "string", distinct=2, values=("a", "b")), Column("t", "string", distinct=1, values=("c",))],
            [{"vocabulary": ["b", "a"], "counts": [3, 1]}, {"vocabulary": ["c"], "counts": [2]}],
            ("a", "b", "c"),
            {"vocabulary": ["b", "c", "a"], "counts": [3, 2, 1]},
        ),
        (
            [
                Column("t", "string", distinct=MAX_DISTINCT, values=MANY),
                Column("t", "string", distinct=1, values=("c",)),
            ],
            [{"vocabulary": [], "counts": []}, {"vocabulary": ["c"], "counts": [2]}],
            (),
            {"hash_buckets": MIN_BUCKETS},
        ),
        (
            [Column("t", "string"), Column("t", "string", distinct=1, values=("c",))],
            [{"hash_buckets": 2345}, {"vocabulary": ["c"], "counts": [2]}],
            (),
            {"hash_buckets": 2345},
        ),
        (
            [Column("t", "string", is_list=True), Column("t", "string", is_list=True)],
            [{"hash_buckets": 1000}, {"hash_buckets": 3000}],
            (),
            {"hash_buckets": 3000},
        ),
    ],
)
def test_texts_are_joined_until_there_are_too_many(
    columns: list[Column], facts: list[dict[str, Any]], values: tuple[str, ...], expected: dict[str, Any]
):
    union = union_of([table([column], t=fact) for column, fact in zip(columns, facts, strict=True)], 100)
    joined = Schema.from_json(union).column("t")
    assert (joined.values, joined.distinct) == (values, len(values) or None)
    assert union["preprocessing"] == {"t": expected}


def test_a_column_without_values_has_no_type():
    empty = Column("n", "string", missing=10, distinct=0)
    number = Column("n", "float", missing=1, distinct=3, low=1.0, high=5.0)
    fact = {"count": 9, "mean": 2.0, "deviation": 1.0}
    tables = [table([empty], n={"hash_buckets": 1000}), table([number], n=fact), table([], rows=7)]
    schemas = [Schema.from_json(each) for each in tables]
    assert find_conflict(schemas) is None
    union = union_of(tables, 20)
    assert Schema.from_json(union).column("n") == replace(number, missing=10 + 1 + 7)
    assert union["preprocessing"] == {"n": fact}
    assert union["rows"] == 27


def test_the_moments_of_large_numbers_keep_their_digits():
    base = 1_700_000_000_000_000  # a time in microseconds
    facts = [
        {"count": 2, "mean": base + each, "deviation": 1.0, "sampled": 2, "quantiles": [base + each] * 33}
        for each in (0.0, 2.0, 4.0)
    ]
    column = Column("t", "time", distinct=2, low=base, high=base + 5)
    moments = union_of([table([column], t=fact) for fact in facts], 6)["preprocessing"]["t"]
    assert (moments["count"], moments["mean"], moments["sampled"]) == (6, base + 2, 6)
    assert moments["deviation"] == pytest.approx(np.std([-1, 1, 1, 3, 3, 5]), rel=1e-12)
