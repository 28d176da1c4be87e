"""Metrics of a model that predicts a number for each row of a table. metrics.py has the rest of the evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from typing_extensions import override

from pipeline.evaluation.answers import Answers, Metric
from pipeline.evaluation.blocks import Blocks
from pipeline.evaluation.estimates import Array, Statistic, mean_of, pair_counts, rows
from pipeline.evaluation.estimators import Amount, Explained
from pipeline.evaluation.scales import significant

CELLS = 40
"""Number of intervals along each axis of the histogram of predicted and true values, and of that of residuals."""
OUTER_PERCENT = 0.5
"""This share of the values at each end may be outside a histogram. Otherwise, one outlier would hide all others."""
SAME = 1e-12
"""The labels of a resample count as equal if their variance is below this share of their mean square."""
MAE = Metric(
    key="mae",
    title="mean absolute error",
    meaning="mean absolute error, in the unit of the label",
    scale="amount",
    estimator=Amount(lambda of: mean_of(np.abs(of.residual)), largest=lambda of: float(np.ptp(of.label))),
    lower_is_better=True,
)
_MEAN = "always the mean"


@dataclass(frozen=True, eq=False)
class RegressionPredictions(Answers):
    """Predictions with one row for each row of the table, in the unit of the label."""

    metrics = (
        MAE,
        Metric(
            key="rmse",
            title="root mean squared error",
            meaning="root mean squared error, in the unit of the label: large errors count more",
            scale="amount",
            estimator=Amount(
                lambda of: _root_mean_square(of),
                largest=lambda of: float(np.ptp(of.label)),
                constant=lambda of: of.constant(of.label.mean()),
                largest_again=2,
            ),
            lower_is_better=True,
            baseline=_MEAN,
        ),
        Metric(
            key="r2",
            title="R²",
            meaning="R²: share of the variance of the label that the model explains; 0 is as good as always predicting "
            "the mean",
            scale="score",
            estimator=Explained(
                lambda of: _r2(of), largest=lambda _: 1.0, constant=lambda of: of.constant(of.label.mean())
            ),
            baseline=_MEAN,
        ),
    )
    scored_by = MAE
    headline = MAE
    baseline_name = "always the median"
    noun = "row"
    label: Array
    """float64 of (n,), the true values."""
    predicted: Array
    """float64 of (n,)."""

    @classmethod
    def of_batch(cls, labels: Array, probabilities: Array) -> Self:
        """Return the predictions of a batch: true values, (n,), and what the model returned, (n,) or (n, 1)."""
        return cls(*(values.astype(float).reshape(len(labels)) for values in (labels, probabilities)))

    @property
    def residual(self) -> Array:
        """By how much each prediction is too high."""
        residual: Array = self.predicted - self.label
        return residual

    @override
    def baseline(self) -> Self:
        """Return the answers of a model that always predicts the median, which has the least mean absolute error."""
        return self.constant(float(np.median(self.label)))

    def constant(self, value: float) -> Self:
        """Return the answers of a model that always predicts this value."""
        return replace(self, predicted=np.full_like(self.label, value))

    @override
    def details(self, names: Sequence[str], blocks: Blocks) -> dict[str, Any]:
        return {
            "task": "regression",
            "values": value_histogram(self),
            "residuals": residuals(self),
            "most_wrong": self.most_wrong(),
        }

    @override
    def wrong(self) -> Array:
        size = np.abs(self.residual)
        largest_first: Array = np.argsort(-size, kind="stable")[: np.count_nonzero(size)]
        return largest_first

    @override
    def mistakes_at(self, positions: Array) -> list[dict[str, Any]]:
        label, predicted = (significant(values[positions]) for values in (self.label, self.predicted))
        return rows({"position": positions.tolist(), "label": label, "predicted": predicted})

    @override
    def classes_of_mistakes(self, positions: Array) -> dict[str, Array]:
        return {}


def _root_mean_square(predictions: RegressionPredictions) -> Statistic:
    mean_square = mean_of(predictions.residual**2)
    return lambda weights: mean_square(weights) ** 0.5


def _r2(predictions: RegressionPredictions) -> Statistic | None:
    """Return R2, which is not defined if all labels are equal."""
    # Around the mean, so that the variance is not a small difference of large numbers.
    centered = predictions.label - predictions.label.mean()
    of_errors, of_squares, of_labels = map(mean_of, (predictions.residual**2, centered**2, centered))

    def statistic(weights: Array) -> float:
        square = of_squares(weights)
        variance = square - of_labels(weights) ** 2
        return 1 - of_errors(weights) / variance if variance > SAME * square else float("nan")

    return statistic if np.ptp(predictions.label) else None


def value_histogram(predictions: RegressionPredictions) -> dict[str, Any]:
    """Return how often each true value has each predicted value.

    `edges` are those of the intervals of both axes. `cells` are [true interval, predicted interval, examples] of each
    pair with examples. Values outside the edges count in the first or the last interval.
    """
    values = predictions.label, predictions.predicted
    edges = edges_of(np.concatenate(values))
    label, predicted = (interval_of(each, edges) for each in values)
    return {"edges": significant(edges), "cells": pair_counts(label, predicted, CELLS)}


def residuals(predictions: RegressionPredictions) -> dict[str, Any]:
    """Return the histogram of the residuals, their mean, and the median and 95th percentile of their sizes.

    Residuals outside the edges count in the first or the last interval.
    """
    residual = predictions.residual
    edges = edges_of(residual)
    counts = np.bincount(interval_of(residual, edges), minlength=CELLS).tolist()
    mean, median, p95 = significant([residual.mean(), *np.percentile(np.abs(residual), (50, 95))])
    return {"edges": significant(edges), "counts": counts, "mean": mean, "median_absolute": median, "p95_absolute": p95}


def edges_of(values: Array) -> Array:
    """Return the edges of CELLS intervals of equal width for nearly all of these values."""
    low, high = np.percentile(values, (OUTER_PERCENT, 100 - OUTER_PERCENT))
    if low == high:
        # Half a unit would vanish beside a large number.
        reach = max(abs(low) / 100, 0.5)
        low, high = low - reach, high + reach
    return np.linspace(low, high, CELLS + 1)


def interval_of(values: Array, edges: Array) -> Array:
    """Return the number of the interval of each value. Values outside the edges count in the first or last interval."""
    return np.searchsorted(edges[1:-1], values, "right")
