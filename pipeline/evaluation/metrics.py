"""Metrics of a model and their intervals, from the predictions of the model. No TensorFlow.

predictions.npz    one row for each example, in the order of the shards, to compare two models pair by pair
evaluation.json    figures with their intervals, classes, confusions, reliability, the most wrong examples

Each task has a module with its predictions: one_label.py and multilabel.py for images, table_classes.py and
regression.py for tables.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar, cast

import numpy as np

from pipeline import storage
from pipeline.dataset.manifest import Dataset
from pipeline.evaluation.estimates import INTERVAL_PERCENT, Array, Estimate, Statistic, bootstrapped
from pipeline.evaluation.multilabel import MultiLabelPredictions
from pipeline.evaluation.one_label import TOP, Predictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.evaluation.scales import rounded
from pipeline.evaluation.table_classes import ClassPredictions
from pipeline.storage import Place

EVALUATION, PREDICTIONS = "evaluation.json", "predictions.npz"
EvaluatedTask = Literal["one_label", "several_labels", "classes", "regression"]
"""What a model predicts: one label or several labels of an image, or the class or the number of the row of a table."""

_IN_RESULT = {
    "mean_average_precision": "val_mean_average_precision",
    "micro_f1": "val_micro_f1",
    "top5": "val_top5",
    "calibration_error": "val_calibration_error",
    "auc": "val_auc",
    "log_loss": "val_log_loss",
    "rmse": "val_rmse",
    "r2": "val_r2",
}
"""Keys of `metrics` in `result.json`, by figure. Accuracy is missing, because the last validation gives `val_accuracy`.
So is the mean absolute error, because it gives `val_mae`.

A new figure belongs here, into `figures` and `statistic` of its class, into `SCALES` of `scales.py`, and with a text
into `FIGURES` of `pipeline/report/evaluation_section.py` and of `pipeline/report/compare.py`.
"""


class Answers(Protocol):
    """The predictions of a model, a named tuple of columns with a row for each example, and how they are judged."""

    @property
    def scored_by(self) -> str:
        """The name of the score."""

    @property
    def score_figure(self) -> str:
        """The figure that is the score. `LOWER_IS_BETTER` of scales.py says which of two scores is better."""

    @property
    def noun(self) -> str:
        """What an example is: an image, or a row."""

    @property
    def figures(self) -> Sequence[str]:
        """Names of the values of `statistic`, in its order."""

    @property
    def label(self) -> Array:
        """The true labels, a row for each example."""

    @property
    def score(self) -> float:
        """The figure by which two models are compared."""

    @property
    def resamples(self) -> int:
        """Number of resamples for an interval."""

    @classmethod
    def of_batch(cls, labels: Array, probabilities: Array) -> Self:
        """Return the predictions of a batch: labels as in training, and probabilities, (n, classes).

        In a regression, labels and predictions are in the unit of the label, and there is one prediction, (n, 1).
        """

    @staticmethod
    def of_ids(ids: Sequence[tuple[int, ...]], classes: int) -> Array:
        """Return the labels of a batch, as training has them, by the ids that each example has."""

    def statistic(self) -> Statistic:
        """Return the figures of the examples, each taken as often as its weight says."""

    def difference(self, champion: Any, seed: int) -> Estimate:
        """Return the score less that of another model on the same examples, with its bootstrap interval."""

    def details(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the content of `evaluation.json` beside the figures."""

    def _asdict(self) -> dict[str, Array]: ...


A = TypeVar("A", bound=Answers)


_PREDICTIONS: dict[EvaluatedTask, type[Answers]] = {
    "one_label": Predictions,
    "several_labels": MultiLabelPredictions,
    "classes": ClassPredictions,
    "regression": RegressionPredictions,
}


def predictions_class(task: EvaluatedTask) -> type[Answers]:
    """Return the class of the predictions of a model, by its task."""
    return _PREDICTIONS[task]


def evaluated_task(dataset: Dataset) -> EvaluatedTask:
    """Return the task of the models of a dataset."""
    if dataset.table:
        return "regression" if dataset.table["task"] == "regression" else "classes"
    return "several_labels" if dataset.records.multi_label else "one_label"


# --- predictions ------------------------------------------------------------------------------------------------------


def joined(parts: Iterable[A]) -> A:
    """Return the rows of all parts, one part after another."""
    all_parts = list(parts)
    kind: Any = type(all_parts[0])
    whole: A = kind(*map(np.concatenate, zip(*cast("Any", all_parts), strict=True)))
    return whole


# --- figures ----------------------------------------------------------------------------------------------------------


def estimates(predictions: Answers, classes: int, seed: int) -> dict[str, Estimate]:
    """Return each figure with its bootstrap interval; top5 only if there are more than five classes."""
    values = bootstrapped(predictions.statistic(), len(predictions.label), predictions.resamples, seed)
    named = zip(predictions.figures, values, strict=True)
    return {name: rounded(name, estimate) for name, estimate in named if name != "top5" or classes > TOP}


def difference(challenger: Answers, champion: Answers, seed: int) -> Estimate:
    """Return the score of one model less that of another on the same examples, with its bootstrap interval.

    Examples are drawn in pairs, so that examples that are hard for both models do not widen the interval.

    Raises:
        ValueError: If the examples differ.
    """
    if not np.array_equal(challenger.label, champion.label):
        raise ValueError("the two models were evaluated on different examples")
    return challenger.difference(champion, seed)


# --- files ------------------------------------------------------------------------------------------------------------


def evaluation_of(predictions: Answers, names: Sequence[str], seed: int) -> dict[str, Any]:
    """Return the content of `evaluation.json`; `names` are those of the classes, by id."""
    figures = estimates(predictions, len(names), seed)
    return {
        "examples": len(predictions.label),
        "figures": {name: estimate._asdict() for name, estimate in figures.items()},
        "intervals": {"percent": INTERVAL_PERCENT, "resamples": predictions.resamples, "seed": seed},
        **predictions.details(names),
    }


def save(folder: Path, predictions: Answers, evaluation: dict[str, Any]) -> None:
    """Write `predictions.npz`, then `evaluation.json`, each whole."""
    save_predictions(folder, predictions)
    with storage.write_whole(folder / EVALUATION, synced=True) as file:
        file.write(json.dumps(evaluation).encode())


def save_predictions(folder: Path, predictions: Answers) -> None:
    """Write `predictions.npz`, whole."""
    with storage.write_whole(folder / PREDICTIONS, synced=True) as file:
        np.savez_compressed(file, **cast("dict[str, Any]", predictions._asdict()))


def load_predictions(folder: Place) -> Answers:
    """Return the predictions in `predictions.npz`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it has other columns than any task.
    """
    with (folder / PREDICTIONS).open("rb") as file, np.load(file) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    kinds: Any = _PREDICTIONS.values()
    for kind in kinds:
        if set(columns) == set(kind._fields):
            answers: Answers = kind(**columns)
            return answers
    raise ValueError(
        f"{folder / PREDICTIONS} has the columns {', '.join(columns)}, which no task has: evaluate the model again"
    )


def metrics_of(folder: Path) -> dict[str, float]:
    """Return the figures of the evaluation that `result.json` repeats, by their names there.

    Raises:
        FileNotFoundError: If there was no evaluation.
    """
    figures = storage.read_json(folder / EVALUATION)["figures"]
    return {name: figures[figure]["value"] for figure, name in _IN_RESULT.items() if figure in figures}
