"""Base classes of the evaluation: a metric, and the predictions of a model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np

from pipeline.evaluation.blocks import Blocks, blocks_of
from pipeline.evaluation.estimates import MAX_MISTAKES, Array, Estimate
from pipeline.evaluation.estimators import Estimator
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
    estimator: Estimator
    lower_is_better: bool = False
    min_classes: int = 0
    """With fewer classes, the metric says nothing."""
    baseline: str = ""
    """What the model of its baseline answers, if it is another one than `Answers.baseline_name`."""

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

    def difference_text(self, difference: Estimate) -> str:
        """Write a difference of two values, with its interval: of shares, in percentage points."""
        if self.scale == "share":
            value, low, high = (f"{points:+.1f}" if (points := round(100 * share, 1)) else "0" for share in difference)
            return f"{value} points ({low} to {high})"
        value, low, high = (self.text(each, "+") for each in difference)
        return f"{value} ({low} to {high})"


@dataclass(frozen=True, eq=False)
class Answers(ABC):
    """The predictions of a model, columns with a row for each example, and how they are judged."""

    metrics: ClassVar[tuple[Metric, ...]]
    """All metrics, in the order of the report. A new one only needs to be declared here."""
    scored_by: ClassVar[Metric]
    """The metric by which two models are compared."""
    headline: ClassVar[Metric]
    """The metric that says most to people."""
    baseline_name: ClassVar[str]
    """What the model of `baseline` answers."""
    noun: ClassVar[str]
    """What an example is: an image, or a row."""
    label: Array
    group: Array = field(default_factory=lambda: np.zeros(0, np.int32), kw_only=True)
    """int32 of (n,): examples with the same number belong together, such as the rows of a customer. Empty if the
    dataset has no groups."""

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
    def details(self, names: Sequence[str], blocks: Blocks) -> dict[str, Any]:
        """Return the content of `evaluation.json` beside the figures."""

    @abstractmethod
    def wrong(self) -> Array:
        """Return the positions of all examples with a wrong answer, the most wrong one first."""

    @abstractmethod
    def mistakes_at(self, positions: Array) -> list[dict[str, Any]]:
        """Return the answer and the label of some examples, each as a row of `most_wrong` in `evaluation.json`."""

    @abstractmethod
    def classes_of_mistakes(self, positions: Array) -> dict[str, Array]:
        """Return the classes by which people look through wrong answers, by title: the id of each of these examples.

        A regression has none.
        """

    def most_wrong(self) -> list[dict[str, Any]]:
        """Return the MAX_MISTAKES examples with the most wrong answers."""
        return self.mistakes_at(self.wrong()[:MAX_MISTAKES])

    def difference(self, champion: Self, seed: int) -> Estimate:
        """Return the score less that of another model on the same examples, with its interval.

        Examples that are hard for both models do not widen the interval. The groups of the champion do not count.
        Raises ValueError if the examples differ.
        """
        if not np.array_equal(self.label, champion.label):
            raise ValueError("the two models were evaluated on different examples")
        metric = self.scored_by
        return metric.rounded(metric.estimator.difference(self, champion, self.blocks(seed)))

    @property
    def columns(self) -> dict[str, Any]:
        """The columns by their names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def answers_read(self) -> int:
        """Number of answers that the most expensive metric reads."""
        return len(self.label)

    @property
    def score(self) -> float:
        """The figure by which two models are compared."""
        value = self.scored_by.estimator.value(self)
        return float("nan") if value is None else value

    @property
    def units(self) -> Array:
        """The number of the unit of each example: its group, or the example itself if there are no groups."""
        return self.group if len(self.group) else np.arange(len(self.label))

    def blocks(self, seed: int) -> Blocks:
        """Return the blocks from which the intervals follow."""
        return blocks_of(self.group, len(self.label), self.answers_read, seed)
