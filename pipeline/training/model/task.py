"""The task of a model, which the dataset decides: one label, all labels of an image, or a number."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from pipeline.evaluation.multilabel import THRESHOLD
from pipeline.evaluation.one_label import ACCURACY
from pipeline.evaluation.regression import MAE
from pipeline.training.model.losses import Loss, cross_entropy, sigmoid_cross_entropy, training_loss


class Task(Protocol):
    """What differs from one task to the other. Labels are those of a batch, (n,) or (n, classes).

    Logits are what the model gives, (n, classes), or for a regression (n, 1).
    """

    metric: str
    """Name of the mean of `measured` in the record, beside the loss; that of a validation begins with `val_`."""

    @abstractmethod
    def training_loss(self, smoothing: float, class_counts: Sequence[int] | None) -> Loss:
        """Return the loss that is trained on.

        Args:
            smoothing: How far labels are smoothed, 0 to 1.
            class_counts: Training examples of each class, if all classes weigh the same; None if all examples do.
        """

    def targets(self, labels: tf.Tensor) -> tf.Tensor:
        """Return the labels as a loss of the user's own takes them."""
        return labels

    @abstractmethod
    def loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the plain loss of each example, (n,), which a validation reports."""

    @abstractmethod
    def measured(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the metric of each example, float32 of (n,): which predictions are correct, or their errors."""

    @abstractmethod
    def predictions(self) -> keras.Layer:
        """Return a layer from logits to predictions: probabilities, or values."""

    def is_better(self, values: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """Return whether an epoch with these values has a better model than the best one so far.

        The loss of the validation decides. Of classes, it is the log loss, by which models are judged. With many labels
        for each image, few predictions are an exact match.
        """
        return values["val_loss"] < best["val_loss"]

    @abstractmethod
    def served(self, predictions: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return what an exported model returns for its predictions, (n, classes); `names` are of the classes."""


class Classes(Task):
    """Each example has one class: the probabilities of all classes add up to 1. This class serves rows of tables."""

    metric = ACCURACY.key

    def training_loss(self, smoothing: float, class_counts: Sequence[int] | None) -> Loss:
        """Return the cross-entropy, smoothed and weighted."""
        return training_loss(smoothing, class_counts)

    def loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy."""
        return cross_entropy(labels, logits)

    def measured(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return whether the likeliest class is the true one."""
        # As int64: TensorFlow compares int32 on the host, which waits for the GPU in the middle of the step.
        return tf.cast(tf.equal(tf.argmax(logits, axis=-1), tf.cast(labels, tf.int64)), tf.float32)

    def predictions(self) -> keras.Layer:
        """Return a softmax."""
        return keras.layers.Softmax(name="probabilities")

    def served(self, probabilities: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the likeliest `label` (string, (n,)), its `probability` (float32, (n,)), and all `probabilities`."""
        return {
            "label": tf.gather(names, tf.argmax(probabilities, axis=-1)),
            "probability": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities,
        }


class OneLabel(Classes):
    """Each image has one label."""

    def is_better(self, values: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """Compare by the accuracy of the validation."""
        return values["val_accuracy"] > best["val_accuracy"]


class SeveralLabels(Task):
    """An image may have several labels: each has a probability of its own."""

    metric = ACCURACY.key

    def training_loss(self, smoothing: float, class_counts: Sequence[int] | None) -> Loss:
        """Return the sigmoid cross-entropy, smoothed. Classes have no weights here."""
        return partial(sigmoid_cross_entropy, smoothing=smoothing)

    def loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the sigmoid cross-entropy, the mean over all classes."""
        return sigmoid_cross_entropy(labels, logits)

    def measured(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return whether exactly the labels of an example were predicted."""
        return tf.cast(tf.reduce_all(tf.equal(labels > 0, logits > 0), axis=-1), tf.float32)

    def predictions(self) -> keras.Layer:
        """Return a sigmoid for each class."""
        return keras.layers.Activation("sigmoid", name="probabilities")

    def served(self, probabilities: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the `labels` over one half, and all `probabilities`.

        The labels are string of (n, most of an image), the likeliest first, filled up with "".
        """
        values, ranked = tf.math.top_k(probabilities, k=tf.shape(probabilities)[1])
        # Sorted by probability, so the labels over one half come first in each row.
        predicted = values > THRESHOLD
        max_labels = tf.reduce_max(tf.math.count_nonzero(predicted, axis=1, dtype=tf.int32))
        labels = tf.where(predicted, tf.gather(names, ranked), "")[:, :max_labels]
        return {"labels": labels, "probabilities": probabilities}


class Regression(Task):
    """Each example has a number. The model gives it less the mean of the training labels, over their deviation.

    `mean` and the standard `deviation` are in the unit of the labels.
    """

    metric = MAE.key

    def __init__(self, mean: float, deviation: float) -> None:
        self._mean, self._deviation = mean, deviation

    def training_loss(self, smoothing: float, class_counts: Sequence[int] | None) -> Loss:
        """Return the squared error. No setting changes it."""
        return self.loss

    def targets(self, labels: tf.Tensor) -> tf.Tensor:
        """Return the labels less their mean, in units of the deviation: float32, (n,)."""
        return self._centered(labels) / self._deviation

    def loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the squared error, in units of the deviation."""
        return tf.square(logits[:, 0] - self.targets(labels))

    def measured(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the absolute error, in the unit of the label."""
        return tf.abs(logits[:, 0] * self._deviation - self._centered(labels))

    def predictions(self) -> keras.Layer:
        """Return a layer from what the model gives to values in the unit of the label."""
        # In float64 whatever the policy, because float32 holds 10^9 only in steps of 64. As arrays, because TensorFlow
        # would make float32 of a float of Python, and Keras saves an array without a dimension as such a float.
        deviation, mean = np.array([self._deviation], np.float64), np.array([self._mean], np.float64)
        return keras.layers.Rescaling(deviation, mean, dtype="float64", name="value")

    def served(self, values: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the `value` (float64, (n,))."""
        return {"value": values[:, 0]}

    def _centered(self, labels: tf.Tensor) -> tf.Tensor:
        """Return the labels less their mean, float32. The difference of large labels needs float64."""
        return tf.cast(tf.cast(labels, tf.float64) - self._mean, tf.float32)


ONE_LABEL = OneLabel()
