"""Base classes of the evaluation: a metric, and the predictions of a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from pipeline.evaluation.estimates import Array, Estimate, Statistic, affordable_resamples
from pipeline.evaluation.scales import Scale, four_digits, significant


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric: its names, its scale, which values are better, and how it is computed."""

    key: str
    """Its name in `evaluation.json` and in the record."""
    title: str
    """Its name in sentences, tables and logs."""
    meaning: str
    """Its name in the report, which explains it."""
    scale: Scale
    statistic: Callable[[Any], Statistic | None]
    """Takes the predictions of a model. It returns None if they do not define the metric."""
    lower_is_better: bool = False
    min_classes: int = 0
    """With fewer classes, the metric says nothing."""

    @property
    def validation_key(self) -> str:
        """The name of its validation value in `result.json` and in the record."""
        return self.key_on("validation")

    def key_on(self, split: str) -> str:
        """Return the name of its value on a split, validation or test, in `result.json`."""
        return f"{'val' if split == 'validation' else split}_{self.key}"

    def rounded(self, estimate: Estimate) -> Estimate:
        """Return an estimate as it is stored."""
        return Estimate(*(significant(estimate) if self.scale == "amount" else np.round(estimate, 6).tolist()))

    def text(self, value: float, sign: str = "") -> str:
        """Write a value: 61.2%, 0.873, or an amount with four digits. `sign="+"` also writes the sign of a gain."""
        if self.scale == "share":
            return f"{value:{sign}.1%}"
        return f"{value:{sign}.3f}" if self.scale == "score" else four_digits(value, sign)

    def interval_text(self, estimate: Estimate) -> str:
        """Write the ends of an interval."""
        return f"{self.text(estimate.low)} to {self.text(estimate.high)}"


@dataclass(frozen=True, eq=False)
class Answers(ABC):
    """The predictions of a model, columns with a row for each example, and how they are judged."""

    metrics: ClassVar[tuple[Metric, ...]]
    """All metrics, in the order of the report. A new one only needs to be declared here."""
    scored_by: ClassVar[Metric]
    """The metric by which two models are compared."""
    noun: ClassVar[str]
    """What an example is: an image, or a row."""
    label: Array
    """The true labels."""

    @classmethod
    @abstractmethod
    def of_batch(cls, labels: Array, probabilities: Array) -> Self:
        """Return the predictions of a batch: labels as in training, and probabilities, (n, classes).

        In a regression, labels and predictions are in the unit of the label, and there is one prediction, (n, 1).
        """

    @staticmethod
    def of_ids(ids: Sequence[tuple[Any, ...]], classes: int) -> Array:
        """Return the labels of a batch in the form of training, from the ids (or the value) of each example."""
        return np.array([first for first, *_ in ids])

    @abstractmethod
    def baseline(self) -> Self:
        """Return the answers of a model that knows only how often each label occurs among these examples.

        It gives the same answer to every example: the best one by `scored_by`. A model that learned something from its
        input is better. So is any model whose `difference` from these answers is surely a gain.
        """

    @abstractmethod
    def difference(self, champion: Any, seed: int) -> Estimate:
        """Return the score less that of another model on the same examples, with its bootstrap interval."""

    @abstractmethod
    def details(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the content of `evaluation.json` beside the figures."""

    @property
    def columns(self) -> dict[str, Any]:
        """The columns by their names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def resamples(self) -> int:
        """Number of resamples for an interval."""
        return affordable_resamples(len(self.label))

    @property
    def score(self) -> float:
        """The figure by which two models are compared."""
        (statistic,) = self.measures([self.scored_by]).values()
        return float(statistic(np.ones(len(self.label))))

    def measures(self, metrics: Iterable[Metric]) -> dict[Metric, Statistic]:
        """Return how to compute each of these metrics that the predictions define."""
        statistics = ((metric, metric.statistic(self)) for metric in metrics)
        return {metric: statistic for metric, statistic in statistics if statistic}
