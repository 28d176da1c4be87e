"""How good the model is, made ready for the page: figures with their intervals, confusions, classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.evaluation.metrics import evaluated_class, figures_in, over_baseline
from pipeline.evaluation.multilabel import MultiLabelPredictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.evaluation.table_classes import ClassPredictions
from pipeline.monitor.diagnosis import percent
from pipeline.report.components import Table
from pipeline.report.drawing import Figure
from pipeline.report.regression_figure import regression_figure
from pipeline.report.reliability import reliability, reliability_of_labels, reliability_of_second_class

UNFOLDED_CLASSES = 8
"""This many rows of the table of classes are shown. The others are folded away below them."""
MAX_CLASSES = 30
"""Maximum number of classes of a matrix that can still be read, and of rows of the table of classes."""
MAX_PAIRS = 20
"""Limit for the table of confused pairs, which replaces a matrix that is too large."""
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


@dataclass(frozen=True, kw_only=True)
class View:
    """What the section shows. If there are many classes, it has `pairs` instead of a `matrix`."""

    sentence: str
    figures: Table
    matrix: Matrix | None = None
    pairs: Table | None = None
    classes: Table | None = None
    more_classes: Table | None = None
    """The classes that are folded away."""
    classes_title: str = ""
    figure: Figure
    """The reliability of the probabilities, or the predictions of a regression."""


def view(evaluation: Mapping[str, Any]) -> View | None:
    """Return the section of the content of `evaluation.json`; None if it is empty."""
    if not evaluation:
        return None
    evaluated = evaluated_class(evaluation)
    if evaluated is RegressionPredictions:
        return _of_regression(evaluation)
    if evaluated is MultiLabelPredictions:
        return _of_several(evaluation)
    is_binary_table = evaluated is ClassPredictions and len(evaluation["classes"]) == 2
    return _of_one_class(evaluation, (reliability_of_second_class if is_binary_table else reliability)(evaluation))


def _of_one_class(evaluation: Mapping[str, Any], figure: Figure) -> View:
    """Return the section of a model that predicts one of several classes, without its mistakes."""
    few = len(evaluation["classes"]) <= MAX_CLASSES
    classes, more = folded(class_table(evaluation["classes"], "class", ("precision", "recall"), order="recall"))
    return View(
        sentence=sentence(evaluation),
        figures=figure_table(evaluation),
        matrix=matrix(evaluation) if few else None,
        pairs=None if few else confused_pairs(evaluation),
        classes=classes,
        more_classes=more,
        classes_title="Precision and recall by class, lowest recall first",
        figure=figure,
    )


def _of_several(evaluation: Mapping[str, Any]) -> View:
    shares = ("average_precision", "precision", "recall")
    classes, more = folded(class_table(evaluation["classes"], "label", shares, order="average_precision"))
    return View(
        sentence=sentence(evaluation),
        figures=figure_table(evaluation),
        classes=classes,
        more_classes=more,
        classes_title="Average precision of each label, lowest first. Precision and recall count predictions above 50%",
        figure=reliability_of_labels(evaluation),
    )


def _of_regression(evaluation: Mapping[str, Any]) -> View:
    return View(sentence=sentence(evaluation), figures=figure_table(evaluation), figure=regression_figure(evaluation))


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


def folded(classes: Table) -> tuple[Table, Table | None]:
    """Return the first rows of the table of classes and, if there are more, the others."""
    if len(classes.rows) <= UNFOLDED_CLASSES:
        return classes, None
    first, others = classes.rows[:UNFOLDED_CLASSES], classes.rows[UNFOLDED_CLASSES:]
    return replace(classes, rows=first, note=""), replace(classes, rows=others)


def _share(value: float | None, ends: Sequence[float] | None) -> str:
    if value is None or ends is None:
        return "never predicted"
    low, high = ends
    return f"{value:.1%} ({low:.1%} to {high:.1%})"


def _left_out(rows: Sequence[Any], shown: Sequence[Any], what: str) -> str:
    hidden = len(rows) - len(shown)
    return f"{hidden:,} more {what} are in evaluation.json." if hidden else ""
