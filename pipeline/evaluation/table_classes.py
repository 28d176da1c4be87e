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
from pipeline.evaluation.blocks import Blocks
from pipeline.evaluation.calibration import Judged
from pipeline.evaluation.estimates import Array, Statistic, mean_of, mean_over_classes, weighted_sum
from pipeline.evaluation.estimators import Amount, Bounded
from pipeline.evaluation.one_label import ACCURACY, CALIBRATION_ERROR, Predictions

MAX_RANKED_CLASSES = 100
"""With more classes, the probabilities of all classes are not stored, so there is no AUC."""
MIN_PROBABILITY = float(np.finfo(np.float32).eps)
"""Smaller probabilities of the true class count as this one. Otherwise, one row could make the log loss infinite."""
MAX_LOSS = float(-np.log(MIN_PROBABILITY))


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


def trials_of_auc(ranks: Sequence[Ranks]) -> float:
    """Return how many examples a share would need to be as sure as this area if it is nearly 1.

    For one class, it follows from the variance of Hanley and McNeil (1982).
    """
    hits = np.array([len(each.hits) for each in ranks], float)
    misses = np.array([len(each.level) for each in ranks]) - hits
    return float(len(ranks) ** 2 / ((hits + misses + 4) / (4 * hits * misses)).sum())


LOG_LOSS = Metric(
    key="log_loss",
    title="log loss",
    meaning="log loss: mean of the negative logarithm of the probability of the true class; lower is better",
    scale="amount",
    estimator=Amount(lambda of: mean_of(of.losses), largest=lambda _: MAX_LOSS),
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
            estimator=Bounded(lambda of: mean_auc(of.ranks()), trials=lambda of: trials_of_auc(of.ranks())),
        ),
        LOG_LOSS,
        ACCURACY,
        replace(
            CALIBRATION_ERROR,
            meaning="expected calibration error: mean difference between the probability of a class and how often it "
            "is correct, without what chance adds",
        ),
    )
    # The log loss judges the order of the rows and the probabilities themselves, and exists for any classes. It is a
    # mean over rows, so the difference between two models is a mean over pairs.
    scored_by = LOG_LOSS
    headline = ACCURACY
    baseline_name = "the shares of the classes"
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
    def answers_read(self) -> int:
        return max(self.ranked.size, len(self.label))

    @override
    def baseline(self) -> Self:
        """Return the answers of a model that predicts the share of each class. Its log loss is the entropy."""
        columns = self.ranked.shape[1]
        shares = np.bincount(self.label, minlength=max(columns, 2)) / len(self.label)
        ranked = shares[1:] if self.is_binary else shares[:columns]
        return replace(super().baseline(), ranked=np.broadcast_to(ranked.astype(np.float32), self.ranked.shape))

    @override
    def details(self, names: Sequence[str], blocks: Blocks) -> dict[str, Any]:
        return {"task": "classes", **super().details(names, blocks)}

    @property
    def losses(self) -> Array:
        """The negative logarithm of the probability of each true class."""
        losses: Array = -np.log(np.maximum(self.label_probability.astype(float), MIN_PROBABILITY))
        return losses

    @override
    def judged(self) -> Judged:
        """Return the probabilities whose calibration is judged, (n,), and whether what they predict is true, (n,).

        Of two classes, it is the probability of the second one, which users of such models read. Of more classes, it is
        that of the predicted class.
        """
        return Judged(self.ranked[:, 0], self.label == 1) if self.is_binary else super().judged()

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
