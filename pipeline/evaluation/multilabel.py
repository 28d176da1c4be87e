"""Metrics of a model for images with several labels. pipeline/evaluation/metrics.py has the rest of the evaluation.

Each label is predicted on its own, if its probability is over one half.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from typing_extensions import override

from pipeline.evaluation.answers import Answers, Metric
from pipeline.evaluation.estimates import (
    BINS,
    MAX_MISTAKES,
    Array,
    Estimate,
    Statistic,
    affordable_resamples,
    bins_of,
    bootstrapped,
    difference_of,
    mean_of,
    mean_over_classes,
    reliability_of,
    rows,
    shares,
)
from pipeline.evaluation.one_label import ACCURACY, CALIBRATION_ERROR

THRESHOLD = 0.5


MEAN_AVERAGE_PRECISION = Metric(
    key="mean_average_precision",
    title="mean average precision",
    meaning="mean average precision: how well each label ranks its images above others, averaged over the labels",
    scale="share",
    statistic=lambda of: _mean_average_precision(of),
)


@dataclass(frozen=True, eq=False)
class MultiLabelPredictions(Answers):
    """Predictions: a row for each example, a column for each class. Average precision needs all probabilities."""

    metrics = (
        MEAN_AVERAGE_PRECISION,
        Metric(
            key="micro_f1",
            title="micro F1",
            meaning="micro F1 of all labels above 50%: precision and recall combined",
            scale="share",
            statistic=lambda of: _micro_f1(of),
        ),
        replace(
            ACCURACY,
            meaning="exact match: the model predicts exactly the labels of the image",
            statistic=lambda of: mean_of((of.label == of.answers).all(axis=1).astype(float)),
        ),
        replace(
            CALIBRATION_ERROR,
            meaning="expected calibration error: mean difference between the probability of a label and how often it "
            "is correct",
            statistic=lambda of: _calibration_error(of),
        ),
    )
    scored_by = MEAN_AVERAGE_PRECISION
    noun = "image"
    label: Array
    """bool of (n, classes), the labels that an example has."""
    label_probability: Array
    """float32 of (n, classes), of each label."""

    @classmethod
    def of_batch(cls, labels: Array, probabilities: Array) -> Self:
        """Return the predictions of a batch: labels, 0 or 1, (n, classes), and probabilities of at least these classes.

        Probabilities of labels that the dataset does not have are left out: they are neither right nor wrong.
        """
        return cls(labels.astype(bool), probabilities[:, : labels.shape[1]].astype(np.float32))

    @staticmethod
    def of_ids(ids: Sequence[tuple[int, ...]], classes: int) -> Array:
        """Return the labels of a batch, (n, classes), by the ids that each example has."""
        labels = np.zeros((len(ids), classes), bool)
        for row, of_example in zip(labels, ids, strict=True):
            row[list(of_example)] = True
        return labels

    @property
    def answers(self) -> Array:
        """Whether each label is predicted, bool of (n, classes)."""
        answers: Array = self.label_probability > THRESHOLD
        return answers

    @property
    @override
    def resamples(self) -> int:
        return affordable_resamples(self.label.size)

    @override
    def baseline(self) -> Self:
        """Return the answers of a model that predicts the share of each label.

        It ranks no image above another one, so its average precision is that share.
        """
        shares = self.label.mean(axis=0).astype(np.float32)
        return replace(self, label_probability=np.broadcast_to(shares, self.label.shape))

    def difference(self, champion: Self, seed: int) -> Estimate:
        """Return the mean average precision less that of another model on the same examples, drawn in pairs."""
        both = difference_of(_mean_average_precision(self), _mean_average_precision(champion))
        return MEAN_AVERAGE_PRECISION.rounded(*bootstrapped([both], len(self.label), self.resamples, seed))

    @override
    def details(self, names: Sequence[str]) -> dict[str, Any]:
        return {
            "classes": per_class(self, names),
            "reliability": reliability_of(self.label_probability.ravel(), self.label.ravel()),
            "most_wrong": confident_mistakes(self),
        }


# --- average precision ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranking:
    """All examples by the probability of a class, falling. Equal probabilities share the rank of the last one."""

    order: Array
    """All examples, by their positions."""
    hits: Array
    """The examples that have the class, in that order, by their positions."""
    end: Array
    """For each hit, the place in `order` of the last example of the same probability."""
    last_hit: Array
    """For each hit, the place in `hits` of the last hit of the same probability."""

    def average_precision(self, weights: Array) -> float:
        """Return the area below the steps of precision over recall, as scikit-learn has it; NaN without a hit.

        It is the mean, over the examples of the class, of the share of them among all that are ranked as high or
        higher. Each example counts as often as its weight (a whole number) says.
        """
        of_hits = weights[self.hits]
        if not of_hits.sum():
            return float("nan")
        seen = np.cumsum(weights[self.order])[self.end]
        # `seen` is 0 only if the hit itself was not drawn. Its weight is 0 then, so any precision will do.
        precision = np.cumsum(of_hits)[self.last_hit] / np.maximum(seen, 1)
        return float(of_hits @ precision / of_hits.sum())


def ranking(is_hit: Array, probability: Array) -> Ranking:
    """Return the ranking of a class: whether each example has it (n,), and the probability it was given (n,)."""
    order = np.argsort(-probability, kind="stable")
    falling, places = -probability[order], np.flatnonzero(is_hit[order])
    end = np.searchsorted(falling, falling[places], "right") - 1
    return Ranking(order, order[places], end, np.searchsorted(places, end, "right") - 1)


def _rankings(predictions: MultiLabelPredictions) -> list[Ranking]:
    columns = zip(predictions.label.T, predictions.label_probability.T, strict=True)
    return [ranking(is_hit, np.ascontiguousarray(probability)) for is_hit, probability in columns]


def _mean_average_precision(predictions: MultiLabelPredictions) -> Statistic:
    """Return the mean over the classes that any example has."""
    return mean_over_classes([each.average_precision for each in _rankings(predictions) if len(each.hits)], 0.0)


# --- the other figures ------------------------------------------------------------------------------------------------


def _micro_f1(predictions: MultiLabelPredictions) -> Statistic:
    """Return micro F1 over all labels of all examples: twice the hits, over the predicted plus the true labels."""
    correct = (predictions.label & predictions.answers).sum(axis=1)
    total = predictions.label.sum(axis=1) + predictions.answers.sum(axis=1)
    return lambda weights: 2 * (weights @ correct) / max(weights @ total, 1)


def _calibration_error(predictions: MultiLabelPredictions) -> Statistic:
    """Return the mean over all answers of the distance, in their bin, between probability and share of labels."""
    surplus = predictions.label - predictions.label_probability
    n, classes = surplus.shape
    # Sums for each example and bin, once. Each resample is then one product with the weights.
    cells = np.arange(n)[:, np.newaxis] * BINS + bins_of(predictions.label_probability)
    of_bins = np.bincount(cells.ravel(), surplus.ravel(), n * BINS).reshape(n, BINS)
    return lambda weights: np.abs(weights @ of_bins).sum() / (n * classes)


def per_class(predictions: MultiLabelPredictions, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return for each class, by id: name, examples, average precision, recall and precision (None if undefined)."""
    label, answers = predictions.label, predictions.answers
    count, predicted, correct = (flags.sum(axis=0) for flags in (label, answers, label & answers))
    ones = np.ones(len(label))
    averages = [each.average_precision(ones) if len(each.hits) else None for each in _rankings(predictions)]
    return rows(
        {
            "name": names,
            "count": count.tolist(),
            "average_precision": [None if each is None else round(each, 6) for each in averages],
            "precision": shares(correct, predicted),
            "recall": shares(correct, count),
        }
    )


def confident_mistakes(predictions: MultiLabelPredictions, limit: int = MAX_MISTAKES) -> list[dict[str, Any]]:
    """Return the examples with the surest wrong answers: position in the shards, that answer, and all labels."""
    distance = np.abs(predictions.label - predictions.label_probability)
    # Correct answers are no mistakes, however unsure they are.
    distance[predictions.label == predictions.answers] = 0
    worst = distance.argmax(axis=1)
    how_far = distance[np.arange(len(worst)), worst]
    surest = np.argsort(-how_far, kind="stable")[: min(limit, int(np.count_nonzero(how_far)))]
    probability = predictions.label_probability[surest, worst[surest]].astype(float).round(6)
    return rows(
        {
            "position": surest.tolist(),
            "labels": [np.flatnonzero(predictions.label[position]).tolist() for position in surest],
            "label": worst[surest].tolist(),
            "probability": probability.tolist(),
        }
    )
