"""What differs between batches of images and of rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import tensorflow as tf

from pipeline.config.example_kinds import tensors_of
from pipeline.dataset.manifest import Dataset
from pipeline.input.order import ServerSplit


class TrainingExamples(Protocol):
    """The training examples of a split."""

    @abstractmethod
    def epoch(self, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        """Return the examples of an epoch, then its padding."""

    @abstractmethod
    def batches(self, examples: tf.data.Dataset, start: int, numbered: bool) -> tf.data.Dataset:
        """Return batches of the examples of all epochs, the first of which gets the number `start`.

        They have the form of the batches of `training_batches` with the same `numbered`.
        """


class BatchKind(ABC):
    """A kind of examples, as far as the input pipeline needs it."""

    @abstractmethod
    def training(self, split: ServerSplit) -> TrainingExamples:
        """Return the training examples of a split."""

    @abstractmethod
    def stages(self, split: ServerSplit) -> Mapping[str, TrainingExamples]:
        """Return the training examples of a split, cut after each stage, by the name of the stage, in their order.

        "batch" comes first: batches of constants. The last ones are whole. What is behind a cut handles constants.
        """

    @abstractmethod
    def validation(self, split: ServerSplit, records: tf.data.Dataset) -> tf.data.Dataset:
        """Return batches of (features, labels, weights) of the numbered records of a split."""

    @abstractmethod
    def reader(self, dataset: Dataset) -> Callable[[tf.Tensor], object]:
        """Return a function that reads some records (string, (n,)) as the batches do, but images whole and in turn.

        It runs eagerly and in a graph. TensorFlow raises InvalidArgumentError if it cannot read one of the records.
        """


def batch_kind_of(dataset: Dataset) -> BatchKind:
    """Return the kind of the examples of a dataset."""
    return cast(BatchKind, tensors_of(dataset.kind))
