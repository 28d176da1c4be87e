"""Metrics of a model for images with one label. pipeline/evaluation/metrics.py has the rest of the evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from typing_extensions import override

from pipeline.evaluation.answers import Answers, Metric
from pipeline.evaluation.blocks import Blocks
from pipeline.evaluation.calibration import CalibrationError, Judged, reliability_of
from pipeline.evaluation.estimates import Array, mean_of, pair_counts, rows
from pipeline.evaluation.estimators import Share, class_shares

TOP = 5
"""A label counts as found by `top5` if it is among this many classes of the highest probability."""
ACCURACY = Metric(
    key="accuracy",
    title="accuracy",
    meaning="accuracy",
    scale="share",
    estimator=Share(lambda of: mean_of(of.correct.astype(float))),
)
CALIBRATION_ERROR = Metric(
    key="calibration_error",
    title="expected calibration error",
    meaning="expected calibration error: mean difference between confidence and accuracy, without what chance adds",
    scale="share",
    estimator=CalibrationError(),
    lower_is_better=True,
    baseline="a calibrated model",
)


@dataclass(frozen=True, eq=False)
class Predictions(Answers):
    """Predictions with one row for each example. The probabilities of all classes might not fit into memory."""

    metrics: ClassVar[tuple[Metric, ...]] = (
        ACCURACY,
        Metric(
            key="top5",
            title="top-5 accuracy",
            meaning="top-5 accuracy: the true class is among the five likeliest",
            scale="share",
            estimator=Share(lambda of: mean_of(of.in_top5.astype(float))),
            min_classes=TOP + 1,
        ),
        CALIBRATION_ERROR,
    )
    scored_by = ACCURACY
    headline = ACCURACY
    baseline_name = "always the most frequent class"
    noun = "image"
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

    @property
    def correct(self) -> Array:
        """Whether the predicted class is the true one."""
        correct: Array = self.predicted == self.label
        return correct

    def judged(self) -> Judged:
        """Return the probabilities whose calibration is judged: those of the predicted classes."""
        return Judged(self.probability, self.correct)

    @override
    def baseline(self) -> Self:
        """Return the answers of a model that always predicts the most frequent class, with its share as probability."""
        n, counts = len(self.label), np.bincount(self.label)
        by_count = np.argsort(-counts, kind="stable")
        return replace(
            self,
            predicted=np.full_like(self.label, by_count[0]),
            probability=np.full(n, counts[by_count[0]] / n, np.float32),
            label_probability=(counts / n).astype(np.float32)[self.label],
            in_top5=np.isin(self.label, by_count[:TOP]),
        )

    @override
    def details(self, names: Sequence[str], blocks: Blocks) -> dict[str, Any]:
        return {
            "classes": per_class(self, names),
            "confusions": pair_counts(self.label, self.predicted, len(names)),
            "reliability": reliability_of(self.judged()),
            "most_wrong": self.most_wrong(),
        }

    @override
    def wrong(self) -> Array:
        wrong = np.flatnonzero(~self.correct)
        surest_first: Array = wrong[np.argsort(-self.probability[wrong], kind="stable")]
        return surest_first

    @override
    def mistakes_at(self, positions: Array) -> list[dict[str, Any]]:
        label, predicted = (ids[positions].tolist() for ids in (self.label, self.predicted))
        probability = self.probability[positions].astype(float).round(6).tolist()
        return rows(
            {"position": positions.tolist(), "label": label, "predicted": predicted, "probability": probability}
        )

    @override
    def classes_of_mistakes(self, positions: Array) -> dict[str, Array]:
        return {"True class": self.label[positions], "Predicted class": self.predicted[positions]}


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


def per_class(predictions: Predictions, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return for each class, by id: name, examples, precision (None if never predicted), recall (None if empty)."""
    classes = len(names)
    columns = {"name": names, "count": np.bincount(predictions.label, minlength=classes).tolist()}
    for name, ids in (("precision", predictions.predicted), ("recall", predictions.label)):
        shares = class_shares(ids, predictions.correct, predictions.units, classes)
        columns[name], columns[f"{name}_interval"] = shares
    return rows(columns)
