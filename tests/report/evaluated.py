"""Small evaluations of runs, for the tests of pages."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.evaluation.metrics import evaluation_of, save
from pipeline.evaluation.one_label import Predictions

ROWS = [(0, 0, 0.9), (0, 0, 0.8), (0, 1, 0.7), (1, 1, 0.6), (1, 0, 0.95)]
"""For each example: the label, the predicted class and its probability."""


def predictions(rows: list[tuple[int, int, float]]) -> Predictions:
    label, predicted, probability = map(np.array, zip(*rows, strict=True))
    return Predictions(label, predicted, probability, probability, label == predicted)


def evaluated(folder: Path, names: list[str], rows: list[tuple[int, int, float]] = ROWS) -> dict[str, Any]:
    """Write predictions and evaluation, and return the content of evaluation.json."""
    folder.mkdir(parents=True, exist_ok=True)
    content = evaluation_of(predictions(rows), names, seed=0)
    save(folder, predictions(rows), content)
    return content
