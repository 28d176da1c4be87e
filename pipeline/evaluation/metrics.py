"""Metrics of a model and their intervals, from the predictions of the model. No TensorFlow.

predictions.npz    one row for each example, in the order of the shards, to compare two models pair by pair
evaluation.json    figures with their intervals, classes, confusions, reliability, the most wrong examples

Each task has a module with its predictions and metrics: one_label.py and multilabel.py for images, table_classes.py
and regression.py for tables. A metric is declared there, and nowhere else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pipeline import storage
from pipeline.config.example_kinds import TABLE
from pipeline.dataset.manifest import Dataset
from pipeline.evaluation.answers import Answers, Metric
from pipeline.evaluation.estimates import INTERVAL_PERCENT, Estimate, bootstrapped
from pipeline.evaluation.multilabel import MultiLabelPredictions
from pipeline.evaluation.one_label import Predictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.evaluation.table_classes import ClassPredictions
from pipeline.storage import Place

EVALUATION, PREDICTIONS = "evaluation.json", "predictions.npz"
_CLASSES: tuple[type[Answers], ...] = (Predictions, MultiLabelPredictions, ClassPredictions, RegressionPredictions)
METRICS = {metric.key: metric for each in _CLASSES for metric in each.metrics}
"""All metrics by their keys. What a key means differs between tasks; its title and its scale do not."""
A = TypeVar("A", bound=Answers)


def predictions_class(dataset: Dataset) -> type[Answers]:
    """Return the class of the predictions of the models of a dataset."""
    if dataset.kind == TABLE:
        return RegressionPredictions if dataset.table["task"] == "regression" else ClassPredictions
    return MultiLabelPredictions if dataset.records.multi_label else Predictions


def evaluated_class(evaluation: Mapping[str, Any]) -> type[Answers]:
    """Return the class of the predictions that the content of an `evaluation.json` is about."""
    if task := evaluation.get("task"):  # Only the evaluation of a table names its task.
        return RegressionPredictions if task == "regression" else ClassPredictions
    return Predictions if "confusions" in evaluation else MultiLabelPredictions


# --- predictions ------------------------------------------------------------------------------------------------------


def joined(parts: Iterable[A]) -> A:
    """Return the rows of all parts, one part after another."""
    all_parts = list(parts)
    first, *_ = all_parts
    return type(first)(**{name: np.concatenate([part.columns[name] for part in all_parts]) for name in first.columns})


# --- figures ----------------------------------------------------------------------------------------------------------


def estimates(predictions: Answers, classes: int, seed: int) -> dict[str, Estimate]:
    """Return each figure that says something of this number of classes, with its bootstrap interval, by its key."""
    measures = predictions.measures(metric for metric in predictions.metrics if classes >= metric.min_classes)
    values = bootstrapped(list(measures.values()), len(predictions.label), predictions.resamples, seed)
    return {metric.key: metric.rounded(estimate) for metric, estimate in zip(measures, values, strict=True)}


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


def evaluation_of(predictions: Answers, names: Sequence[str], seed: int, split: str = "validation") -> dict[str, Any]:
    """Return the content of `evaluation.json`.

    `names` are those of the classes, by id. `split` is the split of the examples: validation or test.
    """
    figures = estimates(predictions, len(names), seed)
    return {
        "split": split,
        "examples": len(predictions.label),
        "figures": {key: estimate._asdict() for key, estimate in figures.items()},
        "intervals": {"percent": INTERVAL_PERCENT, "resamples": predictions.resamples, "seed": seed},
        **predictions.details(names),
    }


def save(folder: Path, predictions: Answers, evaluation: dict[str, Any]) -> None:
    """Write `predictions.npz`, then `evaluation.json`, each whole."""
    save_predictions(folder, predictions)
    storage.write_json(folder / EVALUATION, evaluation, synced=True)


def save_predictions(folder: Path, predictions: Answers) -> None:
    """Write `predictions.npz`, whole."""
    with storage.write_whole(folder / PREDICTIONS, synced=True) as file:
        np.savez_compressed(file, **predictions.columns)


def load_predictions(folder: Place) -> Answers:
    """Return the predictions in `predictions.npz`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it has other columns than any task.
    """
    with (folder / PREDICTIONS).open("rb") as file, np.load(file) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    for each in _CLASSES:
        if set(columns) == {field.name for field in fields(each)}:
            return each(**columns)
    raise ValueError(
        f"{folder / PREDICTIONS} has the columns {', '.join(columns)}, which no task has: evaluate the model again"
    )


def figures_in(evaluation: Mapping[str, Any]) -> dict[Metric, Estimate]:
    """Return the figures in the content of an `evaluation.json`, in the order of the report; none if it is empty."""
    figures = evaluation.get("figures", {})
    known = (metric for metric in evaluated_class(evaluation).metrics if metric.key in figures)
    return {metric: Estimate(**figures[metric.key]) for metric in known}


def metrics_of(folder: Path) -> dict[str, float]:
    """Return the figures of the evaluation in a folder, by their names in `result.json`.

    Raises:
        FileNotFoundError: If there was no evaluation.
    """
    evaluation = storage.read_json(folder / EVALUATION)
    figures = figures_in(evaluation).items()
    return {metric.key_on(evaluation["split"]): estimate.value for metric, estimate in figures}
