"""The section of the report and the comparison of two runs, for models of tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import evaluation_of, save
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.evaluation.scales import four_digits
from pipeline.evaluation.table_classes import ClassPredictions
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row as Recorded
from pipeline.report import compare_runs, evaluation_section, report_run, write_report
from pipeline.report.compare import Comparison, difference_of_models
from pipeline.report.compare_words import cells, quality_sentence
from pipeline.report.compared_run import compared
from pipeline.report.evaluation_section import MAX_CLASSES
from pipeline.report.mistakes import MAX_COLUMNS
from pipeline.runs.files import RUN_FORMAT
from pipeline.runs.recorded_run import load_recorded_run
from pipeline.stages.build import build
from tests.report.compared_runs import run_with
from tests.report.rich import rich_run
from tests.report.test_report import EVIL, SCRIPTS, Page, describe
from tests.table_rows import rows_at

LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 1])
SECOND = np.array([0.1, 0.2, 0.3, 0.96, 0.35, 0.6, 0.8, 0.9])
BINARY = ClassPredictions.of_batch(LABELS, np.stack([1 - SECOND, SECOND], axis=1))
NUMBERS = RegressionPredictions.of_batch(
    np.array([100.0, 200.0, 300.0, 400.0]), np.array([110.0, 180.0, 300.0, 1640.0])
)


def text_of(page: Page) -> str:
    return " ".join(page.text.split())


def reported(folder: Path, predictions: Answers, names: list[str], rows: Sequence[Mapping[str, str]] = ()) -> Page:
    describe(folder)
    save(folder, predictions, evaluation_of(predictions, names, seed=0))
    return Page(write_report(folder, rows=rows))


# --- the section of the report ----------------------------------------------------------------------------------------


def test_a_binary_model_is_reported_with_its_ranking_and_its_loss(tmp_path: Path):
    page = reported(tmp_path, BINARY, ["stays", "leaves"])
    figures = evaluation_of(BINARY, ["stays", "leaves"], seed=0)["figures"]
    auc, loss = figures["auc"], figures["log_loss"]
    for phrase in (
        "These are the figures of the best model on the 8 validation examples.",
        # 12 of the 16 pairs of a row of each class are in the right order.
        f"0.5 is chance 0.750 {auc['low']:.3f} to {auc['high']:.3f} 0.500 (the shares of the classes)",
        f"lower is better {loss['value']:#.4g} ",
        "accuracy 75.0% ",
        "stays 3 1 leaves 1 3 ",  # the matrix
        "stays 4 75.0% (30.1% to 98.7%) 75.0% (30.1% to 98.7%)",
        "The mean probability of 'leaves' was 52.6%, and 50.0% of the rows have this class: on the whole, its "
        "probability is too high.",
        "row true class predicted class probability 3 stays leaves 96% 4 leaves stays 65%",
    ):
        assert phrase in text_of(page), phrase
    assert page.count("img") == 0


def test_a_regression_is_reported_in_the_unit_of_the_label(tmp_path: Path):
    page = reported(tmp_path, NUMBERS, [], [{"house": name, "rooms": "5"} for name in ("d", "b", "a")])
    for phrase in (
        "mean absolute error, in the unit of the label 317.5 ",
        "root mean squared error, in the unit of the label: large errors count more 620.1 ",
        "0 is as good as always predicting the mean -29.762 ",
        "100.0 (always the median)",
        "0.000 (always the mean)",
        "On average, the predictions are 307.5 too high. Half of the errors are below 15.00, and 95% are below 1,057.",
        "row true value predicted value predicted minus true house rooms 3 400.0 1,640 +1,240 d 5 1 200.0 180.0 -20.00 "
        "b 5 0 100.0 110.0 +10.00 a 5",
        "Largest errors",
    ):
        assert phrase in text_of(page), phrase
    for absent in ("Confusion matrix", "Precision and recall", "confidence", "317.5%"):
        assert absent not in page.text, absent


def test_the_report_of_a_regression_has_no_sections_about_images_or_classes(tmp_path: Path):
    describe(tmp_path)
    columns = [{"name": "price", "role": "label"}]
    described = json.loads((tmp_path / "dataset" / "dataset.json").read_text())
    table = {"task": "regression", "rows": 56, "columns": columns}
    described |= {"labels": [], "table": table, "quality": {"unit": "row"}}
    described["source"]["skipped"] = {"no table": 2}
    (tmp_path / "dataset" / "dataset.json").write_text(json.dumps(described))
    run = json.loads((tmp_path / "run.json").read_text())
    run["settings"] = {"example_kind": "table", "epochs": 2, "image_size": 96, "key_column": "id"}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "result.json").write_text(json.dumps({"metrics": {"mae": 12.345}, "baselines": {"val_mae": 33.3}}))
    sink = RecordSink(tmp_path / "record")
    for epoch, error in ((1, 30.0), (2, 12.25)):
        sink.write(Recorded("epochs", 1e9, epoch, {"loss": 1.0, "mae": 20.0, "val_loss": 1.0, "val_mae": error}))
    sink.close()
    text = text_of(Page(write_report(tmp_path)))
    assert "best validation mean absolute error 12.25 its baseline 33.30" in text
    assert "Loss and mean absolute error" in text
    assert "3 rows were rejected" in text
    assert "key_column" in text
    for absent in ("image", "Sizes and brightness", "Classes", "accuracy"):
        assert absent not in text, absent


def test_a_model_of_several_classes_is_judged_by_its_confidence(tmp_path: Path):
    labels = np.array([0, 1, 2, 2])
    probabilities = np.array([[0.8, 0.1, 0.1], [0.1, 0.7, 0.2], [0.1, 0.3, 0.6], [0.9, 0.05, 0.05]])
    page = reported(tmp_path, ClassPredictions.of_batch(labels, probabilities), ["a", "b", "c"])
    assert "The mean confidence of the model was 75.0%, and 75.0% of its predictions were correct" in text_of(page)
    assert "probability 3 c a 90%" in text_of(page)


def test_many_classes_have_a_list_of_pairs():
    classes = MAX_CLASSES + 1
    labels = np.arange(classes)
    view = evaluation_section.view(
        evaluation_of(
            ClassPredictions.of_batch(labels, np.roll(np.eye(classes), 1, axis=1)), list(map(str, labels)), seed=0
        )
    )
    assert view.matrix is None
    assert view.pairs.rows[0] == ("0", "1", "1", "100%")


def test_a_faultless_model_has_no_mistakes(tmp_path: Path):
    exact = RegressionPredictions.of_batch(NUMBERS.label, NUMBERS.label)
    page = reported(tmp_path, exact, [])
    assert "the predictions are neither too high nor too low" in text_of(page)
    assert "Largest errors" not in page.text
    correct = ClassPredictions.of_batch(LABELS, np.eye(2)[LABELS])
    assert "Misclassified" not in reported(tmp_path / "classes", correct, ["a", "b"]).text


def test_only_the_first_columns_of_a_wrong_row_are_shown(tmp_path: Path):
    row = {f"column {number}": str(number) for number in range(MAX_COLUMNS + 2)}
    page = reported(tmp_path, BINARY, ["a", "b"], [row, row])
    assert f"column {MAX_COLUMNS - 1} 3 a b 96% 0 1 2" in text_of(page)
    assert f"column {MAX_COLUMNS}" not in page.text
    assert f"The first {MAX_COLUMNS} of {MAX_COLUMNS + 2} columns are shown." in page.text


def test_the_values_of_the_most_wrong_rows_are_read_from_the_shards(tmp_path: Path):
    source = tmp_path / "houses.csv"
    lines = [f"h{number},2024-01-{1 + number % 28:02d},{number / 4},{number}" for number in range(200)]
    source.write_text("\n".join(["house,sold,size,price", *lines]))
    settings = {"example_kind": "table", "source_uri": str(source), "key_column": "house", "label_column": "price"}
    folder = Path(build(settings_from({**settings, "workspace": str(tmp_path / "w")}))["dataset"])
    dataset = load(folder)
    count = dataset.splits["validation"].examples
    rows = rows_at(folder, dataset, "validation", range(count))
    labels = np.array([row["price"][0] for row in rows], float)
    # The last row is the most wrong one.
    predictions = RegressionPredictions.of_batch(labels, labels + np.arange(count))
    run = tmp_path / "run"
    describe(run)
    described = {"run_id": "r", "dataset": str(folder), "dataset_version": "v", "settings": settings}
    described |= {"format": RUN_FORMAT, "folder": str(run), "host": {}, "software": {}, "steps_per_epoch": 1}
    (run / "run.json").write_text(json.dumps(described))
    save(run, predictions, evaluation_of(predictions, (), seed=0))
    number = int(labels[-1])
    expected = (
        f"predicted minus true house sold size {count - 1} {four_digits(number)} {four_digits(number + count - 1)} "
        f"{four_digits(count - 1, '+')} h{number} 2024-01-{1 + number % 28:02d} {number / 4:g}"
    )
    assert expected in text_of(Page(report_run(run)))


def test_html_in_classes_and_rows_is_escaped(tmp_path: Path):
    page = reported(tmp_path, BINARY, ["a", EVIL], [{EVIL: "b"}, {EVIL: EVIL}])
    assert (page.count("script"), page.count("img")) == (SCRIPTS, 0)
    assert EVIL in page.text


# --- the comparison of runs -------------------------------------------------------------------------------------------


def row(result: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in result["rows"] if row["name"] == name)


def compared_as_files(tmp_path: Path, a: Answers, b: Answers, names: list[str]) -> dict[str, Any]:
    folders = [rich_run(tmp_path / name, epochs=1, steps=12) for name in "ab"]
    for folder, answers in zip(folders, (a, b), strict=True):
        save(folder, answers, evaluation_of(answers, names, seed=0))
    return compare_runs(folders, tmp_path / "compare.html")


def numbers(noise: float, seed: int) -> RegressionPredictions:
    labels = 1000 * np.random.default_rng(0).normal(size=300)
    return RegressionPredictions.of_batch(labels, labels + noise * np.random.default_rng(seed).normal(size=300))


def classes(noise: float, seed: int) -> ClassPredictions:
    labels = np.random.default_rng(0).integers(2, size=300)
    logits = 3 * labels - 1.5 + np.random.default_rng(seed).normal(0, noise, 300)
    second = 1 / (1 + np.exp(-logits))
    return ClassPredictions.of_batch(labels, np.stack([1 - second, second], axis=1))


def test_the_regression_with_the_lower_error_is_better(tmp_path: Path):
    found = compared_as_files(tmp_path, numbers(400, 1), numbers(200, 2), [])
    error = row(found, "mean absolute error")
    assert error["unit"] == ""
    assert error["low"] < error["difference"] < error["high"] < 0
    assert "B is surely the better model: its mean absolute error is " in found["verdict"]
    assert f"The difference from A is {four_digits(error['difference'], '+')} (" in found["verdict"]
    names = [each["name"] for each in found["rows"]]
    assert names[-3:] == ["mean absolute error", "root mean squared error", "R²"]
    text = text_of(Page(tmp_path / "compare.html"))
    assert f"mean absolute error {error['a']:.1f} {error['b']:.1f} {error['difference']:.1f} " in text
    assert "would differ with other rows" in text


def test_the_best_epoch_of_a_regression_has_the_lowest_error():
    a, b = (pandas.DataFrame({"step": [1, 2], "val_mae": errors}) for errors in ([20.0, 12.3], [15.0, 16.0]))
    [*_, found] = Comparison([replace(run_with(), epochs=epochs) for epochs in (a, b)]).rows
    name = "best validation mean absolute error of an epoch"
    assert (cells(found), found.metric) == ((name, "12.30", "15.00", "2.700", "-"), "mae")


def test_the_first_figure_of_a_comparison_is_the_one_that_scores_the_models(tmp_path: Path):
    """The report of a model of classes begins with the AUC, but the log loss scores the models."""
    assert ClassPredictions.metrics[0] is not ClassPredictions.scored_by
    surer = ClassPredictions.of_batch(LABELS, np.stack([1 - SECOND**2, SECOND**2], axis=1))
    describe(tmp_path)
    run, models = load_recorded_run(tmp_path), (BINARY, surer)
    runs = [
        compared(replace(run, evaluation=evaluation_of(model, ["stays", "leaves"], seed=0)), model) for model in models
    ]
    found = Comparison(runs)
    figures = [each.metric for each in found.rows if each.metric and each.intervals]
    assert figures == ["log_loss", "auc", "accuracy", "calibration_error"]
    assert "log loss" in quality_sentence(found)


def test_figures_on_the_test_split_are_named_in_a_comparison(tmp_path: Path):
    describe(tmp_path)
    run, names = load_recorded_run(tmp_path), ["stays", "leaves"]
    of_test, of_validation = (
        replace(run, evaluation=evaluation_of(BINARY, names, seed=0, split=split)) for split in ("test", "validation")
    )
    both = [each.name for each in Comparison([compared(of_test, BINARY)] * 2).rows]
    assert {"test log loss", "test AUC", "test accuracy"} <= set(both)
    apart = [each.name for each in Comparison([compared(each, None) for each in (of_test, of_validation)]).rows]
    assert {"log loss (A: test, B: validation)", "AUC (A: test, B: validation)"} <= set(apart)


@pytest.mark.long
def test_the_classes_with_the_lower_log_loss_are_better(tmp_path: Path):
    found = compared_as_files(tmp_path, classes(0.5, 1), classes(3.0, 2), ["no", "yes"])
    loss, auc = row(found, "log loss"), row(found, "AUC")
    assert 0 < loss["low"] < loss["high"]
    assert auc["low"] < auc["high"] < 0
    assert "A is surely the better model: its log loss is " in found["verdict"]
    text = text_of(Page(tmp_path / "compare.html"))
    assert f"log loss {loss['a']:#.4g} {loss['b']:#.4g} {loss['difference']:#.4g} " in text
    assert f"AUC {auc['a']:.3g} {auc['b']:.3g} {auc['difference']:.3g} " in text
    assert row(found, "accuracy")["unit"] == "%"


@pytest.mark.long
def test_rows_that_differ_have_no_interval(tmp_path: Path):
    one, other = numbers(400, 1), numbers(200, 2)
    found = compared_as_files(tmp_path, one, replace(other, label=other.label + 1), [])
    assert row(found, "mean absolute error")["low"] is None
    assert "Not compared with B row by row: A was evaluated on other examples" in found["note"]
    assert "is not sure: A cannot be compared with it." in found["verdict"]


def test_models_with_other_numbers_of_classes_share_the_figures_of_both():
    labels = np.array([0, 1, 1, 0, 1, 0])
    few = ClassPredictions.of_batch(labels, np.full((6, 2), 0.5))
    many = ClassPredictions.of_batch(labels, np.full((6, 200), 0.005))
    one, other = run_with(few), run_with(many)
    found = {each.key: difference_of_models(each, other, one, 95) for each in ClassPredictions.metrics}
    assert {key for key, difference in found.items() if difference} == {"log_loss", "accuracy", "calibration_error"}
    assert found["log_loss"].value == pytest.approx(np.log(200) - np.log(2), rel=1e-5)
