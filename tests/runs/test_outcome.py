"""The lines with which a command ends that has trained a model."""

from typing import Any

import pytest

from pipeline.commands.parser import COMMANDS
from pipeline.runs.outcome import outcome_lines

RESULT: dict[str, Any] = {
    "dataset": "/d",
    "version": "abc",
    "examples": {"train": 100, "validation": 38},
    "rejected": 8,
    "run": "/runs/r/t",
    "split": "validation",
    "metrics": {"best_epoch": 8},
    "epochs": 10,
    "headline": "accuracy 95.8%, baseline 20.9%",
    "model": "/runs/r/t/model.keras",
    "comet": "/runs/r/t/comet",
    "verdict": "Compute-bound",
    "examples_per_s": 4485.4,
    "promotion": "promoted: the first model",
    "report": "/runs/r/t/report.html",
}
LINES = [
    "Dataset:       /d",
    "Card:          file:///d/card.html",
    "Rejected:      8 of 146 examples, see /d/rejected.jsonl",
    "Model:         /runs/r/t/model.keras",
    "Comet:         /runs/r/t/comet (not sent: docs/how-to/comet.md explains how to upload it)",
    "Report:        file:///runs/r/t/report.html",
    "Validation:    accuracy 95.8%, baseline 20.9%; best epoch: 8 of 10",
    "Verdict:       Compute-bound",
    "Speed:         4,485 examples per second",
    "Promotion:     promoted: the first model",
]


@pytest.mark.parametrize("name", ["run", "train"])
def test_the_command_line_ends_with_the_results_of_a_run(name: str) -> None:
    [command] = [each for each in COMMANDS if each.name == name]
    assert command.printer(RESULT).splitlines() == LINES


@pytest.mark.parametrize(
    ("result", "lines"),
    [
        ({}, []),
        ({"dataset": "gs://b/d", "rejected": 0, "examples": {"train": 9}}, ["Dataset:       gs://b/d",
         "Card:          gs://b/d/card.html"]),
        ({"headline": "accuracy 95.8%", "metrics": {}, "split": "test"}, ["Test:          accuracy 95.8%"]),
        ({"comet": "https://comet/e", "report": "", "examples_per_s": None}, ["Comet:         https://comet/e"]),
    ],
)  # fmt: skip
def test_results_that_are_missing_have_no_line(result: dict[str, Any], lines: list[str]) -> None:
    assert outcome_lines(result) == lines
