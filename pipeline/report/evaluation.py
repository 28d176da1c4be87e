"""How good the model is, made ready for the page: figures with their intervals, confusions, classes, the most wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.monitor.diagnosis import percent
from pipeline.report.figures import Figure, reliability
from pipeline.report.parts import Table, thumbnail, whole

THUMBNAIL = 128  # pixels
MOST_CLASSES = 30  # of a matrix that can still be read, and rows of the table of classes
MOST_PAIRS = 20
STRONGEST_TINT = 55  # percent: ink on more of it could not be read
_FIGURES = {
    "accuracy": "accuracy",
    "top5": "top-5 accuracy: the true class is among the five likeliest",
    "calibration_error": "expected calibration error: how far confidence and accuracy are apart",
}


@dataclass(frozen=True)
class Cell:
    """Examples of a true class that were given a predicted one; ``tint`` is their share of the class, in percent."""

    text: str
    words: str
    right: bool
    tint: float


@dataclass(frozen=True)
class Matrix:
    """A row of cells for each true class; columns are predicted classes, both in the order of ``names``."""

    names: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Wrong:
    """An example as a small picture, and what it was taken for."""

    uri: str
    label: str
    predicted: str
    probability: str
    key: str
    """Its name in the source."""


@dataclass(frozen=True)
class View:
    """What the section shows. Of ``matrix`` and ``pairs``, many classes have the second."""

    sentence: str
    figures: Table
    matrix: Matrix | None
    pairs: Table | None
    classes: Table
    reliability: Figure
    most_wrong: Sequence[Wrong]


def view(evaluation: Mapping[str, Any], images: Sequence[tuple[str, bytes]]) -> View | None:
    """The section of `evaluation.json`, None where a run has none.

    ``images`` are those of its `most_wrong`: names in the source and files.
    """
    if not evaluation:
        return None
    few = len(evaluation["classes"]) <= MOST_CLASSES
    return View(
        sentence=sentence(evaluation),
        figures=figure_table(evaluation["figures"]),
        matrix=matrix(evaluation) if few else None,
        pairs=None if few else confused_pairs(evaluation),
        classes=class_table(evaluation["classes"]),
        reliability=reliability(evaluation),
        most_wrong=most_wrong(evaluation, images),
    )


def sentence(evaluation: Mapping[str, Any]) -> str:
    """On what the figures rest."""
    made = evaluation["intervals"]
    return (
        f"The best model on the {evaluation['examples']:,} validation examples. An interval holds {made['percent']}% "
        f"of what {made['resamples']:,} samples of as many examples, drawn from them with replacement, give."
    )


def figure_table(found: Mapping[str, Mapping[str, float]]) -> Table:
    """Each figure with its interval."""
    rows = [
        (words, f"{found[name]['value']:.1%}", f"{found[name]['low']:.1%} to {found[name]['high']:.1%}")
        for name, words in _FIGURES.items()
        if name in found
    ]
    return Table(("figure", "value", "interval"), rows)


def matrix(evaluation: Mapping[str, Any]) -> Matrix:
    """All pairs of true and predicted class."""
    names = [row["name"] for row in evaluation["classes"]]
    counts = {(label, predicted): count for label, predicted, count in evaluation["confusions"]}
    ids = range(len(names))
    totals = [row["count"] or 1 for row in evaluation["classes"]]
    rows = [[_cell(names, i, j, counts.get((i, j), 0), totals[i]) for j in ids] for i in ids]
    return Matrix(names, rows)


def _cell(names: Sequence[str], label: int, predicted: int, count: int, total: int) -> Cell:
    right = label == predicted
    words = f"{names[label]}, {'recognised' if right else f'taken for {names[predicted]}'}: {count:,} of {total:,}"
    return Cell(f"{count:,}" if count else "", words, right, STRONGEST_TINT * count / total)


def confused_pairs(evaluation: Mapping[str, Any]) -> Table:
    """The pairs of classes that were confused most often."""
    classes = evaluation["classes"]
    wrong = [(count, label, predicted) for label, predicted, count in evaluation["confusions"] if label != predicted]
    shown = sorted(wrong, key=lambda row: (-row[0], *row[1:]))[:MOST_PAIRS]
    rows = [
        (classes[label]["name"], classes[predicted]["name"], f"{count:,}", percent(count / classes[label]["count"]))
        for count, label, predicted in shown
    ]
    return Table(("true class", "taken for", "examples", "of the true class"), rows, _left_out(wrong, shown, "pairs"))


def class_table(classes: Sequence[Mapping[str, Any]]) -> Table:
    """Precision and recall of each class with examples, that of the lowest recall first."""
    known = sorted((row for row in classes if row["count"]), key=lambda row: row["recall"])
    rows = [
        (row["name"], f"{row['count']:,}", _share(row["precision"]), _share(row["recall"]))
        for row in known[:MOST_CLASSES]
    ]
    left_out = _left_out(known, rows, "classes, none of a lower recall,")
    return Table(("class", "examples", "precision", "recall"), rows, left_out)


def _share(value: float | None) -> str:
    return "never predicted" if value is None else f"{value:.1%}"


def _left_out(found: Sequence[Any], shown: Sequence[Any], what: str) -> str:
    hidden = len(found) - len(shown)
    return f"{hidden:,} more {what} are in evaluation.json." if hidden else ""


def most_wrong(evaluation: Mapping[str, Any], images: Sequence[tuple[str, bytes]]) -> list[Wrong]:
    """The examples that the model was surest of a wrong class of; one that cannot be decoded is left out."""
    names = [row["name"] for row in evaluation["classes"]]
    return [
        Wrong(uri, names[row["label"]], names[row["predicted"]], percent(row["probability"]), key)
        for row, (key, encoded) in zip(evaluation["most_wrong"], images, strict=False)
        if (uri := thumbnail(encoded, THUMBNAIL, whole))
    ]
