"""The table of docs/explanation/promotion.md: one case for each row, with both rules."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.settings import settings_from
from pipeline.evaluation.one_label import Predictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.runs.promotion import promote_by_hand, promote_if_better
from tests.runs.complete import trained

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "promotion.md"
DECISIONS = {"promoted": "promoted", "not promoted": "kept", "a person must decide": "asked"}
RETRAIN = {"promoted": "succeeds", "not promoted": "succeeds", "a person must decide": "succeeds, notifies"}
EXAMPLES, CLASSES = 200, ("a", "b")
Row = tuple[str, str, str]


def rows() -> dict[str, Row]:
    """Return the other cells of each row of the table, by its situation."""
    table = PAGE.read_text("utf-8").partition("(promotion-table)=")[2].strip().partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]
    return {situation: (default, other, retrain) for situation, default, other, retrain in cells[2:]}


def accuracy(points: float) -> Predictions:
    """Return predictions that are right for this share (%) of the examples. The baseline has 50%."""
    label = np.arange(EXAMPLES, dtype=np.int32) % 2
    is_right = np.arange(EXAMPLES) < EXAMPLES * points / 100
    sure = np.ones(EXAMPLES, np.float32)
    return Predictions(label, np.where(is_right, label, 1 - label), sure, sure, is_right)


def error(size: float) -> RegressionPredictions:
    labels = np.arange(float(EXAMPLES))
    return RegressionPredictions.of_batch(labels, labels + size)


class Workspace:
    """A workspace in which a case has put champions, and then trains a model."""

    def __init__(self, folder: Path, promote: str) -> None:
        self._folder = folder
        self._settings = settings_from({"promote": promote})
        self._runs = 0

    def champion(self, answers: Any, labels: tuple[str, ...] = CLASSES, **values: Any) -> Path:
        """Promote a model by hand."""
        run = self._trained(answers, labels, **values)
        promote_by_hand(run, output=2)
        return run

    def promoted(self, answers: Any, **values: Any) -> None:
        """Promote a model without a comparison, but not by hand."""
        always = self._settings.model_copy(update={"promote": "always"})
        promote_if_better(self._trained(answers, CLASSES, **values), always, output=2)

    def judged(self, answers: Any, labels: tuple[str, ...] = CLASSES, **values: Any) -> dict[str, Any]:
        """Train a model, and return the decision on it."""
        return promote_if_better(self._trained(answers, labels, **values), self._settings, output=2)

    def _trained(self, answers: Any, labels: tuple[str, ...], columns: Any = None, **values: Any) -> Path:
        self._runs += 1
        return trained(self._folder, f"run-{self._runs}", answers, labels, columns, **values)


Judged = Mapping[str, Any]
Case = Callable[[Workspace], Judged]
CASES: dict[str, Case] = {}
"""The cases by the situation of their rows."""


def case(situation: str) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES[situation] = function
        return function

    return add


@case("a first model that surely beats the baseline")
def _(workspace: Workspace) -> Judged:
    return workspace.judged(accuracy(75))


@case("a first model that may be better than the baseline")
def _(workspace: Workspace) -> Judged:
    return workspace.judged(accuracy(52))


@case("a first model below the baseline")
def _(workspace: Workspace) -> Judged:
    return workspace.judged(accuracy(40))


@case("better than the champion")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75))
    return workspace.judged(accuracy(85))


@case("equal to the champion")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75))
    return workspace.judged(accuracy(75))


@case("worse than the champion, which may be chance")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75))
    return workspace.judged(accuracy(74.5))


@case("surely worse than the champion")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75))
    return workspace.judged(accuracy(60))


@case("not worse than the champion, but worse than the best champion so far")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(85))
    workspace.promoted(accuracy(75))
    return workspace.judged(accuracy(80))


@case("not worse than the champion, but below the baseline")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(40))
    return workspace.judged(accuracy(45))


@case("with a test split: better than the champion on its images")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75), split="test")
    judged = workspace.judged(accuracy(85), split="test")
    assert "on the same 200 test images" in judged["why"]
    return judged


@case("with a test split: worse than the champion on its images, which may be chance")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75), split="test")
    judged = workspace.judged(accuracy(74.5), split="test")
    assert "on the same 200 test images" in judged["why"]
    return judged


@case("without a test split: better than the champion on the validation images")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75))
    judged = workspace.judged(accuracy(85))
    assert "on the same 200 validation images" in judged["why"]
    return judged


@case("a new column")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75), columns=["int a"])
    return workspace.judged(accuracy(85), columns=["int a", "int b"])


@case("a column of the champion is missing, or has another type")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75), columns=["int a", "int b"])
    first = workspace.judged(accuracy(85), columns=["int a"])
    second = workspace.judged(accuracy(85), columns=["int a", "float b"])
    assert first["decision"] == second["decision"]
    return second


@case("ids have other labels than in the champion")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75), labels=("b", "a"))
    return workspace.judged(accuracy(85))


@case("one model predicts classes, the other one numbers")
def _(workspace: Workspace) -> Judged:
    workspace.champion(error(1), labels=())
    return workspace.judged(accuracy(85))


@case("a score is no number")
def _(workspace: Workspace) -> Judged:
    workspace.champion(error(1), labels=())
    return workspace.judged(error(float("nan")), labels=())


@case("the champion's files were removed, and the model surely beats the baseline")
def _(workspace: Workspace) -> Judged:
    (workspace.champion(accuracy(85)) / "export" / "about.json").unlink()
    return workspace.judged(accuracy(75))


@case("trained with `simulated_step_ms`")
def _(workspace: Workspace) -> Judged:
    workspace.champion(accuracy(75))
    return workspace.judged(accuracy(85), simulated_step_ms=1.0)


@pytest.mark.parametrize("rule", ["if_not_worse", "unless_surely_worse"])
@pytest.mark.parametrize("situation", CASES)
def test_a_row_of_the_table_says_what_happens(situation: str, rule: str, tmp_path: Path):
    default, other, _ = rows()[situation]
    judged = CASES[situation](Workspace(tmp_path, rule))
    assert judged["decision"] == DECISIONS[default if rule == "if_not_worse" else other], judged["why"]
    assert judged["promoted"] == (judged["decision"] == "promoted")
    by_hand = re.search(r"run `python -m pipeline promote (\S+)`", judged["why"])
    assert bool(by_hand) == (judged["decision"] == "asked")


def test_each_row_of_the_table_has_a_case_and_says_what_retrain_does():
    assert [*rows()] == [*CASES]
    assert {(default, retrain) for default, _, retrain in rows().values()} == {*RETRAIN.items()}
