"""Lists that all have one length are vectors, with one input for each position. Other lists are pooled, with a note."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import feather, parquet

from pipeline import storage
from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.verify import verify
from pipeline.errors import DatasetError
from pipeline.evaluation.metrics import load_predictions
from pipeline.gate.new_rows import NewRows, sentences_of
from pipeline.input import BatchOptions, validation_batches
from pipeline.input.tables import raw_batches
from pipeline.kinds.table.facts import table_changes
from pipeline.kinds.table.tensors import served_columns
from pipeline.kinds.table.union import find_conflict, union_of
from pipeline.report.table_columns import columns_of, texts_of
from pipeline.runs.launch import prepare_run
from pipeline.runs.promotion_rule import why_incomparable
from pipeline.runs.run import Run
from pipeline.stages.build import build
from pipeline.stages.extract import divide
from pipeline.storage import Place
from pipeline.tables.schema import Column, Schema
from pipeline.training.job import run_job
from pipeline.training.served.exported import evaluate_exported
from pipeline.training.served.predict import predict
from tests.dataset.test_dataset_schema import problems
from tests.foreign_shards import write_file
from tests.published import newest_dataset
from tests.tables.built import Built, built, parquet_of
from tests.training.test_tables import loaded

ROWS, PLACES = 1000, 8


def table_of(seed: int = 0) -> pa.Table:
    """Return rows whose label only the positions of `v` tell: their mean has no trace of it.

    Every tenth row has no `counts`, whose numbers are those of times.
    """
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, ROWS)
    vectors = random.normal(size=(ROWS, PLACES))
    vectors[:, 0] += 6 * label - 3
    vectors[:, 1] -= 6 * label - 3
    counts = [None if each % 10 == 0 else [10**15 + each, each % 3] for each in range(ROWS)]
    return pa.table(
        {
            "id": [f"r{seed}-{each}" for each in range(ROWS)],
            "v": pa.array(vectors.astype("float32").tolist(), pa.list_(pa.float32())),
            "counts": pa.array(counts, pa.list_(pa.int64(), 2)),
            "bits": (vectors[:, :3] > 0).tolist(),
            "label": [str(each) for each in label],
        }
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A dataset with three columns of vectors. Tests must not change it."""
    path = tmp_path_factory.mktemp("vectors") / "t.parquet"
    parquet.write_table(table_of(), path)
    return built(path, key_column="id")


@pytest.fixture(scope="module")
def run(made: Built, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A training with the default settings. Tests must not change it."""
    settings = settings_from({"example_kind": "table", "workspace": str(tmp_path_factory.mktemp("w"))})
    run = prepare_run(settings, made.folder, "run")
    run_job(run, lambda: False)
    return run


# --- what the build finds ---------------------------------------------------------------------------------------------


def test_lists_of_one_length_are_vectors(made: Built):
    found = {name: (made.column(name).type_words, made.column(name).missing) for name in ("v", "counts", "bits")}
    assert found == {"v": ("list of 8 float", 0), "counts": ("list of 2 int", 100), "bits": ("list of 3 bool", 0)}
    assert made.notes == []
    found = problems(json.loads((made.folder / "dataset.json").read_bytes()))
    assert [each for each in found if not each.startswith("$.features:")] == []  # Those of images are more.
    assert verify(made.folder)["ok"]


def test_each_place_has_a_mean_and_a_deviation_of_its_own(made: Built):
    facts = made.dataset.table["preprocessing"]
    # With so few rows, the sample has all training rows.
    shards = [made.folder / shard.name for shard in made.dataset.splits["train"].shards]
    records = [tf.train.Example.FromString(each.numpy()) for each in tf.data.TFRecordDataset(list(map(str, shards)))]
    for name, kind in (("v", "float_list"), ("counts", "int64_list"), ("bits", "int64_list")):
        values = [getattr(record.features.feature[name], kind).value for record in records]
        vectors = np.array([value for value in values if len(value)], np.float64)
        assert facts[name]["count"] == len(vectors)
        # In float64, the mean of the numbers themselves would lose digits.
        deviations = (vectors - vectors[0]).std(axis=0)
        np.testing.assert_allclose(facts[name]["deviation"], deviations, rtol=1e-7)
        far = (facts[name]["mean"] - vectors[0]) - (vectors - vectors[0]).mean(axis=0)
        assert np.all(np.abs(far) < 0.001 * deviations)


@pytest.mark.parametrize(
    ("lists", "note"),
    [
        (
            [[1.5] * (1 + number % 7) for number in range(60)],
            "column 'x': lists of 1 to 7 numbers; the model sees the mean of their logarithms. If all lists had "
            "one length, the model would see each number",
        ),
        (
            [[number] * (number % 3) for number in range(60)],
            "column 'x': lists of 0 to 2 numbers; the model sees the mean of their logarithms. If all lists had "
            "one length, the model would see each number",
        ),
        (
            [[True] * (1 + number % 2) for number in range(60)],
            "column 'x': lists of 1 to 2 truth values; the model sees the share of the true ones. If all lists had "
            "one length, the model would see each number",
        ),
        (
            [["a", "b", str(number)] for number in range(60)],
            "column 'x': lists of 3 texts; the model sees the mean of their embeddings, without their order",
        ),
    ],
)
def test_lists_that_are_pooled_are_named_in_log_and_card(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lists: list[Any], note: str
):
    with caplog.at_level(logging.WARNING):
        pooled = built(parquet_of(tmp_path / "t.parquet", x=lists, label=[number % 2 for number in range(60)]))
    assert pooled.notes == [note]
    assert note in caplog.text
    assert "column &#39;x&#39;: lists of " in (pooled.folder / "card.html").read_text()
    assert pooled.column("x").length is None
    assert "mean" not in pooled.dataset.table["preprocessing"]["x"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl", ".tfrecord"])
def test_an_empty_list_is_a_missing_vector(tmp_path: Path, suffix: str):
    """A feature without a value is TensorFlow's missing one, and must not make a vector a list of any length."""
    lists = [[number / 4, -1.0] if number % 6 else [] for number in range(60)]
    path = tmp_path / f"t{suffix}"
    table = pa.table({"x": lists, "label": [number % 2 for number in range(60)]})
    match suffix:
        case ".parquet":
            parquet.write_table(table, path)
        case ".arrow":
            feather.write_feather(table, str(path), "uncompressed")
        case ".jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
        case _:
            rows = [{"x": value, "label": number % 2} for number, value in enumerate(lists)]
            write_file(path, [_of_row(row) for row in rows])
    made = built(path)
    assert (made.column("x").type_words, made.column("x").missing, made.notes) == ("list of 2 float", 10, [])
    assert verify(made.folder)["ok"]
    [(features, _, _)] = [*validation_batches(made.folder, BatchOptions(image_size=1, batch_size=64))]
    assert features["x"].shape == (64, 2)
    assert features["x_is_present"].shape == (64,)


def _of_row(row: Mapping[str, Any]) -> bytes:
    floats = tf.train.Feature(float_list=tf.train.FloatList(value=row["x"]))
    label = tf.train.Feature(int64_list=tf.train.Int64List(value=[row["label"]]))
    return tf.train.Example(features=tf.train.Features(feature={"x": floats, "label": label})).SerializeToString()


def test_several_ranges_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Lists of another length, or missing ones, may be in one range only."""
    rows = 40_000
    lists = [[float(number), number / 3, 0.5, -1.0] for number in range(rows)]
    lists[:100] = [[]] * 100
    short = [[1.0]] + [[float(number), 1.0] for number in range(1, rows)]
    path = parquet_of(tmp_path / "t.parquet", v=lists, ragged=short, label=[number % 2 for number in range(rows)])
    parquet.write_table(parquet.read_table(path), path, row_group_size=5_000)
    alone = built(path, workspace=str(tmp_path / "one"))
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    divided = built(path, workspace=str(tmp_path / "several"))
    several = {"source_uri": str(path), "label_column": "label", "workspace": str(tmp_path / "several")}
    assert len(divide(settings_from({"example_kind": "table", **several}))) > 1
    assert alone.dataset.table == divided.dataset.table
    assert alone.dataset.version == divided.dataset.version
    assert [shard.crc32c for shard in alone.dataset.shards] == [shard.crc32c for shard in divided.dataset.shards]
    assert (alone.column("v").length, alone.column("v").missing, alone.column("ragged").length) == (4, 100, None)
    assert alone.notes == divided.notes
    assert len(alone.notes) == 1


def test_a_wide_vector_is_one_column_everywhere(tmp_path: Path):
    """An embedding has 4,096 positions. No page may show them, and a record has one feature for all."""
    random = np.random.default_rng(0)
    wide = random.normal(size=(300, 4096)).astype("float32")
    wide[:, 7] = 0.1
    source = parquet_of(tmp_path / "t.parquet", v=list(wide), label=[number % 2 for number in range(300)])
    made = built(source)
    facts = made.dataset.table["preprocessing"]["v"]
    assert (len(facts["mean"]), facts["deviation"][7], facts["mean"][7]) == (4096, 0.0, pytest.approx(0.1))
    assert (made.folder / "dataset.json").stat().st_size < 250_000
    columns = columns_of({"table": made.dataset.table})
    assert columns is not None
    assert sum(len(str(cell)) for row in columns.rows for cell in row) < 300
    shown = texts_of({"v": wide[0].tolist()}, made.schema)["v"]
    assert shown.endswith(" and 4,086 more")
    assert len(shown) < 200
    assert (made.folder / "card.html").stat().st_size < 150_000


# --- training and serving ---------------------------------------------------------------------------------------------


@pytest.mark.core
def test_the_positions_of_a_vector_are_learned(run: Run):
    """Their mean tells nothing: an AUC of 0.51."""
    figures = storage.read_json(run.folder / "evaluation.json")["figures"]
    assert figures["auc"]["value"] > 0.95


@pytest.mark.core
def test_the_served_model_takes_the_vectors_and_predicts_as_the_trained_one(run: Run, made: Built):
    found, expected = evaluate_exported(run.export_folder, made.folder), load_predictions(run.folder)
    for name, column in found.columns.items():
        np.testing.assert_allclose(column, getattr(expected, name), atol=1e-5, err_msg=name)
    exported = tf.saved_model.load(str(run.export_folder))
    _, inputs = exported.signatures["serving_default"].structured_input_signature
    assert {name: (spec.shape.as_list(), spec.dtype.name) for name, spec in inputs.items()} == {
        "v": ([None, 8], "float32"),
        "counts": ([None, 2], "float64"),
        "bits": ([None, 3], "int64"),
    }
    about = storage.read_json(run.export_folder / "about.json")
    features, _, weights = next(iter(raw_batches(made.folder, 64)))
    served = served_columns(features, made.dataset, about["columns"])
    assert np.isnan(served["counts"].numpy()).any()
    answer = exported.serve(served)["probabilities"].numpy()
    trained, _, _ = next(iter(validation_batches(made.folder, BatchOptions(image_size=1, batch_size=64))))
    real = weights.numpy() > 0
    np.testing.assert_allclose(answer[real], loaded(run.model_path)(trained).numpy()[real], atol=1e-5)


@pytest.mark.core
def test_new_rows_are_predicted_and_lists_of_another_length_are_named(run: Run, tmp_path: Path):
    rows = table_of(seed=1).drop_columns(["id", "label"]).to_pylist()[:40]
    rows[3]["v"] = rows[3]["v"][:7]
    rows[7]["v"] = [*rows[7]["v"], 0.0]
    rows[8]["bits"] = []
    rows[9]["counts"] = [1, 2, 3]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "new.parquet")
    answers = predict(run.folder, [tmp_path / "new.parquet"])
    assert {each["row"]: each["rejected"] for each in answers if "rejected" in each} == {
        4: "the list in column 'v' has 7 elements instead of 8",
        8: "the list in column 'v' has 9 elements instead of 8",
        9: "column 'bits' has no value, and the table of the training had one in each row",
        10: "the list in column 'counts' has 3 elements instead of 2",
    }
    right = [each["label"] == str(label) for each, label in zip(answers, labels_of(1), strict=False) if "label" in each]
    assert len(right) == 36
    assert sum(right) >= 35


def labels_of(seed: int) -> Sequence[str]:
    return table_of(seed)["label"].to_pylist()


@pytest.mark.core
def test_a_served_model_refuses_vectors_of_another_length(run: Run):
    exported = tf.saved_model.load(str(run.export_folder))
    columns = {
        "v": tf.zeros((1, 7)),
        "counts": tf.zeros((1, 2), tf.float64),
        "bits": tf.zeros((1, 3), tf.int64),
    }
    with pytest.raises((TypeError, ValueError), match=r"(?s)8.*7|7.*8"):
        exported.serve(columns)


@pytest.mark.core
def test_an_exported_model_refuses_a_dataset_of_another_length(run: Run, tmp_path: Path):
    table = table_of()
    shorter = table.set_column(1, "v", pa.array([each[:7] for each in table["v"].to_pylist()]))
    parquet.write_table(shorter, tmp_path / "t.parquet")
    with pytest.raises(DatasetError, match=r"takes the list of 8 float column 'v', which t does not have"):
        evaluate_exported(run.export_folder, built(tmp_path / "t.parquet", key_column="id").folder)


def test_a_champion_of_vectors_of_another_length_is_not_compared():
    def about(length: int | None) -> dict[str, Any]:
        return {"labels": ["a"], "columns": [{"name": "v", "type": "float", "is_list": True, "length": length}]}

    assert why_incomparable(about(8), about(8), "run 1") == ""
    assert why_incomparable(about(8), about(None), "run 1") == ""  # It takes lists of all lengths.
    assert "takes the list of 8 float column 'v', which holds list of 7 float values" in why_incomparable(
        about(7), about(8), "run 1"
    )


# --- versions and windows ---------------------------------------------------------------------------------------------


def schema_of(length: int | None, missing: int = 0) -> Schema:
    label = Column("y", "string", role="label", distinct=2, values=("a", "b"))
    return Schema([Column("v", "float", is_list=True, length=length, missing=missing), label], 10, "classification")


def test_a_window_joins_the_positions_of_its_versions():
    random = np.random.default_rng(0)
    parts = [random.normal(each, 1 + each, (10 - each, 2)) for each in range(2)]
    facts = [{"count": len(part), "mean": part.mean(axis=0), "deviation": part.std(axis=0)} for part in parts]
    tables = [{**schema_of(2, each).to_json(), "preprocessing": {"v": facts[each]}} for each in range(2)]
    union, together = union_of(tables, 20), np.concatenate(parts)
    assert (Schema.from_json(union).column("v").length, Schema.from_json(union).column("v").missing) == (2, 1)
    assert union["preprocessing"]["v"]["count"] == 19
    np.testing.assert_allclose(union["preprocessing"]["v"]["mean"], together.mean(axis=0), rtol=1e-8)
    np.testing.assert_allclose(union["preprocessing"]["v"]["deviation"], together.std(axis=0), rtol=1e-8)


def test_a_window_of_a_version_with_lists_of_several_lengths_is_pooled():
    versions = [schema_of(2), schema_of(None), schema_of(3)]
    facts = [{"count": 1, "mean": [0.0, 0.0], "deviation": [1.0, 1.0]}, {}, {}]
    assert find_conflict(versions) is None
    pairs = zip(versions, facts, strict=True)
    union = union_of([{**version.to_json(), "preprocessing": {"v": each}} for version, each in pairs], 30)
    assert (Schema.from_json(union).column("v").length, union["preprocessing"]["v"]) == (None, {})


def window_of(folder: Path, *dates: pa.Array) -> Place:
    """Return the window of some dates, each with its lists."""
    values = {
        "example_kind": "table",
        "source_uri": str(folder / "sales" / "{date}.parquet"),
        "workspace": str(folder / "w"),
        "label_column": "y",
        "on_columns": "continue",
        "window": len(dates),
    }
    for number, lists in enumerate(dates, 1):
        day, rows = f"2026-01-{number:02}", range(len(lists))
        path = folder / "sales" / f"{day}.parquet"
        parquet_of(path, v=lists, x=[number + each / 100 for each in rows], y=[each % 2 for each in rows])
        build(settings_from({**values, "data_date": day}).dated())
    return newest_dataset(settings_from(values))


def test_a_window_of_vectors_of_two_lengths_is_refused(tmp_path: Path):
    dates = [pa.array([[float(number)] * length for number in range(40)]) for length in (8, 7)]
    message = r"the lists of the column 'v' have (8|7) values in the first version and (8|7) in "
    with pytest.raises(DatasetError, match=message):
        window_of(tmp_path, *dates)


@pytest.mark.parametrize("kind", [pa.float64(), pa.int64(), pa.null()])
def test_a_date_of_empty_lists_leaves_the_vectors_of_its_window(tmp_path: Path, kind: pa.DataType):
    vectors = pa.array([[float(number)] * 8 for number in range(40)])
    window = window_of(tmp_path, vectors, pa.array([[]] * 40, pa.list_(kind)))
    column = Schema.from_json(load(window).table).column("v")
    assert (column.type_words, column.missing) == ("list of 8 float", 40)
    [(features, _, _), *_] = validation_batches(window, BatchOptions(image_size=1, batch_size=64))
    assert features["v"].shape == (64, 8)


def test_the_gate_names_another_length_and_a_drift(tmp_path: Path):
    before = built(parquet_of(tmp_path / "t.parquet", v=[[0.0, number % 5] for number in range(60)], label=[0, 1] * 30))
    facts = before.dataset.table["preprocessing"]["v"]
    moved = {**facts, "mean": [0.0, facts["mean"][1] + facts["deviation"][1]]}
    later = {**before.dataset.table, "preprocessing": {"v": moved}}
    # The first place has no deviation, and so no unit.
    by_chance = 3 * math.sqrt(2 / facts["count"])
    assert table_changes(later, before.dataset, 1)["means"] == {"v": pytest.approx(1.0 - by_chance, abs=1e-4)}
    shorter = {**schema_of(3).to_json(), "preprocessing": {"v": {}}}
    changes = table_changes(shorter, before.dataset, 1)
    assert changes["columns"]["v"] == "holds values of type list of 3 float instead of list of 2 float"
    pooled = {**schema_of(None).to_json(), "preprocessing": {"v": {}}}
    assert table_changes(pooled, before.dataset, 1)["columns"]["v"] == (
        "holds values of type list of float instead of list of 2 float"
    )
    # Lists of several lengths may have one by chance.
    assert "v" not in table_changes(shorter, replace(before.dataset, table=pooled), 1)["columns"]


def test_drifted_positions_of_new_rows_are_named():
    schema = schema_of(2)
    table = {**schema.to_json(), "preprocessing": {"v": {"count": 10, "mean": [0.0, 5.0], "deviation": [0.0, 2.0]}}}
    rows = NewRows(table, "abc")
    lists = pa.array([[3.0, 9.0]] * 900 + [None], pa.large_list(pa.float32()))
    rows.add(pa.record_batch({"v": lists}))
    changes = rows.changes()
    assert changes["means"] == {"v": pytest.approx(2.0 - 3 / 30, abs=1e-4)}
    assert "'v' by 1.90" in sentences_of(changes, {"max_new_values_fraction": 0.0, "max_mean_drift": 0.25})[0]
