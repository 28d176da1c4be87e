from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.gate.new_rows import NewRows, sentences_of
from pipeline.tables.convert import record_schema
from pipeline.tables.schema import Column, Schema

SCHEMA = Schema(
    [
        Column("age", "int"),
        Column("rate", "float", missing=800),
        Column("joined", "date", missing=10),
        Column("city", "string", missing=100),
        Column("note", "string", missing=1000),
        Column("is_new", "bool"),
        Column("sizes", "int", is_list=True),
        Column("left", "string", role="label"),
    ],
    1000,
    "classification",
)
TABLE = {
    **SCHEMA.to_json(),
    "preprocessing": {
        "age": {"count": 800, "mean": 40.0, "deviation": 10.0},
        "rate": {"count": 160, "mean": 2.0, "deviation": 0.0},
        "joined": {"count": 790, "mean": 20_000.0, "deviation": 100.0},
        "city": {"vocabulary": ["Bern", "Jena", "Oslo"], "counts": [500, 150, 70]},
        "note": {"hash_buckets": 1000},
        "is_new": {},
        "sizes": {},
    },
}
USUAL: dict[str, Any] = {
    "age": 40,
    "rate": 2.0,
    "joined": 20_000,
    "city": "Bern",
    "note": "a",
    "is_new": True,
    "sizes": [1, 2],
}
THRESHOLDS = {"max_new_values_fraction": 0.0, "max_mean_drift": 0.25}


def rows_of(number: int = 100, **values: Any) -> list[dict[str, Any]]:
    return [{**USUAL, **values} for _ in range(number)]


def changes_of(*batches: list[dict[str, Any]]) -> dict[str, Any]:
    new_rows, schema = NewRows(TABLE, "abc"), record_schema(SCHEMA)
    for rows in batches:
        new_rows.add(pa.RecordBatch.from_pylist([{**row, "left": None} for row in rows], schema=schema))
    return new_rows.changes()


def test_rows_like_those_of_the_table_have_no_changes():
    changes = changes_of(rows_of())
    assert changes == {
        "against": "abc",
        "rows": 100,
        "columns": {},
        "new_values": {},
        "means": {"age": 0.0, "joined": 0.0},
    }
    assert sentences_of(changes, THRESHOLDS) == []


def test_no_rows_have_no_changes():
    assert changes_of() == changes_of([]) == {"against": "abc", "rows": 0, "columns": {}, "new_values": {}, "means": {}}


def test_new_texts_are_counted_over_all_batches_and_missing_ones_are_not_new():
    changes = changes_of(rows_of(40, city="Rome"), rows_of(10, city="Nice"), rows_of(48), [*rows_of(1, city=""), USUAL])
    assert changes["new_values"] == {"city": {"rows": 50, "fraction": 0.5, "texts": 2, "values": ["Rome", "Nice"]}}
    [sentence] = sentences_of(changes, THRESHOLDS)
    assert sentence == (
        "1 column of the new rows with texts that the model never saw, in more than max_new_values_fraction=0 of the "
        "rows: 'city' in 50 of 100 (50%) rows (2 texts, such as 'Rome', 'Nice'). To the model, all of them are one "
        "unknown text: train it on rows that have them"
    )
    assert sentences_of(changes, {**THRESHOLDS, "max_new_values_fraction": 0.5}) == []


def test_a_long_text_is_shortened_in_the_sentence():
    [sentence] = sentences_of(changes_of(rows_of(city="x" * 1000)), THRESHOLDS)
    assert f"'{'x' * 60}...'" in sentence


def test_a_mean_drifts_if_it_moved_more_than_chance_explains():
    changes = changes_of(rows_of(50, age=47), rows_of(50, age=49, joined=None))
    # Less 3 / sqrt(100).
    assert changes["means"] == {"age": pytest.approx(0.8 - 0.3), "joined": 0.0}
    [sentence] = sentences_of(changes, THRESHOLDS)
    assert sentence == (
        "the means of 1 column of the new rows differ from those of the training rows by more than max_mean_drift=0.25 "
        "standard deviations: 'age' by 0.50. Look for another unit or another source, or train the model on newer rows"
    )
    assert sentences_of(changes, {**THRESHOLDS, "max_mean_drift": 0.5}) == []


@pytest.mark.parametrize("rows", [1, 10, 1000])
def test_rows_of_the_same_distribution_do_not_drift(rows: int):
    ages = np.random.default_rng(rows).normal(40, 10, rows).round().astype(int).tolist()
    assert sentences_of(changes_of([{**USUAL, "age": age} for age in ages]), THRESHOLDS) == []


@pytest.mark.parametrize(("age", "drifts"), [(60, False), (80, True)])
def test_a_single_row_drifts_only_if_it_is_far_from_the_mean(age: int, drifts: bool):
    assert bool(sentences_of(changes_of(rows_of(1, age=age)), THRESHOLDS)) == drifts


def test_a_number_that_is_infinite_does_not_hide_the_mean_of_the_others():
    facts = {**TABLE["preprocessing"], "rate": {"count": 160, "mean": 2.0, "deviation": 1.0}}
    new_rows = NewRows({**TABLE, "preprocessing": facts}, "abc")
    rows = [{**USUAL, "rate": rate, "left": None} for rate in (float("inf"), *[4.0] * 9, None)]
    new_rows.add(pa.RecordBatch.from_pylist(rows, schema=record_schema(SCHEMA)))
    assert new_rows.changes()["means"]["rate"] == pytest.approx(2.0 - 1.0)


@pytest.mark.parametrize(
    ("rows", "values", "columns"),
    [
        (1, {"age": None}, ["age"]),
        # 1% and 10% of the rows of the table have none, and 80%.
        (1, {"joined": None}, ["joined"]),
        (1, {"city": ""}, []),
        (3, {"city": None}, ["city"]),
        (20, {"rate": None}, []),
        (21, {"rate": None, "city": ""}, ["rate", "city"]),
        (100, {"note": None}, []),
    ],
)
def test_a_column_without_values_is_named_unless_that_may_be_chance(
    rows: int, values: dict[str, Any], columns: list[str]
):
    assert list(changes_of(rows_of(rows, **values))["columns"]) == columns


def test_the_sentence_about_columns_without_values_counts_and_names_them():
    [sentence] = sentences_of(changes_of(rows_of(21, rate=None, city=None)), THRESHOLDS)
    assert sentence == (
        "2 columns of the 21 new rows changed since version abc of the dataset: 'rate' has no value, but 0.2 of the "
        "rows of that version have one, 'city' has no value, but 0.9 of the rows of that version have one. Fill in the "
        "values, because the model learned from them"
    )
