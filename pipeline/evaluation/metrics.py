"""Metrics of a model and their intervals, from the predictions of the model. No TensorFlow.

predictions.npz    one row for each example, in the order of the shards, to compare two models pair by pair
evaluation.json    figures with their intervals, classes, confusions, reliability, the most wrong examples

`Predictions` is for images with one label. For images with several labels, see multilabel.py.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np

from pipeline import storage
from pipeline.evaluation.estimates import (
    INTERVAL_PERCENT,
    MAX_MISTAKES,
    RESAMPLES,
    Array,
    Estimate,
    Statistic,
    bins_of,
    bootstrapped,
    interval,
    reliability_of,
    rows,
    shares,
)
from pipeline.evaluation.multilabel import MultiLabelPredictions
from pipeline.records.format import RecordFormat
from pipeline.storage import Place

EVALUATION, PREDICTIONS = "evaluation.json", "predictions.npz"
TOP = 5
"""A label counts as found by `top5` if it is among this many classes of the highest probability."""
_IN_RESULT = {
    "mean_average_precision": "val_mean_average_precision",
    "micro_f1": "val_micro_f1",
    "top5": "val_top5",
    "calibration_error": "val_calibration_error",
}
"""Keys of `metrics` in `result.json`, by figure. Accuracy is missing, because the last validation gives `val_accuracy`.

A new figure belongs here, into `figures` and `statistic` of its class, and with a text into `FIGURES` of
`pipeline/report/evaluation_section.py` and of `pipeline/report/compare.py`.
"""


class Predictions(NamedTuple):
    """Predictions with one row for each example. The probabilities of all classes might not fit into memory."""

    label: Array
    """int32 of (n,), from 0. `predicted` has the same type."""
    predicted: Array
    probability: Array
    """float32 of (n,), of the predicted class."""
    label_probability: Array
    in_top5: Array

    @classmethod
    def of_batch(cls, labels: Array, probabilities: Array) -> Self:
        """Return the predictions of a batch: labels, (n,), and probabilities, (n, classes)."""
        predicted = probabilities.argmax(axis=1)
        return cls(
            label=labels.astype(np.int32),
            predicted=predicted.astype(np.int32),
            probability=_of(probabilities, predicted).astype(np.float32),
            label_probability=_of(probabilities, labels).astype(np.float32),
            in_top5=_rank(probabilities, labels) < TOP,
        )

    @staticmethod
    def of_ids(ids: Sequence[tuple[int, ...]], classes: int) -> Array:
        """Return the labels of a batch, (n,), by the ids that each example has."""
        return np.array([first for first, *_ in ids])

    @property
    def correct(self) -> Array:
        """Whether the predicted class is the true one."""
        correct: Array = self.predicted == self.label
        return correct

    @property
    def scored_by(self) -> str:
        """The name of the score."""
        return "accuracy"

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the values of `statistic`, in its order."""
        return ("accuracy", "top5", "calibration_error")

    @property
    def score(self) -> float:
        """The accuracy."""
        return float(self.correct.mean())

    @property
    def resamples(self) -> int:
        """Number of resamples for an interval."""
        return RESAMPLES

    def statistic(self) -> Statistic:
        """Return the figures of the examples, each taken as often as its weight says."""
        correct, in_top5 = self.correct.astype(float), self.in_top5.astype(float)
        # The error is the sum over bins of |correct - confidence| of the bin's examples together, over all examples.
        surplus, bins = correct - self.probability, bins_of(self.probability)

        def statistic(weights: Array) -> Array:
            gap = np.abs(np.bincount(bins, weights * surplus)).sum()
            return np.array([weights @ correct, weights @ in_top5, gap]) / len(bins)

        return statistic

    def difference(self, champion: Self, seed: int) -> Estimate:
        """Return the accuracy less that of another model on the same examples, drawn in pairs.

        Each example counts 1, 0 or -1. So a resample only draws how many examples there are of each, which takes the
        same time for any number of examples.
        """
        differences = self.correct.astype(int) - champion.correct.astype(int)
        values, counts = np.unique(differences, return_counts=True)
        n = len(differences)
        resampled = np.random.default_rng(seed).multinomial(n, counts / n, size=RESAMPLES) @ values / n
        return Estimate(*(round(float(value), 6) for value in (differences.mean(), *interval(resampled))))

    def details(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the content of `evaluation.json` beside the figures."""
        return {
            "classes": per_class(self, names),
            "confusions": confusions(self, len(names)),
            "reliability": reliability_of(self.probability, self.correct),
            "most_wrong": confident_mistakes(self),
        }


class Answers(Protocol):
    """The predictions of a model, a named tuple of columns with a row for each example, and how they are judged."""

    @property
    def scored_by(self) -> str:
        """The name of the score."""

    @property
    def figures(self) -> Sequence[str]:
        """Names of the values of `statistic`, in its order."""

    @property
    def label(self) -> Array:
        """The true labels, a row for each example."""

    @property
    def score(self) -> float:
        """The figure by which two models are compared, 0 to 1."""

    @property
    def resamples(self) -> int:
        """Number of resamples for an interval."""

    @classmethod
    def of_batch(cls, labels: Array, probabilities: Array) -> Self:
        """Return the predictions of a batch: labels as in training, and probabilities, (n, classes)."""

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


def predictions_class(form: RecordFormat) -> type[Answers]:
    """Return the class of the predictions of a model for a dataset, by its records."""
    return MultiLabelPredictions if form.multi_label else Predictions


# --- predictions ------------------------------------------------------------------------------------------------------


def _of(probabilities: Array, classes: Array) -> Array:
    picked: Array = probabilities[np.arange(len(classes)), classes]
    return picked


def _rank(probabilities: Array, labels: Array) -> Array:
    """Return how many classes come before the true one. Of equal probabilities, the lower id comes first, as in argmax.

    Otherwise, a model that gives all classes the same probability would have each of them in its top five.
    """
    of_label = _of(probabilities, labels)[:, np.newaxis]
    lower = np.arange(probabilities.shape[1]) < labels[:, np.newaxis]
    rank: Array = ((probabilities > of_label) | ((probabilities == of_label) & lower)).sum(axis=1)
    return rank


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
    return {name: estimate for name, estimate in named if name != "top5" or classes > TOP}


def difference(challenger: Answers, champion: Answers, seed: int) -> Estimate:
    """Return the score of one model less that of another on the same examples, with its bootstrap interval.

    Examples are drawn in pairs, so that examples that are hard for both models do not widen the interval.

    Raises:
        ValueError: If the examples differ.
    """
    if not np.array_equal(challenger.label, champion.label):
        raise ValueError("the two models were evaluated on different examples")
    return challenger.difference(champion, seed)


def per_class(predictions: Predictions, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return for each class, by id: name, examples, precision (None if never predicted), recall (None if empty)."""
    classes = len(names)
    count, predicted = (np.bincount(ids, minlength=classes) for ids in (predictions.label, predictions.predicted))
    correct = np.bincount(predictions.label[predictions.correct], minlength=classes)
    precision, recall = shares(correct, predicted), shares(correct, count)
    return rows({"name": names, "count": count.tolist(), "precision": precision, "recall": recall})


def confusions(predictions: Predictions, classes: int) -> list[list[int]]:
    """Return [true class, predicted class, examples] of each pair with examples, ordered."""
    # int64, because the product overflows int32 from 46,341 classes on.
    pairs, counts = np.unique(predictions.label.astype(np.int64) * classes + predictions.predicted, return_counts=True)
    table: list[list[int]] = np.stack([pairs // classes, pairs % classes, counts], axis=1).tolist()
    return table


def confident_mistakes(predictions: Predictions, limit: int = MAX_MISTAKES) -> list[dict[str, Any]]:
    """Return the examples that were surest of a wrong class, by their position in the shards."""
    wrong = np.flatnonzero(~predictions.correct)
    surest = wrong[np.argsort(-predictions.probability[wrong], kind="stable")[:limit]]
    label, predicted = (ids[surest].tolist() for ids in (predictions.label, predictions.predicted))
    probability = predictions.probability[surest].astype(float).round(6).tolist()
    return rows({"position": surest.tolist(), "label": label, "predicted": predicted, "probability": probability})


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
    """
    with (folder / PREDICTIONS).open("rb") as file, np.load(file) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    return Predictions(**columns) if "predicted" in columns else MultiLabelPredictions(**columns)


def metrics_of(folder: Path) -> dict[str, float]:
    """Return the figures of the evaluation that `result.json` repeats, by their names there.

    Raises:
        FileNotFoundError: If there was no evaluation.
    """
    figures = storage.read_json(folder / EVALUATION)["figures"]
    return {name: figures[figure]["value"] for figure, name in _IN_RESULT.items() if figure in figures}
