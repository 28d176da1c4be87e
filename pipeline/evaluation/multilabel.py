"""Metrics of a model for images with several labels. pipeline/evaluation/metrics.py has the rest of the evaluation.

Each label is predicted on its own, if its probability is over one half.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from typing_extensions import override

from pipeline.evaluation.answers import Answers, Metric
from pipeline.evaluation.blocks import Blocks, student
from pipeline.evaluation.calibration import Judged, reliability_of
from pipeline.evaluation.estimates import Array, Statistic, mean_of, mean_over_classes, rows
from pipeline.evaluation.estimators import Bounded, Share, bounded, class_shares
from pipeline.evaluation.one_label import ACCURACY, CALIBRATION_ERROR

THRESHOLD = 0.5
MEAN_AVERAGE_PRECISION = Metric(
    key="mean_average_precision",
    title="mean average precision",
    meaning="mean average precision: how well each label ranks its images above others, averaged over the labels",
    scale="share",
    estimator=Bounded(lambda of: _mean_average_precision(of), trials=lambda of: _trials(of)),
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
            estimator=Bounded(lambda of: _micro_f1(of), trials=lambda of: of.label.sum()),
        ),
        replace(
            ACCURACY,
            meaning="exact match: the model predicts exactly the labels of the image",
            estimator=Share(lambda of: mean_of((of.label == of.answers).all(axis=1).astype(float))),
        ),
        replace(
            CALIBRATION_ERROR,
            meaning="expected calibration error: mean difference between the probability of a label and how often it "
            "is correct, without what chance adds",
        ),
    )
    scored_by = MEAN_AVERAGE_PRECISION
    headline = MEAN_AVERAGE_PRECISION
    baseline_name = "the share of each label"
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
    def answers_read(self) -> int:
        return self.label.size

    def judged(self) -> Judged:
        """Return the probabilities of all labels, whose calibration is judged."""
        return Judged(self.label_probability, self.label)

    @override
    def baseline(self) -> Self:
        """Return the answers of a model that predicts the share of each label.

        It ranks no image above another one, so its average precision is that share.
        """
        shares = self.label.mean(axis=0).astype(np.float32)
        return replace(self, label_probability=np.broadcast_to(shares, self.label.shape))

    @override
    def details(self, names: Sequence[str], blocks: Blocks) -> dict[str, Any]:
        return {
            "classes": per_class(self, names, blocks),
            "reliability": reliability_of(self.judged()),
            "most_wrong": self.most_wrong(),
        }

    @override
    def wrong(self) -> Array:
        return self._wrong

    @cached_property
    def _wrong(self) -> Array:
        # A page asks several times, and an example has as many answers as there are classes.
        how_far = self._distance(slice(None)).max(axis=1)
        surest_first: Array = np.argsort(-how_far, kind="stable")[: np.count_nonzero(how_far)]
        return surest_first

    @override
    def mistakes_at(self, positions: Array) -> list[dict[str, Any]]:
        worst = self._distance(positions).argmax(axis=1)
        probability = self.label_probability[positions, worst].astype(float).round(6)
        return rows(
            {
                "position": positions.tolist(),
                "labels": [np.flatnonzero(self.label[position]).tolist() for position in positions],
                "label": worst.tolist(),
                "probability": probability.tolist(),
            }
        )

    @override
    def classes_of_mistakes(self, positions: Array) -> dict[str, Array]:
        return {"Most wrong label": self._distance(positions).argmax(axis=1)}

    def _distance(self, chosen: Array | slice) -> Array:
        """Return how wrong each answer of the `chosen` examples is, (chosen, classes)."""
        distance: Array = np.abs(self.label[chosen] - self.label_probability[chosen])
        # Correct answers are no mistakes, however unsure they are.
        distance[self.label[chosen] == self.answers[chosen]] = 0
        return distance


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
    return mean_over_classes([each.average_precision for each in _rankings(predictions) if len(each.hits)], 0.0)


def _trials(predictions: MultiLabelPredictions) -> float:
    """Return how many examples a share would need to be as sure as a mean average precision of 1."""
    hits = predictions.label.sum(axis=0)
    known = hits[hits > 0]
    return float(len(known) ** 2 / (1 / known).sum()) if len(known) else 1.0


def _micro_f1(predictions: MultiLabelPredictions) -> Statistic:
    """Return micro F1 over all labels of all examples: twice the hits, over the predicted plus the true labels."""
    correct = (predictions.label & predictions.answers).sum(axis=1)
    total = predictions.label.sum(axis=1) + predictions.answers.sum(axis=1)
    return lambda weights: 2 * (weights @ correct) / max(weights @ total, 1)


def per_class(predictions: MultiLabelPredictions, names: Sequence[str], blocks: Blocks) -> list[dict[str, Any]]:
    """Return for each class, by id: name, examples, average precision, precision and recall.

    Each of them has its interval. A figure that is not defined is None.
    """
    label, answers = predictions.label, predictions.answers
    columns: dict[str, Sequence[Any]] = {"name": names, "count": label.sum(axis=0).tolist()}
    averages = [_average_precision(each, blocks) for each in _rankings(predictions)]
    columns["average_precision"], columns["average_precision_interval"] = zip(*averages, strict=True)
    for name, chosen in (("precision", answers), ("recall", label)):
        example, of_class = np.nonzero(chosen)
        is_hit = (label & answers)[example, of_class]
        shares = class_shares(of_class, is_hit, predictions.units[example], len(names))
        columns[name], columns[f"{name}_interval"] = shares
    return rows(columns)


def _average_precision(of_class: Ranking, blocks: Blocks) -> tuple[float | None, list[float] | None]:
    """Return the average precision of a class, and the ends of its interval; None if no example has the class."""
    if not len(of_class.hits):
        return None, None
    value = of_class.average_precision(np.ones(len(of_class.order)))
    without_each, trials = blocks.without_each(of_class.average_precision), len(of_class.hits) * blocks.share_of_units
    value, *ends = np.round(bounded(value, without_each, trials, student(without_each)), 6).tolist()
    return value, ends
