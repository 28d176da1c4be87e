"""The wrong answers of a model: which ones are shown, behind which filter, and the file that lists all."""

import csv
import io

import numpy as np
import pytest

from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import evaluation_of
from pipeline.evaluation.multilabel import MultiLabelPredictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.report import mistakes
from pipeline.report.mistakes import (
    ALL,
    MAX_SHOWN,
    MOST_WRONG,
    Mistakes,
    listed_positions,
    shown_positions,
    view,
    write_csv,
)
from tests.report.evaluated import ROWS, predictions
from tests.report.test_report import EVIL, picture

LABELS = MultiLabelPredictions.of_batch(
    np.array([[1, 0], [1, 1], [0, 1]]), np.array([[0.9, 0.2], [0.3, 0.8], [0.6, 0.1]])
)
NUMBERS = RegressionPredictions.of_batch(np.array([1.0, 2.0, 3.0]), np.array([1.5, 2.0, 13.0]))


def seen(answers: Answers, names: list[str]) -> Mistakes:
    """Return the section with a picture for each wrong answer."""
    pictures = [(f"{position}.jpg", picture("red")) for position in shown_positions(answers)]
    found = view(evaluation_of(answers, names, seed=0), answers, pictures, ())
    assert found is not None
    return found


def listed(answers: Answers, names: list[str]) -> list[list[str]]:
    file = io.BytesIO()
    keys = [f"{position}.jpg" for position in listed_positions(answers)]
    write_csv(file, answers, names, keys)
    return list(csv.reader(io.StringIO(file.getvalue().decode())))


def test_few_wrong_answers_are_all_shown_the_surest_first():
    found = seen(predictions(ROWS), ["circle", "square"])
    assert [(each.key, each.label, each.answer) for each in found.shown] == [
        ("4.jpg", "square", "95% circle"), ("2.jpg", "circle", "70% square"),
    ]  # fmt: skip
    assert found.sentence.startswith("2 of the 5 validation images have a wrong prediction. Below each image")
    assert found.options == {
        "": [(ALL, "all 2")],
        "True class": [("class-0-0", "circle (1)"), ("class-0-1", "square (1)")],
        "Predicted class": [("class-1-0", "circle (1)"), ("class-1-1", "square (1)")],
    }
    assert found.shown[0].marks == [ALL, MOST_WRONG, "class-0-1", "class-1-0"]


def test_each_class_has_its_turn_if_there_are_too_many_wrong_answers():
    # The model is surer of its mistakes about class 0, of which there are enough to fill the page.
    rows = [(0, 1, 0.9)] * (2 * MAX_SHOWN) + [(1, 0, 0.6)] * 30 + [(2, 0, 0.5)] * 3
    found = seen(predictions(rows), ["a", "b", "c"])
    assert len(found.shown) == MAX_SHOWN
    assert found.options[""] == [(MOST_WRONG, "the 12 most wrong"), (ALL, "all 200")]
    assert [text for _, text in found.options["True class"]] == ["a (167 of 400)", "b (30)", "c (3)"]
    assert found.sentence.startswith(
        "433 of the 433 validation images have a wrong prediction. The page shows 200 of them: the 12 most wrong, "
        "and the most confident mistakes of each class."
    )
    assert [each.label for each in found.shown[:12]] == ["a"] * 12
    assert [each.label for each in found.shown[-3:]] == ["c"] * 3


def test_the_most_wrong_answers_of_all_are_shown_even_if_there_are_very_many_classes():
    # The second mistake of class 0 is surer than those of the other classes, which alone would fill the page.
    rows = [(0, 1, 0.99), (0, 1, 0.98), *((label, 0, 0.9) for label in range(1, 2 * MAX_SHOWN))]
    found = seen(predictions(rows), [str(label) for label in range(2 * MAX_SHOWN)])
    assert [each.label for each in found.shown[:2]] == ["0", "0"]
    assert len(found.shown) == MAX_SHOWN


def test_images_that_cannot_be_read_are_not_counted():
    answers = predictions(ROWS)
    found = view(evaluation_of(answers, ["a", "b"], seed=0), answers, (), ())
    assert "The page shows" not in found.sentence


def test_images_that_cannot_be_read_are_left_out():
    answers = predictions(ROWS)
    found = view(evaluation_of(answers, ["a", "b"], seed=0), answers, [("x", ""), ("y", picture("red"))], ())
    assert [each.key for each in found.shown] == ["y"]
    assert found.options == {}  # one example needs no filter


def test_labels_are_filtered_by_the_most_wrong_one():
    found = seen(LABELS, ["rose", "leaf"])
    assert [(each.label, each.answer) for each in found.shown] == [("leaf", "10% leaf"), ("rose, leaf", "30% rose")]
    assert list(found.options) == ["", "Most wrong label"]


def test_a_regression_has_its_largest_errors_and_no_filter():
    found = view(evaluation_of(NUMBERS, [], seed=0), NUMBERS, (), [{"house": "c"}, {"house": "a"}])
    assert found.title == "Largest errors"
    assert [each.cells for each in found.shown] == [
        ["2", "3.000", "13.00", "+10.00", "c"], ["0", "1.000", "1.500", "+0.5000", "a"],
    ]  # fmt: skip
    assert found.options == {"": [(ALL, "all 2")]}


def test_a_model_without_mistakes_has_no_section():
    right = predictions([(0, 0, 0.9)])
    assert view(evaluation_of(right, ["a"], seed=0), right, (), ()) is None


def test_the_file_lists_all_wrong_answers_in_the_order_of_the_shards(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mistakes, "_CHUNK", 2)  # a patch, because a test needs no thousands of rows
    assert listed(predictions(2 * ROWS), ["circle", EVIL]) == [
        ["position", "key", "label", "predicted", "probability"],
        ["2", "2.jpg", "circle", EVIL, "0.7"],
        ["4", "4.jpg", EVIL, "circle", "0.95"],
        ["7", "7.jpg", "circle", EVIL, "0.7"],
        ["9", "9.jpg", EVIL, "circle", "0.95"],
    ]
    assert listed(LABELS, ["rose", "leaf"]) == [
        ["position", "key", "labels", "most_wrong_label", "probability"],
        ["1", "1.jpg", "rose; leaf", "rose", "0.3"],
        ["2", "2.jpg", "leaf", "leaf", "0.1"],
    ]
    assert listed(NUMBERS, []) == [
        ["position", "key", "label", "predicted"], ["0", "0.jpg", "1.0", "1.5"], ["2", "2.jpg", "3.0", "13.0"],
    ]  # fmt: skip
    assert listed(predictions([(0, 0, 0.9)]), ["a"]) == [["position", "key", "label", "predicted", "probability"]]


def test_the_file_lists_the_most_wrong_answers_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mistakes, "MAX_LISTED", 1)  # a patch, because a test needs no hundreds of thousands of rows
    assert listed(predictions(ROWS), ["a", "b"])[1:] == [["4", "4.jpg", "b", "a", "0.95"]]
    assert listed(NUMBERS, [])[1:] == [["2", "2.jpg", "3.0", "13.0"]]
    assert seen(predictions(ROWS), ["a", "b"]).listed == "the 1 most wrong of them"


def test_no_text_of_the_file_is_a_formula():
    file = io.BytesIO()
    write_csv(file, predictions([(0, 1, 0.9)]), ["=1+1", "@x"], ["-2.jpg"])
    assert file.getvalue().decode().splitlines()[1] == "0,'-2.jpg,'=1+1,'@x,0.9"
    file = io.BytesIO()
    below = RegressionPredictions.of_batch(np.array([-1.0]), np.array([-2.0]))
    write_csv(file, below, [], ["a"])
    assert file.getvalue().decode().splitlines()[1] == "0,a,-1.0,-2.0"
