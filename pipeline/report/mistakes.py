"""The wrong answers of a model: a CSV file of them, and those that a page shows behind a filter by class.

The filter is a list box and a style sheet, so it works without a script.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from pipeline.evaluation.answers import Answers
from pipeline.evaluation.estimates import MAX_MISTAKES, Array
from pipeline.evaluation.scales import four_digits
from pipeline.monitor.diagnosis import percent

FILE = "mistakes.csv"
"""The file beside the report that lists the wrong answers."""
MAX_SHOWN = 200
"""Limit for the wrong answers on a page."""
MAX_LISTED = 100_000
"""Limit for the wrong answers in the file, because the key of each of them is read from the dataset."""
MAX_COLUMNS = 8
"""Limit for the columns of a table whose values are shown."""
THUMBNAIL = 128
"""Side of a thumbnail, in pixels."""
MOST_WRONG, ALL = "most-wrong", "all"
"""Values of the options for all classes."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_CHUNK = 1000
"""This many rows of the CSV file are in memory at once."""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong answer: a picture, or a row of a table."""

    marks: Sequence[str]
    """The values of the options that show it."""
    uri: str = ""
    """The picture as a data URI."""
    key: str = ""
    label: str = ""
    """Its label or labels."""
    answer: str = ""
    description: str = ""
    """Label and answer in one text, for readers who do not see the picture."""
    cells: Sequence[str] = ()
    """The cells of a row."""


@dataclass(frozen=True, kw_only=True)
class Mistakes:
    """What the section shows."""

    title: str
    number: int
    """How many there are."""
    sentence: str
    shown: Sequence[Mistake]
    options: Mapping[str, Sequence[tuple[str, str]]]
    """(value, text) of the options of the list box, by the title of their group. The first group has no title."""
    listed: str
    """Which wrong answers the file lists, in words."""
    head: Sequence[str] = ()
    """Titles of the cells of a row."""
    note: str = ""


def shown_positions(answers: Answers) -> Array:
    """Return the positions of the wrong answers that a page shows, the most wrong one first.

    If there are too many, the most wrong ones of all come first. Then the classes take turns, so that the most wrong
    answers of each class are shown.
    """
    wrong = answers.wrong()
    classes = next(iter(answers.classes_of_mistakes(wrong).values()), None)
    if classes is None:
        return wrong[:MAX_SHOWN]
    by_class = np.argsort(classes, kind="stable")
    in_order, turns = classes[by_class], np.empty(len(wrong), int)
    turns[by_class] = np.arange(len(wrong)) - np.searchsorted(in_order, in_order)
    turns[:MAX_MISTAKES] = -1
    chosen: Array = wrong[np.sort(np.argsort(turns, kind="stable")[:MAX_SHOWN])]
    return chosen


def listed_positions(answers: Answers) -> Array:
    """Return the positions of the wrong answers that the file lists, ascending: the most wrong ones if too many."""
    return np.sort(answers.wrong()[:MAX_LISTED])


def view(
    evaluation: Mapping[str, Any],
    answers: Answers,
    pictures: Sequence[tuple[str, str]],
    values: Sequence[Mapping[str, str]],
) -> Mistakes | None:
    """Return the section; None if all answers are right.

    Args:
        evaluation: The content of `evaluation.json`.
        answers: The answers that it is about.
        pictures: Key and data URI of each image of `shown_positions`. The URI is empty if the image cannot be read. A
            report that is drawn without the dataset has none.
        values: For a table, the values of each row of `shown_positions`, by column; empty if the row cannot be read.
    """
    wrong = answers.wrong()
    if not len(wrong):
        return None
    positions, names = shown_positions(answers), names_in(evaluation)
    marks, rows = _marks(answers, positions), answers.mistakes_at(positions)
    columns = list(next(filter(None, values), {}))
    if answers.noun == "image":
        of_images = zip(marks, rows, pictures, strict=False)
        shown = [_picture(mark, row, picture, names) for mark, row, picture in of_images if picture[1]]
    else:
        cells = [[row.get(name, "-") for name in columns[:MAX_COLUMNS]] for row in values] or [[]] * len(rows)
        of_rows = zip(marks, rows, cells, strict=True)
        shown = [Mistake(marks=mark, cells=[*_judged(row, names), *each]) for mark, row, each in of_rows]
    return Mistakes(
        title=f"Misclassified {answers.noun}s" if names else "Largest errors",
        number=len(wrong),
        sentence=_sentence(evaluation, answers.noun, len(wrong), len(shown)),
        shown=shown,
        options=_options(answers, wrong, shown, names),
        head=[*(_OF_CLASSES if names else _OF_NUMBERS), *columns[:MAX_COLUMNS]] if answers.noun == "row" else (),
        listed=f"the {MAX_LISTED:,} most wrong of them" if len(wrong) > MAX_LISTED else "all of them",
        note=f"The first {MAX_COLUMNS} of {len(columns)} columns are shown." if len(columns) > MAX_COLUMNS else "",
    )


_OF_CLASSES = ("row", "true class", "predicted class", "probability")
_OF_NUMBERS = ("row", "true value", "predicted value", "predicted minus true")


def names_in(evaluation: Mapping[str, Any]) -> list[str]:
    """Return the names of the classes in the content of `evaluation.json`, by id; none of a regression."""
    return [row["name"] for row in evaluation.get("classes", ())]


def _marks(answers: Answers, positions: Array) -> list[list[str]]:
    """Return the values of the options that show each of these answers."""
    of_classes = answers.classes_of_mistakes(positions).values()
    marks = [[ALL, MOST_WRONG] if number < MAX_MISTAKES else [ALL] for number in range(len(positions))]
    for group, classes in enumerate(of_classes):
        for mark, each in zip(marks, classes.tolist(), strict=True):
            mark.append(_value(group, each))
    return marks


def _value(group: int, class_id: int) -> str:
    return f"class-{group}-{class_id}"


def _picture(mark: Sequence[str], row: Mapping[str, Any], picture: tuple[str, str], names: Sequence[str]) -> Mistake:
    """Return a wrong answer about an image."""
    key, uri = picture
    if "labels" in row:
        label = ", ".join(names[each] for each in row["labels"])
        answer = f"{percent(row['probability'])} {names[row['label']]}"
        description = f"{label}; the model predicted {answer}"
    else:
        label, predicted = names[row["label"]], names[row["predicted"]]
        answer, description = f"{percent(row['probability'])} {predicted}", f"{label}, predicted as {predicted}"
    return Mistake(marks=mark, uri=uri, key=key, label=label, answer=answer, description=description)


def _judged(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return position, label and answer of a row of a table as text."""
    label, predicted, position = row["label"], row["predicted"], f"{row['position']:,}"
    if names:
        return [position, names[label], names[predicted], percent(row["probability"])]
    return [position, *map(four_digits, (label, predicted)), four_digits(predicted - label, "+")]


def _sentence(evaluation: Mapping[str, Any], noun: str, wrong: int, shown: int) -> str:
    nouns = f"{evaluation['split']} {noun}s"
    of_all = f"{wrong:,} of the {evaluation['examples']:,} {nouns}"
    if noun == "row":
        counted = f"Rows are counted through the {evaluation['split']} shards, from 0."
    else:
        counted = "Below each image are its label, the prediction with its probability, and its name in the source."
    if "classes" not in evaluation:
        return f"The rows with the largest difference between predicted and true value. {counted}"
    some = ""
    if 0 < shown < wrong:
        most = f": the {MAX_MISTAKES} most wrong, and the most confident mistakes of each class"
        some = f" The page shows {shown:,} of them{most if shown > MAX_MISTAKES else ''}."
    return f"{of_all} have a wrong prediction.{some} {counted if shown else ''} Some of these labels may be wrong."


def _options(
    answers: Answers, wrong: Array, shown: Sequence[Mistake], names: Sequence[str]
) -> dict[str, list[tuple[str, str]]]:
    """Return the options of the list box; none if there is too little to choose from."""
    if len(shown) < 2:
        return {}
    options = {"": [(ALL, f"all {len(shown):,}")]}
    if len(shown) > MAX_MISTAKES:
        options[""].insert(0, (MOST_WRONG, f"the {MAX_MISTAKES} most wrong"))
    counts = Counter(mark for each in shown for mark in each.marks)
    for group, (title, classes) in enumerate(answers.classes_of_mistakes(wrong).items()):
        totals = Counter(classes.tolist())
        of_group = [
            (value, f"{names[each]} ({_of(counts[value], total)})")
            for each, total in sorted(totals.items(), key=lambda item: names[item[0]])
            if counts[value := _value(group, each)]
        ]
        options[title] = of_group
    return options


def _of(shown: int, total: int) -> str:
    return f"{total:,}" if shown == total else f"{shown:,} of {total:,}"


def write_csv(file: IO[bytes], answers: Answers, names: Sequence[str], keys: Iterable[str]) -> None:
    """Write the wrong answers at `listed_positions`. `keys` are those of the examples, in the same order."""
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    positions = listed_positions(answers)
    chunks = (positions[first : first + _CHUNK] for first in range(0, len(positions), _CHUNK))
    rows = (row for chunk in chunks for row in answers.mistakes_at(chunk))
    # Also a file without mistakes has its columns. The first example has the same ones, whether it is a mistake or not.
    [example] = answers.mistakes_at(np.zeros(1, int))
    writer = csv.DictWriter(text, [*_cells(example, "", names)])
    writer.writeheader()
    writer.writerows(_cells(row, key, names) for row, key in zip(rows, keys, strict=True))
    text.flush()
    text.detach()


def _cells(row: Mapping[str, Any], key: str, names: Sequence[str]) -> dict[str, Any]:
    cells = {"position": row["position"], "key": key, **_named(row, names)}
    # A spreadsheet would run such a text as a formula. Names and keys come from outside.
    return {
        name: f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
        for name, cell in cells.items()
    }


def _named(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a row of `most_wrong` with the names of its classes."""
    if not names:
        return dict(row)
    of_classes = {name: names[row[name]] for name in ("label", "predicted") if name in row}
    if "labels" in row:
        of_classes = {
            "labels": "; ".join(names[each] for each in row["labels"]), "most_wrong_label": of_classes["label"]
        }  # fmt: skip
    return {**of_classes, "probability": row["probability"]}
