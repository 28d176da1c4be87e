"""The calibration error: how far probabilities are from how often they come true.

The plain error of few examples is too high: in each bin, chance alone moves the share of hits away from the mean
probability. So the error is estimated here as the one that on average gives the plain error that was found. The ends of
its interval are the errors that give such a low plain error, or such a high one, in only 2.5% of all evaluations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from typing_extensions import override

from pipeline.evaluation.blocks import NORMAL, Blocks, student
from pipeline.evaluation.estimates import INTERVAL_PERCENT, Array, Estimate, rows, shares
from pipeline.evaluation.estimators import Estimator, difference_of

BINS = 15
"""Probabilities are divided into this many bins of equal width."""
DRAWS = 1000
"""Number of simulated plain errors for each error that is tried."""
CALIBRATED = 100
"""Number of simulated calibrated models."""
STEPS = 25
"""The range of errors that are tried is halved this often."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Probabilities, and whether what they predict is true, both of shape (examples,) or (examples, labels)."""

    probability: Array
    is_true: Array

    @property
    def are_numbers(self) -> bool:
        """Whether no probability is NaN."""
        return not np.isnan(self.probability).any()

    def binned(self, values: Array, of_example: Array | None = None, count: int = 1) -> Array:
        """Return the sums of the values in each bin, (count, BINS), by a number below `count` of each example."""
        # A probability of 1 belongs to the last bin.
        cells = np.minimum((np.nan_to_num(self.probability) * BINS).astype(int), BINS - 1)
        if of_example is not None:
            cells = cells + BINS * (of_example if cells.ndim == 1 else of_example[:, np.newaxis])
        return np.bincount(cells.ravel(), values.ravel(), count * BINS).reshape(count, BINS)


@dataclass(frozen=True, eq=False)
class Noise:
    """Simulated deviations of each bin by chance, (draws, BINS), and the direction in which the errors are tried."""

    deviations: Array
    direction: Array

    def plain(self, error: float) -> Array:
        """Return the plain errors that the simulations find if this is the true error."""
        found: Array = np.abs(error * self.direction + self.deviations).sum(axis=1)
        return found

    def error_with(self, plain: float, of: Callable[[Array], Any]) -> float:
        """Return the true error with which `of` the plain errors is `plain`; 0 if it is higher with any error."""
        low, high = 0.0, 1.0
        if of(self.plain(low)) >= plain:
            return 0.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if of(self.plain(middle)) < plain else (low, middle)
        return low


class CalibrationError(Estimator):
    """The expected calibration error of what `judged` of the predictions returns, without what chance adds to it."""

    @override
    def value(self, of: Any) -> float:
        return self.estimate(of, of.blocks(seed=0)).value

    @override
    def estimate(self, of: Any, blocks: Blocks) -> Estimate:
        judged: Judged = of.judged()
        if not judged.are_numbers:
            return Estimate(nan, 0.0, 1.0)
        answers = judged.probability.size
        deviation = judged.binned(judged.is_true - judged.probability)[0] / answers
        plain, covariance = float(np.abs(deviation).sum()), _covariance(judged, blocks)
        counts = judged.binned(np.ones(judged.probability.shape))[0]
        direction = deviation / plain if plain else counts / answers
        noise = Noise(_drawn(covariance), direction)
        tail = 50 - INTERVAL_PERCENT / 2
        value = noise.error_with(plain, np.mean)
        low = noise.error_with(plain, lambda found: np.percentile(found, 100 - tail))
        likely = plain
        hits = judged.binned(judged.is_true)[0]
        if (hits * (counts - hits) == 0).all():
            # Answers that are all right say little about how rare the wrong ones are: one more answer may be wrong.
            unseen = counts / answers / (answers * blocks.share_of_units) ** 2
            noise = Noise(_drawn(covariance + np.diag(unseen)), direction)
            likely = max(plain, float(noise.plain(0.0).mean()))
        high = noise.error_with(likely, lambda found: np.percentile(found, tail))
        return Estimate(value, min(low, value), max(high, value))

    @override
    def difference(self, of: Any, other: Any, blocks: Blocks) -> Estimate:
        return difference_of(self.estimate(of, blocks), self.estimate(other, blocks), correlation=0.0)

    @override
    def baseline(self, of: Any) -> float | None:
        """Return the error that a calibrated model with the same probabilities has on average."""
        judged: Judged = of.judged()
        if not judged.are_numbers:
            return None
        deviations = _drawn(np.diag(_variances(judged)))
        errors = [
            Noise(deviations, each / max(np.abs(each).sum(), 1e-12)).error_with(np.abs(each).sum(), np.mean)
            for each in deviations[:CALIBRATED]
        ]
        return float(np.mean(errors))


def _variances(judged: Judged) -> Array:
    """Return the variance of the deviation of each bin if the probabilities are right."""
    variances: Array = judged.binned(judged.probability * (1 - judged.probability))[0] / judged.probability.size**2
    return variances


def _covariance(judged: Judged, blocks: Blocks) -> Array:
    """Return the covariance of the deviations of the bins, (BINS, BINS), from their values without each block."""
    if blocks.count < 2:
        return np.diag(_variances(judged))
    surplus = judged.binned(judged.is_true - judged.probability, blocks.of_example, blocks.count)
    sizes = np.bincount(blocks.of_example, minlength=blocks.count) / len(blocks.of_example)
    without_each = (surplus.sum(axis=0) - surplus) / judged.probability.size / (1 - sizes[:, np.newaxis])
    centered = without_each - without_each.mean(axis=0)
    covariance: Array = centered.T @ centered * (blocks.count - 1) / blocks.count
    # A few groups may decide the variance: what holds for the sum of all deviations is taken for each of them.
    covariance *= (student(without_each @ np.sign(without_each.mean(axis=0))) / NORMAL) ** 2
    # With one or two answers, the variance that was found is a guess. It is at least that of `_variances`.
    covariance += np.diag(np.maximum(_variances(judged) - np.diag(covariance), 0))
    return covariance


def _drawn(covariance: Array) -> Array:
    values, vectors = np.linalg.eigh(covariance)
    normal = np.random.default_rng(0).standard_normal((DRAWS, len(covariance)))
    drawn: Array = normal @ (vectors * np.sqrt(np.maximum(values, 0))).T
    return drawn


def reliability_of(judged: Judged) -> list[dict[str, Any]]:
    """Return each bin of confidence: its ends, its answers, mean confidence and accuracy (None without answers)."""
    edges = np.arange(BINS + 1) / BINS
    counts = judged.binned(np.ones(judged.probability.shape))[0].astype(int)
    columns = judged.probability, judged.is_true
    confidence, accuracy = (shares(judged.binned(values.astype(float))[0], counts) for values in columns)
    low, high = edges[:-1].round(6).tolist(), edges[1:].round(6).tolist()
    return rows({"low": low, "high": high, "count": counts.tolist(), "confidence": confidence, "accuracy": accuracy})
