"""Trainings on tables, from made datasets: they learn, resume exactly, and are exported with their preprocessing."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from pipeline import storage
from pipeline.__main__ import main
from pipeline.config.automatic import AUTOMATIC, training_settings
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import DatasetError, Preempted, SettingsError, SourceError
from pipeline.evaluation.metrics import load_predictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.input import BatchOptions, training_batches, validation_batches
from pipeline.input.options import batch_options
from pipeline.input.tables import raw_batches, schema_of, with_ids
from pipeline.kinds.table.tensors import argument_names, served_columns
from pipeline.monitor import read
from pipeline.runs.launch import TrainingProcess, load_trained_result, prepare_run
from pipeline.runs.run import Run, describe_progress, load_result
from pipeline.tables.schema import Column, Task
from pipeline.training.evaluate import predicted
from pipeline.training.job import run_job
from pipeline.training.model.models import functional, with_probabilities
from pipeline.training.model.table_model import inputs_of
from pipeline.training.model.task import Regression
from pipeline.training.model.tensor_kind import build_model_of, task_of, tensor_kind_of
from pipeline.training.served.export import export
from pipeline.training.served.exported import evaluate_exported
from pipeline.training.served.predict import format_predictions, predict, predict_rows
from pipeline.training.step.optimizer import NO_LOSS_SCALING
from pipeline.training.step.phases import build_steps, step_options
from pipeline.training.step.steps import StepOptions, Steps
from pipeline.training.step.strategy import on_devices
from tests.made_tables import Row, make_table

TRAIN, VALIDATION = 1600, 400
COLUMNS = (
    Column("age", "int"),
    Column("income (€)", "float", missing=300),
    Column("children", "int", missing=300),
    Column("job", "string", missing=100),
    Column("words", "string", is_list=True),
    Column("since", "time"),
    Column("label", "string", role="label"),
)
SINCE = 1_700_000_000_000_000
"""Microseconds. The rows are within one minute, which float32 cannot tell apart."""


def rows_of(seed: int, rows: int) -> list[dict[str, Any]]:
    """Return rows in which each column decides a part of the score, by which the label is likely to be `yes`."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(rows):
        age, income = int(random.integers(18, 80)), float(random.lognormal(10, 0.5))
        job, since = str(random.choice(["baker", "pilot", "nurse"])), int(random.integers(0, 60_000_000))
        words = random.choice(["good", "bad", "some", "other"], size=random.integers(0, 4)).tolist()
        score = abs(age - 49) / 9 - 1.7 + {"baker": -2.0, "pilot": 2.0, "nurse": 0.0}[job]
        score += (since - 30e6) / 20e6 + words.count("good") - words.count("bad") + income / 20_000 - 1.2
        made.append(
            {
                "age": age,
                "income (€)": None if random.random() < 0.1 else income,
                "children": None if random.random() < 0.1 else int(random.integers(0, 5)),
                "job": None if random.random() < 0.05 else job,
                "words": words,
                "since": SINCE + since,
                "label": "yes" if random.random() < 1 / (1 + np.exp(-2 * score)) else "no",
                "score": score,
            }
        )
    return made


def table_of(folder: Path, rows: Sequence[Row], columns: Sequence[Column], task: Task) -> Path:
    splits = {"train": rows[:-VALIDATION], "validation": rows[-VALIDATION:], "test": []}
    return make_table(folder, columns, splits, task)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 2,000 rows with two classes. Tests must not change it."""
    rows = rows_of(0, TRAIN + VALIDATION)
    return table_of(tmp_path_factory.mktemp("classes") / "published", rows, COLUMNS, "classification")


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows with a number to predict: the score, in a unit of its own."""
    rows = [{**row, "price": 1e6 + 1e4 * row["score"]} for row in rows_of(0, TRAIN + VALIDATION)]
    columns = (*COLUMNS[:-1], Column("price", "float", role="label"))
    return table_of(tmp_path_factory.mktemp("values") / "published", rows, columns, "regression")


def settings_in(folder: Path, **others: Any) -> Settings:
    values = {"workspace": str(folder), "epochs": 4, "batch_size": 64, "learning_rate": 0.005}
    return settings_from({**values, **others})


def never() -> bool:
    return False


def trained_on(dataset: Path, folder: Path, **others: Any) -> Run:
    run = prepare_run(settings_in(folder, **others), dataset, "run")
    run_job(run, never)
    return run


@pytest.fixture(scope="module")
def classifier(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained_on(classes, tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def regressor(values: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained_on(values, tmp_path_factory.mktemp("regressor"), epochs=3)


@pytest.mark.long
def test_a_model_of_a_table_is_judged_on_the_test_rows(tmp_path: Path):
    """So is its exported form, which takes the texts."""
    rows = rows_of(1, 500)
    splits = {"train": rows[:300], "validation": rows[300:400], "test": rows[400:]}
    folder = make_table(tmp_path / "published", COLUMNS, splits, "classification")
    run = trained_on(folder, tmp_path / "workspace", epochs=1)
    found, exported = load_predictions(run.folder), evaluate_exported(run.export_folder, folder)
    assert found.label.tolist() == [("no", "yes").index(row["label"]) for row in rows[400:]]
    assert exported.label.tolist() == found.label.tolist()
    np.testing.assert_allclose(exported.label_probability, found.label_probability, atol=1e-4)


def loaded(path: Path) -> keras.Model:
    with warnings.catch_warnings():
        # Names of columns are keys of the inputs, but not their names.
        warnings.filterwarnings("ignore", "When providing `inputs` as a dict", UserWarning)
        return keras.saving.load_model(path)


def served(run: Run, dataset: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the labels of the validation rows, and the answers of the exported model."""
    exported = tf.saved_model.load(str(run.export_folder))
    columns = storage.read_json(run.export_folder / "about.json")["columns"]
    content, labels, answers = load(dataset), [], []
    for features, of_batch, weights in raw_batches(dataset, run.settings.batch_size):
        answer = exported.serve(served_columns(features, content, columns))
        labels.append(of_batch.numpy()[weights > 0])
        answers.append({name: value.numpy()[weights > 0] for name, value in answer.items()})
    return np.concatenate(labels), {name: np.concatenate([each[name] for each in answers]) for name in answers[0]}


def area_under_curve(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return how often a row of class 1 has a higher score than one of class 0."""
    return float((scores[labels == 1][:, np.newaxis] > scores[labels == 0]).mean())


# --- classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.core
def test_a_classifier_learns_and_writes_its_results(classifier: Run, classes: Path):
    labels, answers = served(classifier, classes)
    assert area_under_curve(labels, answers["probabilities"][:, 1]) > 0.85
    result = load_result(classifier.folder)
    assert result is not None
    assert classifier.settings.model == "mlp"  # This is what the default means for a table.
    assert load_trained_result(settings_in(Path(classifier.settings.workspace)), classes, "run") == result
    evaluation = storage.read_json(classifier.folder / "evaluation.json")
    assert evaluation["examples"] == VALIDATION
    accuracy = evaluation["figures"]["accuracy"]["value"]
    assert accuracy == pytest.approx(result["metrics"]["val_accuracy"], abs=1e-6)
    assert accuracy == pytest.approx((answers["probabilities"].argmax(axis=1) == labels).mean(), abs=1e-6)
    assert result["metrics"]["val_accuracy"] > 0.75
    batches = read(classifier.folder / "record", "batches")
    assert batches["input/examples"].sum() == 4 * TRAIN


@pytest.mark.core
def test_the_exported_classifier_predicts_what_the_trained_model_predicts(classifier: Run, classes: Path):
    model = loaded(classifier.model_path)
    batches = validation_batches(classes, batch_options(classifier.settings))
    expected = np.concatenate([model(features).numpy()[weights > 0] for features, _, weights in batches])
    _, answers = served(classifier, classes)
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)
    np.testing.assert_allclose(answers["probability"], expected.max(axis=1), atol=1e-5)
    assert answers["label"].tolist() == [[b"no", b"yes"][index] for index in expected.argmax(axis=1)]


def test_an_empty_text_is_missing_in_training_and_when_served(tmp_path: Path):
    texts = [{"job": "", "words": ["good", "", "bad"]}, {"job": None, "words": [""]}, {"job": "nurse", "words": []}]
    rows = [{**row, **texts[number % 3]} for number, row in enumerate(rows_of(0, VALIDATION + 20))]
    folder = table_of(tmp_path / "t", rows, COLUMNS, "classification")
    dataset, options = load(folder), BatchOptions(image_size=1, batch_size=1)
    features, _, _ = next(iter(validation_batches(folder, BatchOptions(image_size=1, batch_size=6))))
    raw, _, _ = next(iter(raw_batches(folder, 6)))
    kind = tensor_kind_of(dataset)
    columns = kind.about(options, dataset)["columns"]
    again = kind.features(options, dataset, served_columns(raw, dataset, columns))
    for name, value in features.items():
        assert np.array_equal(again[name], value), name
    first = 20 % 3  # The validation rows come after 20 others.
    masks = [[1, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert features["words_is_present"][:3].numpy().tolist() == masks[first:] + masks[:first]


@pytest.mark.core
def test_the_exported_model_takes_raw_values_with_missing_ones(classifier: Run):
    exported = tf.saved_model.load(str(classifier.export_folder))
    about = json.loads((classifier.export_folder / "about.json").read_text())
    rows = {
        "age": [30, 60],
        "income (€)": [float("nan"), 30_000.0],
        "children": [2.0, float("nan")],
        "job": ["", "astronaut"],
        "words": [["good", ""], ["", ""]],
        "since": [SINCE, SINCE + 1],
    }
    assert [column["name"] for column in about["columns"]] == [*rows]
    columns = {each["name"]: tf.constant(rows[each["name"]], each["dtype"]) for each in about["columns"]}
    answer = exported.serve(columns)
    assert np.allclose(answer["probabilities"].numpy().sum(axis=1), 1, atol=1e-5)
    arguments = {each["argument"]: columns[each["name"]] for each in about["columns"]}
    assert "income____" in arguments
    by_signature = exported.signatures["serving_default"](**arguments)
    assert np.array_equal(by_signature["label"], answer["label"])


@pytest.mark.core
def test_an_exported_classifier_is_evaluated_like_the_trained_model(classifier: Run, classes: Path):
    found, expected = evaluate_exported(classifier.export_folder, classes), load_predictions(classifier.folder)
    for name, column in found.columns.items():
        np.testing.assert_allclose(column, getattr(expected, name), atol=1e-5, err_msg=name)


@pytest.mark.core
def test_an_exported_classifier_is_evaluated_on_another_version(classifier: Run, tmp_path: Path):
    """In the other version, other columns have missing values, and there is another class, which becomes the first."""
    rows = [{**row, "age": None, "children": 2} for row in rows_of(1, 20)] + [{**rows_of(2, 1)[0], "label": "a"}] * 420
    columns = [replace(column, missing=20 if column.name == "age" else 0) for column in COLUMNS]
    folder = table_of(tmp_path / "other", rows, columns, "classification")
    assert load(folder).labels == ("a", "no", "yes")
    found = evaluate_exported(classifier.export_folder, folder)
    assert found.label.tolist() == [0] * VALIDATION
    assert np.all(found.label_probability == 0)
    assert set(found.predicted) <= {1, 2}


@pytest.mark.core
def test_an_exported_model_refuses_a_table_without_its_columns(classifier: Run, tmp_path: Path):
    folder = table_of(tmp_path / "other", rows_of(1, 420), [COLUMNS[0], COLUMNS[-1]], "classification")
    with pytest.raises(DatasetError, match=r"takes the float column 'income .€.', which table does not have"):
        evaluate_exported(classifier.export_folder, folder)


@pytest.mark.core
def test_rows_of_a_file_are_predicted_as_in_the_evaluation(classifier: Run, tmp_path: Path):
    rows = rows_of(0, TRAIN + VALIDATION)[-VALIDATION:]
    names = [column.name for column in COLUMNS if column.role == "feature"]
    table = pa.Table.from_pylist([{name: row[name] for name in names} for row in rows])
    since = table.column("since").cast(pa.timestamp("us"))
    table = table.set_column(names.index("since"), "since", since)
    parquet.write_table(table, tmp_path / "rows.parquet")
    answers = predict(classifier.folder, [tmp_path / "rows.parquet"])
    assert [each["row"] for each in answers] == [*range(1, VALIDATION + 1)]
    found = [next(one["probability"] for one in each["likely"] if one["label"] == "yes") for each in answers]
    expected = load_predictions(classifier.folder).ranked[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert [each["label"] for each in answers[:1]] == [answers[0]["likely"][0]["label"]]


@pytest.mark.core
def test_rows_that_a_model_cannot_take_are_named(regressor: Run, tmp_path: Path):
    lines = [
        "age,income (€),children,job,since",
        "40,1000.5,2,baker,2023-11-14 22:13:20",
        "1,2",
        "old,1000.5,2,baker,2023-11-14 22:13:20",
        ",1000.5,2,baker,2023-11-14 22:13:20",
        "50,,,,2023-11-14 22:13:20",
        "1,2",
    ]
    about = storage.read_json(regressor.export_folder / "about.json")
    (tmp_path / "new.csv").write_text("\n".join(lines))
    without_lists = {**about, "columns": [each for each in about["columns"] if not each["is_list"]]}

    class Exported:
        def serve(self, served: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            assert np.isnan(served["children"].numpy()).tolist() == [False, True]
            assert served["job"].numpy().tolist() == [b"baker", b""]
            return {"value": tf.cast(served["age"], tf.float32)}

    answers = list(predict_rows(Exported(), without_lists, tmp_path / "new.csv"))
    assert [(each["row"], each.get("value")) for each in answers] == [
        (2, 40),
        *((row, None) for row in (3, 4, 5)),
        (6, 50),
        (7, None),
    ]
    report = format_predictions({"predictions": answers}).splitlines()
    assert report[0].endswith("new.csv:2  40.00")
    assert "the row has 2 fields" in report[1]
    assert report[2].endswith("not a usable row: column 'age' holds 'old', which is not a whole number of 64 bits")
    assert "column 'age' has no value" in report[3]
    assert "the row has 2 fields" in report[5]


@pytest.mark.core
def test_a_file_that_is_no_table_with_the_columns_of_the_model_is_refused(classifier: Run, tmp_path: Path):
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(SourceError, match=r"photo\.jpg is not a table"):
        predict(classifier.folder, [tmp_path / "photo.jpg"])
    (tmp_path / "other.csv").write_text("age\n3\n")
    with pytest.raises(SourceError, match=r"other\.csv lacks 5 of the 6 columns .* add 'income .€.', 'children'"):
        predict(classifier.folder, [tmp_path / "other.csv"])


@pytest.mark.core
def test_the_command_says_how_new_rows_differ_from_those_of_the_training(
    classifier: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    names = [column.name for column in COLUMNS if column.role == "feature"]
    rows = [{name: row[name] for name in names} for row in rows_of(3, 100)]
    rows = [{**row, "age": row["age"] + 90, "children": None} for row in rows]
    rows[:3] = [{**row, "job": job} for row, job in zip(rows, ("welder", "astronaut", "welder"), strict=False)]
    table = pa.Table.from_pylist(rows)
    table = table.set_column(names.index("since"), "since", table.column("since").cast(pa.timestamp("us")))
    parquet.write_table(table, tmp_path / "new.parquet")
    command = ["predict", "--model", str(classifier.folder), str(tmp_path / "new.parquet"), "--json"]
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out)
    assert (len(result["predictions"]), result["table_changes"]["against"]) == (100, "1" * 16)
    assert all("label" in each for each in result["predictions"])
    parts = [
        "'children' has no value, but 0.85 of the rows",
        "'job' in 3 of 100 (3%) rows (2 texts, such as 'welder', 'astronaut')",
        "the means of 1 column of the new rows differ from those of the training rows",
    ]
    assert all(part in sentence for part, sentence in zip(parts, result["warnings"], strict=True))
    assert set(result["warnings"]) <= set(caplog.messages)
    limits = ["--set", "max_new_values_fraction=0.05", "--set", "max_mean_drift=20"]
    assert main([*command, *limits]) == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 1


@pytest.mark.core
def test_a_stopped_training_continues_exactly(classifier: Run, classes: Path, tmp_path: Path):
    run = prepare_run(settings_in(tmp_path), classes, "run")
    for steps in (31, 40):  # in the middle of the second epoch, and of the third
        with pytest.raises(Preempted):
            run_job(run, after(steps))
    assert "validation accuracy" in describe_progress({"workspace": str(tmp_path)}, "run")
    run_job(run, never)
    epochs, others = (read(each.folder / "record", "epochs") for each in (run, classifier))
    assert epochs["step"].tolist() == [1, 2, 3, 4]
    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    np.testing.assert_allclose(epochs[names], others[names], rtol=1e-3, atol=1e-6)


def after(steps: int) -> Callable[[], bool]:
    """Return a function that requests a stop from its call number `steps + 1` on."""
    calls = count()
    return lambda: next(calls) >= steps


# --- default values ---------------------------------------------------------------------------------------------------


NUMBERS = (Column("size", "float"), Column("code", "int", distinct=40, low=0, high=39), COLUMNS[-1])


def numbers_of(seed: int, rows: int, outlier: float = 0.0) -> list[dict[str, Any]]:
    """Return rows of which a number decides the label, or else a code without an order. One size is an outlier."""
    random = np.random.default_rng(seed)
    sizes, codes = random.normal(size=rows), random.integers(0, 40, rows)
    sizes[rows // 2] += outlier
    is_odd = np.random.default_rng(0).permutation(40)[codes] % 2
    score = (sizes if outlier else 0) + 3 * (is_odd - 0.5) * (not outlier)
    chosen = random.random(rows) < 1 / (1 + np.exp(-3 * np.clip(score, -9, 9)))
    return [
        {"size": float(size), "code": int(code), "label": "yes" if yes else "no"}
        for size, code, yes in zip(sizes, codes, chosen, strict=True)
    ]


def settings_without(folder: Path, **others: Any) -> Settings:
    """Return settings of which Tenfold chooses all values of the training."""
    return settings_from({"workspace": str(folder), "promote": "never", **others})


@pytest.mark.long
def test_one_outlier_does_not_flatten_a_column(tmp_path: Path):
    folder = table_of(tmp_path / "published", numbers_of(0, TRAIN + VALIDATION, 1e9), NUMBERS, "classification")
    run = prepare_run(settings_without(tmp_path, epochs=4), folder, "run")
    run_job(run, never)
    labels, answers = served(run, folder)
    assert area_under_curve(labels, answers["probabilities"][:, 1]) > 0.9


@pytest.mark.long
def test_each_of_few_whole_numbers_has_a_weight_of_its_own(tmp_path: Path):
    folder = table_of(tmp_path / "published", numbers_of(0, TRAIN + VALIDATION), NUMBERS, "classification")
    run = prepare_run(settings_without(tmp_path, epochs=12), folder, "run")
    run_job(run, never)
    labels, answers = served(run, folder)
    assert area_under_curve(labels, answers["probabilities"][:, 1]) > 0.9


@pytest.mark.core
def test_a_training_ends_early_and_a_stopped_one_ends_after_the_same_epoch(classes: Path, tmp_path: Path):
    given = {"epochs": 60, "learning_rate": 0.05, "learning_rate_schedule": "constant", "patience": 2}
    whole = prepare_run(settings_without(tmp_path / "whole", **given), classes, "run")
    calls = count()
    run_job(whole, lambda: next(calls) < 0)
    epochs = read(whole.folder / "record", "epochs")
    best = int(epochs["val_loss"].to_numpy().argmin()) + 1
    assert len(epochs) == best + 2 < 60
    result = load_result(whole.folder)
    assert result is not None
    assert (result["epochs"], result["metrics"]["best_epoch"]) == (best + 2, best)

    assert storage.read_json(whole.folder / "early_end.json") == {"epoch": best + 2}

    in_all = next(calls)
    # One epoch after the best one is complete, or all epochs are, and the model is being evaluated.
    for number, calls_before in enumerate((in_all - 20, in_all - 2)):
        stopped = prepare_run(settings_without(tmp_path / f"{number}", **given), classes, "run")
        with pytest.raises(Preempted):
            run_job(stopped, after(calls_before))
        has_ended = (stopped.folder / "early_end.json").exists()
        assert has_ended == (number == 1)
        run_job(stopped, never)
        again = read(stopped.folder / "record", "epochs")
        for column in ("step", "loss", "val_loss"):
            assert again[column].tolist() == pytest.approx(epochs[column].tolist(), rel=1e-5)
        assert load_result(stopped.folder)["metrics"] == pytest.approx(result["metrics"], rel=1e-4)


@pytest.mark.long
def test_all_servers_end_early_after_the_same_epoch(classes: Path, tmp_path: Path):
    """Only server 0 knows the best epoch."""
    given = {"epochs": 60, "learning_rate": 0.05, "learning_rate_schedule": "constant", "patience": 2}
    settings = settings_without(tmp_path, **given, num_training_servers=2)
    runs = [prepare_run(settings, classes, "run", index) for index in range(2)]
    processes = [TrainingProcess(run, output=1) for run in runs]
    results = [process.wait() for process in processes]
    best = results[0]["metrics"]["best_epoch"]
    assert [each["epochs"] for each in results] == [best + 2] * 2
    assert [len(read(run.folder / "record", "epochs")) for run in runs] == [best + 2] * 2
    assert best + 2 < 60


@pytest.mark.core
def test_chosen_values_are_those_of_the_run_and_of_its_exported_model(classes: Path, tmp_path: Path):
    settings = settings_without(tmp_path, epochs=1)
    run = prepare_run(settings, classes, "run")
    run_job(run, never)
    assert (run.settings.batch_size, run.settings.learning_rate_schedule, run.settings.patience) == (64, "cosine", 4)
    learned_with = storage.read_json(run.export_folder / "about.json")["learned_with"]
    assert learned_with == {name: getattr(run.settings, name) for name in (*AUTOMATIC, "seed")}
    # A run that sets the chosen values is the same training, which is complete.
    chosen = {name: getattr(run.settings, name) for name in AUTOMATIC}
    again = settings_from({**settings.model_dump(), **chosen})
    assert load_trained_result(again, classes, "run") == load_result(run.folder)


def test_a_training_on_more_servers_divides_the_chosen_batch(classes: Path, tmp_path: Path):
    run = prepare_run(settings_without(tmp_path, num_training_servers=3), classes, "run")
    assert run.settings.batch_size % 3 == 0


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.core
def test_a_regressor_learns_in_the_unit_of_the_label(regressor: Run, values: Path):
    labels, answers = served(regressor, values)
    error = np.abs(answers["value"] - labels).mean()
    assert error < 0.5 * np.abs(labels - labels.mean()).mean()
    result = load_result(regressor.folder)
    assert result is not None
    assert result["metrics"]["val_mae"] == pytest.approx(error, rel=1e-3)
    assert "val_accuracy" not in result["metrics"]
    epochs = read(regressor.folder / "record", "epochs")
    assert epochs["val_loss"].min() == pytest.approx(result["metrics"]["val_loss"], rel=1e-3)
    assert "validation mean absolute error" in describe_progress({"workspace": regressor.settings.workspace}, "run")


@pytest.mark.core
def test_the_exported_regressor_predicts_what_the_trained_model_predicts(regressor: Run, values: Path):
    model = loaded(regressor.model_path)
    batches = validation_batches(values, batch_options(regressor.settings))
    expected = np.concatenate([model(features).numpy()[weights > 0, 0] for features, _, weights in batches])
    np.testing.assert_allclose(served(regressor, values)[1]["value"], expected, rtol=1e-5)


def test_the_loss_of_a_regression_has_no_unit_and_its_metric_has_that_of_the_label():
    task = Regression(100.0, 10.0)
    labels, logits = tf.constant([100.0, 120.0]), tf.constant([[0.5], [2.0]])
    assert task.loss(labels, logits).numpy().tolist() == [0.25, 0.0]
    assert task.measured(labels, logits).numpy().tolist() == [5.0, 0.0]
    assert task.predictions()(logits).numpy().tolist() == [[105.0], [120.0]]
    assert task.served(tf.constant([[105.0]]), tf.constant([]))["value"].numpy().tolist() == [105.0]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_whole_numbers_with_a_large_offset_keep_their_digits(tmp_path: Path, micro_batches: int):
    """float32 holds numbers of this size only in steps of 64."""
    offset = 10**9
    rows = [{"age": row["age"], "price": offset + row["age"]} for row in rows_of(0, VALIDATION + 20)]
    folder = table_of(tmp_path / "t", rows, [COLUMNS[0], Column("price", "int", role="label")], "regression")
    dataset = load(folder)
    task, model = task_of(dataset), build_model_of(training_settings({"model": "mlp"}), dataset)
    [batch] = validation_batches(folder, BatchOptions(image_size=1, batch_size=VALIDATION))
    features, labels, _ = batch
    facts = dataset.table["preprocessing"]["price"]
    expected = np.array([row["age"] for row in rows[-VALIDATION:]])
    logits = model(features)
    standard = (expected - (facts["mean"] - offset)) / facts["deviation"]
    np.testing.assert_allclose(task.loss(labels, logits), (logits[:, 0] - standard) ** 2, rtol=1e-3, atol=1e-6)
    prices = logits.numpy()[:, 0].astype(float) * facts["deviation"] + facts["mean"]
    np.testing.assert_allclose(task.measured(labels, logits), abs(prices - offset - expected), atol=1e-3)
    with_values = with_probabilities(model, task)
    with_values.save(tmp_path / "saved.keras")
    for each in (with_values, loaded(tmp_path / "saved.keras")):
        np.testing.assert_allclose(each(features)[:, 0], prices, rtol=0, atol=1e-3)
    strategy = tf.distribute.get_strategy()
    answers = [*predicted(strategy, with_values, [batch], RegressionPredictions, micro_batches)]
    np.testing.assert_array_equal(answers[0].label, offset + expected)
    np.testing.assert_allclose(answers[0].predicted, prices, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("loss", "better"), [(0.1, True), (0.4, False)])
def test_the_loss_of_the_validation_decides_which_regressor_is_better(loss: float, better: bool):
    assert Regression(0.0, 1.0).is_better({"val_loss": loss}, {"val_loss": 0.3}) == better


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classes", "values"])
def test_micro_batches_add_up_to_the_whole_batch(name: str, request: pytest.FixtureRequest):
    folder = request.getfixturevalue(name)
    dataset = load(folder)
    model = build_model_of(training_settings({"model": "mlp"}), dataset)
    features, labels, weights = next(iter(validation_batches(folder, BatchOptions(image_size=1, batch_size=12))))
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    sums = [
        Steps(strategy, model, keras.optimizers.SGD(), StepOptions(task=task_of(dataset), micro_batches=parts))
        .evaluate(features, labels, weights, tf.constant(0.0))
        .numpy()
        for parts in (1, 4)
    ]
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["classes", "values"])
def test_xla_compiles_the_steps_of_a_table_with_texts(name: str, request: pytest.FixtureRequest):
    folder = request.getfixturevalue(name)
    dataset, options = load(folder), BatchOptions(image_size=1, batch_size=12)
    *batch, _ = next(iter(training_batches(folder, options, numbered=True)))
    strategy, should_stop = tf.distribute.OneDeviceStrategy("/cpu:0"), tf.constant(0.0)
    evaluated = []
    for xla in (False, True):
        settings = training_settings({"model": "mlp", "xla": xla})
        keras.utils.set_random_seed(0)
        model = build_model_of(settings, dataset)
        of_steps = step_options(settings, dataset, 1, 1)
        assert of_steps.xla == xla
        steps = build_steps(strategy, model, keras.optimizers.SGD(), of_steps)
        evaluated.append(steps.evaluate(*batch[:3], should_stop).numpy())
        before = [variable.numpy() for variable in model.trainable_variables]
        # The loss differs, because XLA draws other random numbers for dropout.
        assert steps.train(*batch, should_stop).numpy()[2:].tolist() == [12, 0, *NO_LOSS_SCALING, 0]
        assert not any(np.array_equal(*pair) for pair in zip(before, model.trainable_variables, strict=True))
    np.testing.assert_allclose(*evaluated, rtol=1e-5)


# --- a champion and newer rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int", "bool", "date", "time", "float"])
def test_a_champion_gets_the_mean_for_a_missing_number_that_its_own_table_never_lacked(tmp_path: Path, kind: Any):
    """Its signature has no place for a missing integer, and 0 may be hundreds of deviations from the mean."""
    full = [Column("year", kind), COLUMNS[-1]]
    years = [int(number % 3 == 0) if kind == "bool" else 2000 + number % 20 for number in range(VALIDATION + 20)]
    rows = [{"year": year, "label": "ab"[year % 2]} for year in years]
    champion = load(table_of(tmp_path / "full", rows, full, "classification"))
    taken = tensor_kind_of(champion).about(BatchOptions(image_size=1, batch_size=1), champion)["columns"]
    newer = [{**row, "year": None if number % 2 else row["year"]} for number, row in enumerate(rows)]
    folder = table_of(tmp_path / "newer", newer, [replace(full[0], missing=200), COLUMNS[-1]], "classification")
    served = served_columns(next(iter(raw_batches(folder, 8)))[0], load(folder), taken)["year"].numpy()
    assert served[::2].tolist() == years[20:28:2]
    mean = champion.table["preprocessing"]["year"].get("mean") or 0
    assert served[1::2].tolist() == pytest.approx([mean] * 4, abs=0 if kind == "float" else 0.5)


@pytest.mark.core
def test_missing_integers_cost_a_champion_less_than_zeros(classifier: Run, tmp_path: Path):
    """Otherwise, a challenger that knows missing values would win by them."""
    scores = []
    for since in (None, 0):
        rows = [{**row, "since": since if number % 3 else row["since"]} for number, row in enumerate(rows_of(1, 500))]
        columns = (*COLUMNS[:5], replace(COLUMNS[5], missing=300 if since is None else 0), COLUMNS[6])
        folder = table_of(tmp_path / f"{since}", rows, columns, "classification")
        scores.append(evaluate_exported(classifier.export_folder, folder).score)
    assert scores[0] < scores[1]


# --- models -----------------------------------------------------------------------------------------------------------


def test_missing_and_unknown_values_give_finite_logits(classes: Path):
    model = build_model_of(training_settings({"model": "mlp"}), load(classes))
    features, _, _ = next(iter(validation_batches(classes, BatchOptions(image_size=1, batch_size=3))))
    odd = {**features, "income (€)": tf.constant([np.nan, np.inf, 1e38]), "job": tf.constant([0, 1, 4], tf.int64)}
    assert np.isfinite(model({**odd, "words": features["words"][:, :0], "words_is_present": tf.zeros((3, 0))})).all()


def test_the_numbers_of_a_missing_value_do_not_matter(classes: Path):
    model = build_model_of(training_settings({"model": "mlp"}), load(classes))
    features, _, _ = next(iter(validation_batches(classes, BatchOptions(image_size=1, batch_size=3))))
    absent = {**features, "children_is_present": tf.zeros(3)}
    first, second = (model({**absent, "children": tf.fill([3], tf.constant(value, tf.int64))}) for value in (0, 9))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_a_mixed_precision_model_has_float32_logits(classes: Path, precision: str, tmp_path: Path):
    dataset = load(classes)
    model = build_model_of(training_settings({"model": "mlp", "precision": precision}), dataset)
    assert model.get_layer("embedding_0").compute_dtype == precision[6:]
    features, _, _ = next(iter(validation_batches(classes, BatchOptions(image_size=1, batch_size=3))))
    assert model(features).dtype == tf.float32
    saved = with_probabilities(model)
    saved.save(tmp_path / "model.keras")
    assert np.array_equal(loaded(tmp_path / "model.keras")(features), saved(features))


def test_columns_may_have_any_name(tmp_path: Path):
    """Some are names of layers of the model, and Keras refuses a slash in the name of a layer."""
    names = ["value", "probabilities", "logits", "wide", "dense", "a/b", "a_b", "column_0", "größe (€)", " ", "*"]
    columns = [*(Column(name, "int", missing=number % 2) for number, name in enumerate(names)), COLUMNS[-1]]
    rows = [dict.fromkeys(names, number) | {"label": "ab"[number % 2]} for number in range(420)]
    folder = table_of(tmp_path / "made", rows, columns, "classification")
    dataset, settings = load(folder), training_settings({"model": "mlp"})
    model = build_model_of(settings, dataset)
    export(model, settings, dataset, tmp_path / "export")
    taken = storage.read_json(tmp_path / "export" / "about.json")["columns"]
    features, _, _ = next(iter(validation_batches(folder, BatchOptions(image_size=1, batch_size=8))))
    served = served_columns(next(iter(raw_batches(folder, 8)))[0], dataset, taken)
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    answer = signature(**{each["argument"]: served[each["name"]] for each in taken})
    np.testing.assert_allclose(answer["probabilities"], with_probabilities(model)(features), atol=1e-5)


def test_lists_of_numbers_have_no_facts(tmp_path: Path):
    columns = [Column("sizes", "int", is_list=True), COLUMNS[-1]]
    rows = [{"sizes": [number] * (number % 3), "label": "ab"[number % 2]} for number in range(420)]
    dataset = load(table_of(tmp_path / "made", rows, columns, "classification"))
    assert dataset.table["preprocessing"] == {"sizes": {}}
    model = build_model_of(training_settings({"model": "mlp"}), dataset)
    sizes = tf.constant([[10**6, 10**6], [10**3, 0], [0, 0]], tf.int64)
    masks = tf.constant([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    inputs = {"sizes": sizes, "sizes_is_present": masks}
    deep = functional(model.input, model.get_layer("wide").input, "deep")(inputs)
    np.testing.assert_allclose(deep, [[np.log(1e6 + 1) / 2], [np.log(1001) / 2], [0.0]], rtol=1e-5)


def test_strings_of_many_values_are_hashed(classes: Path):
    dataset = load(classes)
    facts = {**dataset.table["preprocessing"], "job": {"hash_buckets": 20}, "words": {"vocabulary": []}}
    hashed = replace(dataset, table={**dataset.table, "preprocessing": facts})
    model = build_model_of(training_settings({"model": "mlp"}), hashed)
    features, _, _ = next(iter(raw_batches(classes, 3)))
    assert model(with_ids(features, hashed)).shape == (3, 2)
    assert [model.get_layer(f"embedding_{number}").input_dim for number in (0, 1)] == [21, 2]


OWN = """
import keras
from keras import layers, ops

def some_columns(schema, classes):
    assert [column["name"] for column in schema["columns"]][:1] == ["age"]
    age = keras.Input((), name="age", dtype="int64")
    return keras.Model({"age": age}, layers.Dense(classes)(ops.expand_dims(ops.cast(age, "float32"), -1)))

class All(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.dense = layers.Dense(classes)

    def call(self, features):
        return self.dense(ops.expand_dims(features["income (€)"] * features["income (€)_is_present"], -1))

    def get_config(self):
        return {"classes": self.dense.units}

def all_columns(schema, classes):
    return All(classes)

def unknown_column(schema, classes):
    height = keras.Input((), name="height")
    return keras.Model({"height": height}, layers.Dense(classes)(ops.expand_dims(height, -1)))

def of_images(image_size):
    raise NotImplementedError
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_tables.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_tables"


@pytest.mark.parametrize("name", ["some_columns", "all_columns"])
def test_an_own_model_takes_columns(classes: Path, own: str, name: str):
    model = with_probabilities(build_model_of(training_settings({"model": f"{own}:{name}"}), load(classes)))
    features, _, _ = next(iter(validation_batches(classes, BatchOptions(image_size=1, batch_size=3))))
    assert model(features).shape == (3, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown_column", r"must take a dict of the inputs age, income \(€\), .* \(KeyError: 'height'\)"),
        ("of_images", r"must take \(schema, 2\), but has the arguments \(image_size\)"),
    ],
)
def test_an_own_model_that_does_not_fit_is_refused(classes: Path, own: str, name: str, message: str):
    with pytest.raises(SettingsError, match=message):
        build_model_of(training_settings({"model": f"{own}:{name}"}), load(classes))


def test_inputs_have_the_shape_of_the_columns(classes: Path):
    inputs = inputs_of(schema_of(load(classes)))
    assert {name: (each.shape, each.dtype) for name, each in inputs.items() if name in ("age", "job", "words")} == {
        "age": ((None,), "int64"),
        "job": ((None,), "int64"),
        "words": ((None, None), "int64"),
    }


def test_argument_names_are_plain_and_unique():
    assert argument_names(["a", "a b", "a.b", "a_b", "2nd", "größe", "a_b_2"]) == [
        *("a", "a_b_3", "a_b_4", "a_b", "column_2nd", "gr__e", "a_b_2"),
    ]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            {"model": "ResNet50"},
            "model must be mlp or package.module:function for a table, as in table, got 'ResNet50'",
        ),
        (
            {"model": "small_cnn"},
            "model must be mlp or package.module:function for a table, as in table, got 'small_cnn'",
        ),
        ({"balanced": True}, "balanced must be false for a regression, .*: a regression has no classes"),
        ({"cache": "memory"}, "cache must be auto or off for a table"),
        ({"class_weights": "balanced"}, "class_weights must be none for a regression, .* a regression has no classes"),
        ({"label_smoothing": 0.1}, "label_smoothing must be 0 for a regression, .* got 0.1"),
    ],
)
def test_settings_that_do_not_fit_a_table_are_refused(
    values: Path, tmp_path: Path, others: dict[str, Any], message: str
):
    with pytest.raises(SettingsError, match=message):
        prepare_run(settings_in(tmp_path, **others), values, "run")


def test_weights_are_refused_for_a_table(values: Path, tmp_path: Path):
    (tmp_path / "some.weights.h5").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"weights must be empty for a table, as in table, got .*: its model"):
        prepare_run(settings_in(tmp_path, weights=str(tmp_path / "some.weights.h5")), values, "run")


@pytest.mark.core
def test_a_training_on_a_table_knows_its_kind(regressor: Run):
    """The command `train` does not need the setting."""
    assert regressor.settings.example_kind == "table"


def test_a_model_of_a_table_is_refused_for_images(published: Path, tmp_path: Path):
    with pytest.raises(SettingsError, match=r"model must be small_cnn, .*InceptionResNetV2 or .* for images, .* 'mlp'"):
        prepare_run(settings_in(tmp_path, model="mlp"), published, "run")


# --- several devices --------------------------------------------------------------------------------------------------


def evaluated(folder: Path, strategy: tf.distribute.Strategy, micro_batches: int) -> np.ndarray:
    """Return the sums of one evaluation step on 12 rows."""
    dataset = load(folder)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build_model_of(training_settings({"model": "mlp"}), dataset)
    options = StepOptions(task=task_of(dataset), micro_batches=micro_batches)
    steps = Steps(strategy, model, keras.optimizers.SGD(), options)
    batches = on_devices(validation_batches(folder, BatchOptions(image_size=1, batch_size=12)), 12, strategy)
    return steps.evaluate(*next(iter(batches)), tf.constant(0.0)).numpy()


TWO_DEVICES = """
import sys
from pathlib import Path
import numpy as np
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tests.training.test_tables import evaluated
one = evaluated(Path(sys.argv[1]), tf.distribute.OneDeviceStrategy("/cpu:0"), 1)
two = evaluated(Path(sys.argv[1]), tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]), 2)
np.testing.assert_allclose(one, two, rtol=1e-5)
"""


@pytest.mark.core
def test_two_devices_share_a_batch_of_rows(classes: Path):
    """The test needs a separate process: TensorFlow can split a processor only before it uses it."""
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", TWO_DEVICES, str(classes)], cwd=root, check=True, timeout=300)


@pytest.mark.core
def test_only_the_columns_of_the_model_are_read_of_new_rows(classifier: Run, tmp_path: Path):
    """A file with a column of a type that Tenfold does not read was refused, though the model does not take it."""
    names = [column.name for column in COLUMNS if column.role == "feature"]
    table = pa.Table.from_pylist([{name: row[name] for name in names} for row in rows_of(3, 30)])
    table = table.set_column(names.index("since"), "since", table.column("since").cast(pa.timestamp("us")))
    parquet.write_table(table, tmp_path / "own.parquet")
    maps = pa.array([[("key", 1)]] * 30, pa.map_(pa.string(), pa.int64()))
    missing = pa.table(
        {name: pa.nulls(30, kind) for name, kind in zip(table.column_names, table.schema.types, strict=True)}
    )
    parquet.write_table(table.add_column(0, "extra", maps), tmp_path / "more.parquet")
    expected = predict(classifier.folder, [tmp_path / "own.parquet"])
    answers = predict(classifier.folder, [tmp_path / "more.parquet"])
    assert [{**each, "file": ""} for each in answers] == [{**each, "file": ""} for each in expected]
    # A row without any feature gets an answer, too.
    parquet.write_table(missing.append_column("id", pa.array(range(30))), tmp_path / "empty.parquet")
    assert len(predict(classifier.folder, [tmp_path / "empty.parquet"])) == 30
