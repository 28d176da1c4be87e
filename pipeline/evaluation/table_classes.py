"""Metrics of a model for tables with classes. pipeline/evaluation/metrics.py has the rest of the evaluation.

Each row has one class, as each image has one label. So the predictions are those of images, with probabilities added,
by which rows are ranked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from typing_extensions import override

from pipeline.evaluation.answers import Metric
from pipeline.evaluation.estimates import (
    Array,
    Estimate,
    Statistic,
    affordable_resamples,
    bootstrapped,
    calibration_error,
    mean_of,
    mean_over_classes,
    reliability_of,
    weighted_sum,
)
from pipeline.evaluation.one_label import ACCURACY, CALIBRATION_ERROR, Predictions

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


def mean_auc(ranks: Sequence[Ranks]) -> Statistic | None:
    """Return the mean area over the classes, each against all others; None without rows of two classes."""
    return mean_over_classes([each.auc for each in ranks], float("nan")) if ranks else None


LOG_LOSS = Metric(
    key="log_loss",
    title="log loss",
    meaning="log loss: mean of the negative logarithm of the probability of the true class; lower is better",
    scale="amount",
    statistic=lambda of: mean_of(of.losses),
    lower_is_better=True,
)


@dataclass(frozen=True, eq=False)
class ClassPredictions(Predictions):
    """Predictions with one row for each row of the table."""

    metrics = (
        Metric(
            key="auc",
            title="AUC",
            meaning="area under the ROC curve (AUC): how often a row of a class is ranked above a row of another "
            "class; 0.5 is chance",
            scale="score",
            statistic=lambda of: mean_auc(of.ranks()),
        ),
        LOG_LOSS,
        ACCURACY,
        replace(
            CALIBRATION_ERROR,
            meaning="expected calibration error: mean difference between the probability of a class and how often it "
            "is correct",
            statistic=lambda of: calibration_error(*of.calibrated()),
        ),
    )
    # The log loss judges the order of the rows and the probabilities themselves, and exists for any classes. It is a
    # mean over rows, so the difference between two models is a mean over pairs.
    scored_by = LOG_LOSS
    noun = "row"
    ranked: Array
    """float32 of (n, k): the probability of the second of two classes (k = 1), or of each class (k = classes). k is 0
    if there are too many classes, or only one."""

    @classmethod
    def of_batch(cls, labels: Array, probabilities: Array) -> Self:
        """Return the predictions of a batch: labels, (n,), and probabilities of all classes, (n, classes)."""
        columns = Predictions.of_batch(labels, probabilities).columns
        return cls(**columns, ranked=_ranked(probabilities).astype(np.float32))

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes."""
        return bool(self.ranked.shape[1] == 1)

    @property
    @override
    def resamples(self) -> int:
        return affordable_resamples(self.ranked.size)

    @override
    def baseline(self) -> Self:
        """Return the answers of a model that predicts the share of each class. Its log loss is the entropy."""
        columns = self.ranked.shape[1]
        shares = np.bincount(self.label, minlength=max(columns, 2)) / len(self.label)
        ranked = shares[1:] if self.is_binary else shares[:columns]
        return replace(super().baseline(), ranked=np.broadcast_to(ranked.astype(np.float32), self.ranked.shape))

    def difference(self, champion: Self, seed: int) -> Estimate:
        """Return the log loss less that of another model on the same examples, drawn in pairs."""
        losses = mean_of(self.losses - champion.losses)
        resamples = affordable_resamples(len(self.label))
        return LOG_LOSS.rounded(*bootstrapped([losses], len(self.label), resamples, seed))

    @override
    def details(self, names: Sequence[str]) -> dict[str, Any]:
        return {
            "task": "classes",
            **super().details(names),
            "reliability": reliability_of(*self.calibrated()),
        }

    @property
    def losses(self) -> Array:
        """The negative logarithm of the probability of each true class."""
        losses: Array = -np.log(np.maximum(self.label_probability.astype(float), MIN_PROBABILITY))
        return losses

    def calibrated(self) -> tuple[Array, Array]:
        """Return the probabilities whose calibration is judged, (n,), and whether what they predict is true, (n,).

        Of two classes, it is the probability of the second one, which users of such models read. Of more classes, it is
        that of the predicted class.
        """
        if self.is_binary:
            return self.ranked[:, 0], (self.label == 1).astype(float)
        return self.probability, self.correct.astype(float)

    def ranks(self) -> list[Ranks]:
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
