"""Metrics of a model and their intervals, from the predictions of the model. No TensorFlow.

predictions.npz    one row for each example, in the order of the shards, to compare two models pair by pair
evaluation.json    figures with their intervals, classes, confusions, reliability, the most wrong examples

Each task has a module with its predictions and metrics: one_label.py and multilabel.py for images, table_classes.py
and regression.py for tables. A metric is declared there, and nowhere else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pipeline import storage
from pipeline.config.example_kinds import TABLE
from pipeline.dataset.manifest import Dataset
from pipeline.evaluation.answers import Answers, Metric
from pipeline.evaluation.blocks import Blocks
from pipeline.evaluation.estimates import INTERVAL_PERCENT, Estimate
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


def joined(parts: Iterable[A]) -> A:
    """Return the rows of all parts, one part after another."""
    all_parts = list(parts)
    first, *_ = all_parts
    return type(first)(**{name: np.concatenate([part.columns[name] for part in all_parts]) for name in first.columns})


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure of a model beside its baseline. Pages, logs and trackers all show these."""

    metric: Metric
    estimate: Estimate
    baseline: float | None
    """The figure of a model without any input; of a calibration error, the one of a calibrated model."""
    baseline_name: str
    """What that model answers."""

    @property
    def value_text(self) -> str:
        """The value as text."""
        return self.metric.text(self.estimate.value)

    @property
    def interval_text(self) -> str:
        """The ends of the interval as text."""
        _, low, high = self.estimate
        is_known = isfinite(low) and isfinite(high)
        return f"{self.metric.text(low)} to {self.metric.text(high)}" if is_known else "unknown"

    @property
    def baseline_text(self) -> str:
        """The baseline and its name; "-" if it is not defined."""
        return "-" if self.baseline is None else f"{self.metric.text(self.baseline)} ({self.baseline_name})"

    @property
    def text(self) -> str:
        """Title, value, interval and baseline in one text."""
        return f"{self.metric.title} {self.value_text} ({self.interval_text}), baseline {self.baseline_text}"


def estimates(predictions: Answers, classes: int, blocks: Blocks) -> dict[Metric, Estimate]:
    """Return each figure that says something of this number of classes, with its interval."""
    metrics = [metric for metric in predictions.metrics if classes >= metric.min_classes]
    found = ((metric, metric.estimator.estimate(predictions, blocks)) for metric in metrics)
    return {metric: metric.rounded(estimate) for metric, estimate in found if estimate}


def evaluation_of(predictions: Answers, names: Sequence[str], seed: int, split: str = "validation") -> dict[str, Any]:
    """Return the content of `evaluation.json`.

    `names` are those of the classes, by id. `split` is the split of the examples: validation or test.
    """
    blocks = predictions.blocks(seed)
    figures = {
        metric.key: _to_json(estimate) | {"baseline": _baseline(metric, predictions)}
        for metric, estimate in estimates(predictions, len(names), blocks).items()
    }
    gain = predictions.difference(predictions.baseline(), seed)
    return {
        "split": split,
        "examples": len(predictions.label),
        "groups": blocks.units if blocks.are_grouped else None,
        "figures": figures,
        "over_baseline": {"metric": predictions.scored_by.key, **_to_json(gain)},
        "intervals": {"percent": INTERVAL_PERCENT, "blocks": blocks.count, "seed": seed},
        **predictions.details(names, blocks),
    }


def _baseline(metric: Metric, predictions: Answers) -> float | None:
    value = metric.estimator.baseline(predictions)
    return None if value is None else metric.rounded(Estimate(value, value, value)).value


def _to_json(estimate: Estimate) -> dict[str, float | None]:
    # JSON has no infinity.
    return {name: value if isfinite(value) else None for name, value in estimate._asdict().items()}


def _from_json(content: Mapping[str, Any]) -> Estimate:
    value, low, high = (content[name] for name in Estimate._fields)
    return Estimate(nan if value is None else value, -inf if low is None else low, inf if high is None else high)


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


def figures_in(evaluation: Mapping[str, Any]) -> list[Figure]:
    """Return the figures in the content of an `evaluation.json`, in the order of the report; none if it is empty."""
    figures, evaluated = evaluation.get("figures", {}), evaluated_class(evaluation)
    return [
        Figure(metric, _from_json(content), content["baseline"], metric.baseline or evaluated.baseline_name)
        for metric in evaluated.metrics
        if (content := figures.get(metric.key))
    ]


def headline_in(evaluation: Mapping[str, Any]) -> Figure | None:
    """Return the figure that says most to people; None if the content of `evaluation.json` is empty."""
    headline = evaluated_class(evaluation).headline
    return next((figure for figure in figures_in(evaluation) if figure.metric is headline), None)


def over_baseline(evaluation: Mapping[str, Any]) -> str:
    """Say in a sentence whether the model is better than its baseline, by the metric that judges models."""
    evaluated, gain = evaluated_class(evaluation), _from_json(evaluation["over_baseline"])
    metric = evaluated.scored_by
    is_better = gain.high < 0 if metric.lower_is_better else gain.low > 0
    return (
        f"The model is {'' if is_better else 'not surely '}better than its baseline, {evaluated.baseline_name}: the "
        f"difference in {metric.title} is {metric.difference_text(gain)}."
    )
