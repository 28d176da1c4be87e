"""Metrics of a model that predicts a number for each row of a table. metrics.py has the rest of the evaluation."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from pipeline.evaluation.estimates import (
    MAX_MISTAKES,
    Array,
    Estimate,
    Statistic,
    affordable_resamples,
    bootstrapped,
    mean_of,
    rows,
    weighted_sum,
)
from pipeline.evaluation.scales import rounded, significant

CELLS = 40
"""Number of intervals along each axis of the histogram of predicted and true values, and of that of residuals."""
OUTER_PERCENT = 0.5
"""This share of the values at each end may be outside a histogram. Otherwise, one outlier would hide all others."""
SAME = 1e-12
"""The labels of a resample count as equal if their variance is below this share of their mean square."""


class RegressionPredictions(NamedTuple):
    """Predictions with one row for each row of the table, in the unit of the label."""

    label: Array
    """float64 of (n,), the true values."""
    predicted: Array
    """float64 of (n,)."""

    @classmethod
    def of_batch(cls, labels: Array, probabilities: Array) -> Self:
        """Return the predictions of a batch: true values, (n,), and what the model returned, (n,) or (n, 1)."""
        return cls(*(values.astype(float).reshape(len(labels)) for values in (labels, probabilities)))

    @staticmethod
    def of_ids(ids: Sequence[tuple[float, ...]], classes: int) -> Array:
        """Return the true values of a batch, (n,), by the values that each example has."""
        return np.array([first for first, *_ in ids], float)

    @property
    def residual(self) -> Array:
        """By how much each prediction is too high."""
        residual: Array = self.predicted - self.label
        return residual

    @property
    def scored_by(self) -> str:
        """The name of the score."""
        return "mean absolute error"

    @property
    def score_figure(self) -> str:
        """The figure that is the score."""
        return "mae"

    @property
    def noun(self) -> str:
        """What an example is."""
        return "row"

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the values of `statistic`, in its order. R2 is not defined if all labels are equal."""
        return ("mae", "rmse", *(("r2",) if np.ptp(self.label) else ()))

    @property
    def score(self) -> float:
        """The mean absolute error."""
        return float(np.abs(self.residual).mean())

    @property
    def resamples(self) -> int:
        """Number of resamples for an interval."""
        return affordable_resamples(len(self.label))

    def statistic(self) -> Statistic:
        """Return the figures of the examples, each taken as often as its weight says."""
        absolute, squared, n = np.abs(self.residual), self.residual**2, len(self.label)
        # Around the mean, so that the variance is not a small difference of large numbers.
        centered = self.label - self.label.mean()
        centered_squared, has_r2 = centered**2, "r2" in self.figures

        def statistic(weights: Array) -> Array:
            mean_square = weighted_sum(weights, squared) / n
            figures = [weighted_sum(weights, absolute) / n, mean_square**0.5]
            if has_r2:
                square = weighted_sum(weights, centered_squared) / n
                variance = square - (weighted_sum(weights, centered) / n) ** 2
                figures.append(1 - mean_square / variance if variance > SAME * square else np.nan)
            return np.array(figures)

        return statistic

    def difference(self, champion: Self, seed: int) -> Estimate:
        """Return the mean absolute error less that of another model on the same examples, drawn in pairs."""
        errors = mean_of(np.abs(self.residual) - np.abs(champion.residual))
        return rounded("mae", *bootstrapped(errors, len(self.label), self.resamples, seed))

    def details(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the content of `evaluation.json` beside the figures."""
        return {
            "task": "regression",
            "values": value_histogram(self),
            "residuals": residuals(self),
            "most_wrong": largest_errors(self),
        }


def value_histogram(predictions: RegressionPredictions) -> dict[str, Any]:
    """Return how often each true value has each predicted value.

    `edges` are those of the intervals of both axes. `cells` are [true interval, predicted interval, examples] of each
    pair with examples. Values outside the edges count in the first or the last interval.
    """
    edges = edges_of(np.concatenate([predictions.label, predictions.predicted]))
    label, predicted = (interval_of(values, edges) for values in (predictions.label, predictions.predicted))
    pairs, counts = np.unique(label * CELLS + predicted, return_counts=True)
    cells = np.stack([pairs // CELLS, pairs % CELLS, counts], axis=1).tolist()
    return {"edges": significant(edges), "cells": cells}


def residuals(predictions: RegressionPredictions) -> dict[str, Any]:
    """Return the histogram of the residuals, their mean, and the median and 95th percentile of their sizes.

    Residuals outside the edges count in the first or the last interval.
    """
    residual = predictions.residual
    edges = edges_of(residual)
    counts = np.bincount(interval_of(residual, edges), minlength=CELLS).tolist()
    mean, median, p95 = significant([residual.mean(), *np.percentile(np.abs(residual), (50, 95))])
    return {
        "edges": significant(edges),
        "counts": counts,
        "mean": mean,
        "median_absolute": median,
        "p95_absolute": p95,
    }


def edges_of(values: Array) -> Array:
    """Return the edges of CELLS intervals of equal width for nearly all of these values."""
    low, high = np.percentile(values, (OUTER_PERCENT, 100 - OUTER_PERCENT))
    if low == high:
        # Half a unit would vanish beside a large number.
        reach = max(abs(low) / 100, 0.5)
        low, high = low - reach, high + reach
    return np.linspace(low, high, CELLS + 1)


def interval_of(values: Array, edges: Array) -> Array:
    """Return the number of the interval of each value, from 0."""
    places: Array = np.clip(np.searchsorted(edges, values, "right") - 1, 0, len(edges) - 2)
    return places


def largest_errors(predictions: RegressionPredictions, limit: int = MAX_MISTAKES) -> list[dict[str, Any]]:
    """Return the examples with the largest errors, by their position in the shards."""
    size = np.abs(predictions.residual)
    largest = np.argsort(-size, kind="stable")[: min(limit, int(np.count_nonzero(size)))]
    label, predicted = (significant(values[largest]) for values in (predictions.label, predictions.predicted))
    return rows({"position": largest.tolist(), "label": label, "predicted": predicted})
