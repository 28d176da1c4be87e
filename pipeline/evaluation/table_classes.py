"""Metrics of a model for tables with classes. pipeline/evaluation/metrics.py has the rest of the evaluation.

Each row has one class, as each image has one label. So the predictions are those of images, with probabilities added,
by which rows are ranked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from pipeline.evaluation.estimates import (
    Array,
    Estimate,
    Statistic,
    affordable_resamples,
    bootstrapped,
    calibration_error,
    mean_of,
    reliability_of,
    weighted_sum,
)
from pipeline.evaluation.one_label import Predictions
from pipeline.evaluation.scales import rounded

MAX_RANKED_CLASSES = 100
"""With more classes, the probabilities of all classes are not stored, so there is no AUC."""
MIN_PROBABILITY = float(np.finfo(np.float32).eps)
"""Smaller probabilities of the true class count as this one. Otherwise, one row could make the log loss infinite."""


@dataclass(frozen=True)
class Ranks:
    """All rows by the probability of a class. Rows of the same probability have the same level."""

    hits: Array
    """The rows that have the class, by their positions."""
    level: Array
    """The level of each row, rising, from 0."""
    level_of_hits: Array

    @classmethod
    def of(cls, is_hit: Array, probability: Array) -> Self:
        """Return the ranks for a class: whether each row has it, (n,), and the probability it was given, (n,)."""
        _, level = np.unique(probability, return_inverse=True)
        hits = np.flatnonzero(is_hit)
        return cls(hits, level, level[hits])

    def auc(self, weights: Array) -> float:
        """Return the area under the ROC curve; NaN without a row of the class, or without another row.

        It is the probability that a row of the class has a higher level than another row. The same level counts half.
        """
        misses = np.bincount(self.level, weights)
        hits = np.bincount(self.level_of_hits, weights[self.hits], len(misses))
        misses -= hits
        pairs = float(hits.sum() * misses.sum())
        below = np.cumsum(misses) - misses / 2
        return weighted_sum(hits, below) / pairs if pairs else float("nan")


def mean_auc(ranks: Sequence[Ranks]) -> Statistic:
    """Return the mean area over the classes, each against all others."""

    def statistic(weights: Array) -> Array:
        areas = np.array([each.auc(weights) for each in ranks])
        known = areas[~np.isnan(areas)]  # A resample may lack a class.
        return np.array([known.mean() if len(known) else np.nan])

    return statistic


class ClassPredictions(NamedTuple):
    """Predictions with one row for each row of the table."""

    label: Array
    """This column and the next four are those of `Predictions`."""
    predicted: Array
    probability: Array
    label_probability: Array
    in_top5: Array
    ranked: Array
    """float32 of (n, k): the probability of the second of two classes (k = 1), or of each class (k = classes). k is 0
    if there are too many classes, or only one."""

    @classmethod
    def of_batch(cls, labels: Array, probabilities: Array) -> Self:
        """Return the predictions of a batch: labels, (n,), and probabilities of all classes, (n, classes)."""
        answers = Predictions.of_batch(labels, probabilities)
        return cls(*answers, ranked=_ranked(probabilities).astype(np.float32))

    @staticmethod
    def of_ids(ids: Sequence[tuple[int, ...]], classes: int) -> Array:
        """Return the labels of a batch, (n,), by the ids that each example has."""
        return Predictions.of_ids(ids, classes)

    @property
    def answers(self) -> Predictions:
        """The predictions without the ranking."""
        return Predictions(*self[: len(Predictions._fields)])

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes."""
        return bool(self.ranked.shape[1] == 1)

    @property
    def scored_by(self) -> str:
        """The name of the score."""
        return "log loss"

    @property
    def score_figure(self) -> str:
        """The figure that is the score.

        The log loss judges the order of the rows and the probabilities themselves, and exists for any classes. It is a
        mean over rows, so the difference between two models is a mean over pairs.
        """
        return "log_loss"

    @property
    def noun(self) -> str:
        """What an example is."""
        return "row"

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the values of `statistic`, in its order. There is no AUC without rows of two classes."""
        return (*(("auc",) if self._ranks() else ()), "log_loss", "accuracy", "calibration_error")

    @property
    def score(self) -> float:
        """The log loss."""
        return float(self._losses().mean())

    @property
    def resamples(self) -> int:
        """Number of resamples for an interval."""
        return affordable_resamples(self.ranked.size)

    def statistic(self) -> Statistic:
        """Return the figures of the examples, each taken as often as its weight says."""
        correct = self.answers.correct.astype(float)
        auc = [mean_auc(ranks)] if (ranks := self._ranks()) else []
        calibration = calibration_error(*self._calibrated())
        of_parts = (*auc, mean_of(self._losses()), mean_of(correct), calibration)
        return lambda weights: np.concatenate([part(weights) for part in of_parts])

    def difference(self, champion: Self, seed: int) -> Estimate:
        """Return the log loss less that of another model on the same examples, drawn in pairs."""
        losses = mean_of(self._losses() - champion._losses())
        resamples = affordable_resamples(len(self.label))
        return rounded("log_loss", *bootstrapped(losses, len(self.label), resamples, seed))

    def details(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the content of `evaluation.json` beside the figures."""
        return {
            "task": "classes",
            **self.answers.details(names),
            "reliability": reliability_of(*self._calibrated()),
        }

    def _losses(self) -> Array:
        losses: Array = -np.log(np.maximum(self.label_probability.astype(float), MIN_PROBABILITY))
        return losses

    def _calibrated(self) -> tuple[Array, Array]:
        """Return the probabilities whose calibration is judged, (n,), and whether what they predict is true, (n,).

        Of two classes, it is the probability of the second one, which users of such models read. Of more classes, it is
        that of the predicted class.
        """
        if self.is_binary:
            return self.ranked[:, 0], (self.label == 1).astype(float)
        return self.probability, self.answers.correct.astype(float)

    def _ranks(self) -> list[Ranks]:
        """Return the ranks for each class that some rows have and others do not."""
        is_class = self.label[:, np.newaxis] == (1 if self.is_binary else np.arange(self.ranked.shape[1]))
        columns = zip(is_class.T, self.ranked.T, strict=True)
        return [Ranks.of(is_hit, probability) for is_hit, probability in columns if 0 < is_hit.sum() < len(is_hit)]


def _ranked(probabilities: Array) -> Array:
    """Return the columns of the probabilities by which rows are ranked."""
    classes = probabilities.shape[1]
    if classes == 2:  # The first one would give the same ranking, turned around.
        return probabilities[:, 1:]
    return probabilities if 2 < classes <= MAX_RANKED_CLASSES else probabilities[:, :0]
