"""How good the model is, made ready for the page: figures with their intervals, confusions, classes, the most wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.evaluation.metrics import evaluated_class, figures_in, over_baseline
from pipeline.evaluation.one_label import Predictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.evaluation.scales import four_digits
from pipeline.monitor.diagnosis import percent
from pipeline.report.components import Table, thumbnail, whole
from pipeline.report.drawing import Figure
from pipeline.report.regression_figure import regression_figure
from pipeline.report.reliability import reliability, reliability_of_labels, reliability_of_second_class

THUMBNAIL = 128
"""Side of a thumbnail, in pixels."""
MAX_CLASSES = 30
"""Maximum number of classes of a matrix that can still be read, and of rows of the table of classes."""
MAX_PAIRS = 20
"""Limit for the table of confused pairs, which replaces a matrix that is too large."""
MAX_COLUMNS = 8
"""Limit for the columns of the most wrong rows of a table."""
MAX_TINT = 55
"""Strongest tint of a cell, in percent. Text on more of it could not be read."""


@dataclass(frozen=True)
class Cell:
    """The examples of a true class that the model took for a predicted class."""

    text: str
    description: str
    is_correct: bool
    tint: float
    """Strength of the tint, by the share of the true class, in percent."""


Matrix = Sequence[tuple[str, Sequence[Cell]]]
"""The confusion matrix: each true class with its cells, one for each predicted class, in the same order."""


@dataclass(frozen=True)
class WrongExample:
    """An image that the model was wrong about."""

    uri: str
    """The image as a data URI."""
    key: str
    label: str
    """Its label or labels."""
    prediction: str
    description: str
    """Label and prediction in one text, for readers who do not see the image."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What the section shows. If there are many classes, it has `pairs` instead of a `matrix`."""

    sentence: str
    figures: Table
    matrix: Matrix | None = None
    pairs: Table | None = None
    classes: Table | None = None
    classes_title: str = ""
    figure: Figure
    """The reliability of the probabilities, or the predictions of a regression."""
    confident_mistakes: Sequence[WrongExample] = ()
    """The most wrong images."""
    mistakes: Table | None = None
    """The most wrong rows of a table."""
    mistakes_title: str = "Most confident mistakes"
    mistakes_note: str = ""


def view(
    evaluation: Mapping[str, Any], images: Sequence[tuple[str, bytes]], wrong_rows: Sequence[Mapping[str, str]] = ()
) -> View | None:
    """Return the section of the content of `evaluation.json`; None if it is empty.

    `images` are the keys and files of the images that `most_wrong` lists. For tables, `wrong_rows` are the values of
    the rows that it lists, by column.
    """
    if not evaluation:
        return None
    evaluated = evaluated_class(evaluation)
    if evaluated.noun == "row":
        return (_of_regression if evaluated is RegressionPredictions else _of_classes)(evaluation, wrong_rows)
    return (_of_one_label if evaluated is Predictions else _of_several)(evaluation, images)


def _of_one_label(evaluation: Mapping[str, Any], images: Sequence[tuple[str, bytes]]) -> View:
    return replace(
        _of_one_class(evaluation, reliability(evaluation)),
        confident_mistakes=confident_mistakes(evaluation, images),
        mistakes_note="The images with the highest confidence in a wrong class. Below each are its label, the "
        "predicted class, and its name in the source. Some of these labels may be wrong.",
    )


def _of_one_class(evaluation: Mapping[str, Any], figure: Figure) -> View:
    """Return the section of a model that predicts one of several classes, without its mistakes."""
    few = len(evaluation["classes"]) <= MAX_CLASSES
    return View(
        sentence=sentence(evaluation),
        figures=figure_table(evaluation),
        matrix=matrix(evaluation) if few else None,
        pairs=None if few else confused_pairs(evaluation),
        classes=class_table(evaluation["classes"], "class", ("precision", "recall"), order="recall"),
        classes_title="Precision and recall by class, lowest recall first",
        figure=figure,
    )


def _of_several(evaluation: Mapping[str, Any], images: Sequence[tuple[str, bytes]]) -> View:
    shares = ("average_precision", "precision", "recall")
    return View(
        sentence=sentence(evaluation),
        figures=figure_table(evaluation),
        classes=class_table(evaluation["classes"], "label", shares, order="average_precision"),
        classes_title="Average precision of each label, lowest first. Precision and recall count predictions above 50%",
        figure=reliability_of_labels(evaluation),
        confident_mistakes=confident_mistakes(evaluation, images),
        mistakes_note="The images with the most confident wrong predictions. Below each are its labels, the label "
        "that was most wrong, and its name in the source. Some of these labels may be wrong.",
    )


def _of_classes(evaluation: Mapping[str, Any], wrong_rows: Sequence[Mapping[str, str]]) -> View:
    is_binary = len(evaluation["classes"]) == 2
    return replace(
        _of_one_class(evaluation, (reliability_of_second_class if is_binary else reliability)(evaluation)),
        mistakes=wrong_classes(evaluation, wrong_rows),
        mistakes_note="The rows with the highest confidence in a wrong class. Rows are counted through the "
        f"{evaluation['split']} shards, from 0. Some of these labels may be wrong.",
    )


def _of_regression(evaluation: Mapping[str, Any], wrong_rows: Sequence[Mapping[str, str]]) -> View:
    return View(
        sentence=sentence(evaluation),
        figures=figure_table(evaluation),
        figure=regression_figure(evaluation),
        mistakes=largest_errors(evaluation, wrong_rows),
        mistakes_title="Largest errors",
        mistakes_note="The rows with the largest difference between predicted and true value. Rows are counted through "
        f"the {evaluation['split']} shards, from 0. Some of these labels may be wrong.",
    )


def sentence(evaluation: Mapping[str, Any]) -> str:
    """Say whether the model beats its baseline, on how many examples the figures rest, and what an interval is."""
    of_groups = f" in {evaluation['groups']:,} groups" if evaluation["groups"] else ""
    examples = f"{evaluation['examples']:,} {evaluation['split']} examples{of_groups}"
    return (
        f"{over_baseline(evaluation)} These are the figures of the best model on the {examples}. In about "
        f"{evaluation['intervals']['percent']}% of such evaluations, the interval contains the figure that the model "
        "would have on all examples of this kind. A baseline is the figure of a model that sees no input."
    )


def figure_table(evaluation: Mapping[str, Any]) -> Table:
    """Return a table of the figures with their intervals and baselines."""
    rows = [
        (figure.metric.meaning, figure.value_text, figure.interval_text, figure.baseline_text)
        for figure in figures_in(evaluation)
    ]
    return Table(("figure", "value", "interval", "baseline"), rows)


def matrix(evaluation: Mapping[str, Any]) -> Matrix:
    """Return the confusion matrix of all classes."""
    classes = evaluation["classes"]
    counts = {(label, predicted): count for label, predicted, count in evaluation["confusions"]}
    return [
        (row["name"], [_cell(row, each["name"], counts.get((i, j), 0), i == j) for j, each in enumerate(classes)])
        for i, row in enumerate(classes)
    ]


def _cell(row: Mapping[str, Any], predicted: str, count: int, is_correct: bool) -> Cell:
    total = row["count"] or 1  # A class without examples has only zeros in its row.
    outcome = "recognized" if is_correct else f"predicted as {predicted}"
    description = f"{row['name']}, {outcome}: {count:,} of {total:,}"
    return Cell(f"{count:,}" if count else "", description, is_correct, tint=MAX_TINT * count / total)


def confused_pairs(evaluation: Mapping[str, Any]) -> Table:
    """Return the pairs of classes that the model confused most often."""
    classes = evaluation["classes"]
    wrong = [(count, label, predicted) for label, predicted, count in evaluation["confusions"] if label != predicted]
    shown = sorted(wrong, key=lambda row: (-row[0], *row[1:]))[:MAX_PAIRS]
    rows = [
        (classes[label]["name"], classes[predicted]["name"], f"{count:,}", percent(count / classes[label]["count"]))
        for count, label, predicted in shown
    ]
    return Table(
        ("true class", "predicted class", "examples", "of the true class"), rows, _left_out(wrong, shown, "pairs")
    )


def class_table(classes: Sequence[Mapping[str, Any]], noun: str, shares: Sequence[str], order: str) -> Table:
    """Return shares of each class or label (the `noun`) that has examples, the lowest share `order` first."""
    known = sorted((row for row in classes if row["count"]), key=lambda row: row[order])
    rows = [
        (row["name"], f"{row['count']:,}", *(_share(row[name], row[f"{name}_interval"]) for name in shares))
        for row in known[:MAX_CLASSES]
    ]
    titles = {name: name.replace("_", " ") for name in shares}
    what = "classes" if noun == "class" else "labels"
    left_out = _left_out(known, rows, f"{what}, all with the same or a higher {titles[order]},")
    return Table((noun, "examples", *titles.values()), rows, left_out)


def _share(value: float | None, ends: Sequence[float] | None) -> str:
    if value is None or ends is None:
        return "never predicted"
    low, high = ends
    return f"{value:.1%} ({low:.1%} to {high:.1%})"


def _left_out(rows: Sequence[Any], shown: Sequence[Any], what: str) -> str:
    hidden = len(rows) - len(shown)
    return f"{hidden:,} more {what} are in evaluation.json." if hidden else ""


def wrong_classes(evaluation: Mapping[str, Any], wrong_rows: Sequence[Mapping[str, str]]) -> Table | None:
    """Return the rows whose wrong class the model was surest of; None if there is none."""
    names = [row["name"] for row in evaluation["classes"]]
    cells = [
        (names[row["label"]], names[row["predicted"]], percent(row["probability"])) for row in evaluation["most_wrong"]
    ]
    return _row_table(evaluation, wrong_rows, ("true class", "predicted class", "probability"), cells)


def largest_errors(evaluation: Mapping[str, Any], wrong_rows: Sequence[Mapping[str, str]]) -> Table | None:
    """Return the rows with the largest errors; None if there is none."""
    pairs = [(row["label"], row["predicted"]) for row in evaluation["most_wrong"]]
    cells = [(four_digits(label), four_digits(value), four_digits(value - label, "+")) for label, value in pairs]
    return _row_table(evaluation, wrong_rows, ("true value", "predicted value", "predicted minus true"), cells)


def _row_table(
    evaluation: Mapping[str, Any],
    wrong_rows: Sequence[Mapping[str, str]],
    head: tuple[str, ...],
    cells: Sequence[tuple[str, ...]],
) -> Table | None:
    """Return the table of the most wrong rows, with their first columns if the rows are known."""
    # A report that is drawn without the dataset has no values.
    values = [list(row.values()) for row in wrong_rows] or [[] for _ in cells]
    columns = [*wrong_rows[0]] if wrong_rows else []
    positions = [f"{row['position']:,}" for row in evaluation["most_wrong"]]
    rows = [
        (position, *judged, *of_row[:MAX_COLUMNS])
        for position, judged, of_row in zip(positions, cells, values, strict=True)
    ]
    note = f"The first {MAX_COLUMNS} of {len(columns)} columns are shown." if len(columns) > MAX_COLUMNS else ""
    return Table(("row", *head, *columns[:MAX_COLUMNS]), rows, note) if rows else None


def confident_mistakes(evaluation: Mapping[str, Any], images: Sequence[tuple[str, bytes]]) -> list[WrongExample]:
    """Return the examples whose wrong answer the model was surest of, without images that cannot be decoded."""
    names = [row["name"] for row in evaluation["classes"]]
    return [
        WrongExample(uri, key, *(_words_of_labels if "labels" in row else _words_of_class)(row, names))
        # A report that is drawn without the dataset has no images.
        for row, (key, encoded) in zip(evaluation["most_wrong"], images, strict=False)
        if (uri := thumbnail(encoded, THUMBNAIL, whole))
    ]


def _words_of_class(row: Mapping[str, Any], names: Sequence[str]) -> tuple[str, str, str]:
    """Return label, prediction and description of a wrong example."""
    label, predicted = names[row["label"]], names[row["predicted"]]
    return label, f"{percent(row['probability'])} {predicted}", f"{label}, predicted as {predicted}"


def _words_of_labels(row: Mapping[str, Any], names: Sequence[str]) -> tuple[str, str, str]:
    """Return labels, prediction and description of a wrong example that has several labels."""
    labels = ", ".join(names[label] for label in row["labels"])
    prediction = f"{percent(row['probability'])} {names[row['label']]}"
    return labels, prediction, f"{labels}; the model predicted {prediction}"
