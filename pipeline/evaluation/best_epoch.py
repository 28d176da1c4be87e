"""The metric that stands beside the loss of each epoch, and its best value, as pages, logs and reports show them."""

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.evaluation.answers import Metric
from pipeline.evaluation.multilabel import MEAN_AVERAGE_PRECISION
from pipeline.evaluation.one_label import ACCURACY
from pipeline.evaluation.regression import MAE

if TYPE_CHECKING:
    import pandas

EPOCH_METRICS = (ACCURACY, MAE)
"""The metrics that stand beside the loss in the record. Each task has one of them."""


def epoch_metric(names: Container[str]) -> Metric:
    """Return the metric beside the loss, by the names of the values of an epoch, or by their table."""
    return next((each for each in EPOCH_METRICS if each.key in names or each.validation_key in names), ACCURACY)


class BestEpoch(NamedTuple):
    """The best validation of a training so far."""

    epoch: int
    metric: Metric
    value: float

    @property
    def title(self) -> str:
        """The name of the value."""
        return f"best validation {self.metric.title}"

    @property
    def text(self) -> str:
        """The value as text."""
        return self.metric.text(self.value)


def best_epoch(epochs: "pandas.DataFrame") -> BestEpoch | None:
    """Return the best validation of the epochs in the record; None if there is none yet."""
    metric = epoch_metric(epochs)
    if metric.validation_key not in epochs or not epochs[metric.validation_key].notna().any():
        return None
    values = epochs[metric.validation_key].to_numpy(dtype=float)
    best = int((np.nanargmin if metric.lower_is_better else np.nanargmax)(values))
    return BestEpoch(int(epochs["step"].to_numpy()[best]), metric, float(values[best]))


def test_figure(metric: Metric, result: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return title and text of a figure on the test split, by the content of `result.json`; None if it has none."""
    value = (result.get("metrics") or {}).get(metric.key_on("test"))
    return None if value is None else (f"test {metric.title}", metric.text(value))


def headline(metrics: Mapping[str, Any], split: str) -> str:
    """Return the figure that says most of a model, by `metrics` and `split` of `result.json`; empty if there is none.

    If images have several labels, the accuracy is the exact match, which says little.
    """
    values = ((each, metrics.get(each.key_on(split))) for each in (MAE, MEAN_AVERAGE_PRECISION, ACCURACY))
    texts = (f"{each.text(value)} {each.title}" for each, value in values if isinstance(value, int | float))
    return next(texts, "")
