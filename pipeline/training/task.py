"""The task of a model, which the dataset decides: the one label of an image, or all labels that it has."""

from collections.abc import Mapping
from typing import Protocol

import keras
import tensorflow as tf

from pipeline.config import Settings
from pipeline.dataset.manifest import Dataset
from pipeline.evaluation.multilabel import THRESHOLD
from pipeline.records.format import RecordFormat
from pipeline.training.losses import Loss, cross_entropy, sigmoid_cross_entropy, smoothed_sigmoid, training_loss


class Task(Protocol):
    """What differs from one task to the other. Labels are those of a batch, (n,) or (n, classes)."""

    def training_loss(self, settings: Settings, dataset: Dataset) -> Loss:
        """Return the loss that the settings ask for."""

    def loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the plain loss of each example, (n,), which a validation reports."""

    def correct(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return which predictions are correct, float32 of (n,), 0 or 1."""

    def probabilities(self) -> keras.Layer:
        """Return a layer from logits to probabilities."""

    def is_better(self, values: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """Return whether an epoch with these values has a better model than the best one so far."""

    def served(self, probabilities: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return what an exported model returns beside its probabilities, (n, classes); `names` are of the classes."""


class OneLabel:
    """Each image has one label: the probabilities of all classes add up to 1."""

    def training_loss(self, settings: Settings, dataset: Dataset) -> Loss:
        """Return the cross-entropy, smoothed and weighted."""
        return training_loss(settings, dataset)

    def loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy."""
        return cross_entropy(labels, logits)

    def correct(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return whether the likeliest class is the true one."""
        return tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), labels), tf.float32)

    def probabilities(self) -> keras.Layer:
        """Return a softmax."""
        return keras.layers.Softmax(name="probabilities")

    def is_better(self, values: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """Compare by the accuracy of the validation."""
        return values["val_accuracy"] > best["val_accuracy"]

    def served(self, probabilities: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the likeliest `label` (string, (n,)) and its `probability` (float32, (n,))."""
        return {
            "label": tf.gather(names, tf.argmax(probabilities, axis=-1)),
            "probability": tf.reduce_max(probabilities, axis=-1),
        }


class SeveralLabels:
    """An image may have several labels: each has a probability of its own."""

    def training_loss(self, settings: Settings, dataset: Dataset) -> Loss:
        """Return the sigmoid cross-entropy, smoothed. Classes have no weights here."""
        return smoothed_sigmoid(settings.label_smoothing) if settings.label_smoothing else sigmoid_cross_entropy

    def loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the sigmoid cross-entropy, the mean over all classes."""
        return sigmoid_cross_entropy(labels, logits)

    def correct(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return whether exactly the labels of an example were predicted."""
        return tf.cast(tf.reduce_all(tf.equal(labels > 0, logits > 0), axis=-1), tf.float32)

    def probabilities(self) -> keras.Layer:
        """Return a sigmoid for each class."""
        return keras.layers.Activation("sigmoid", name="probabilities")

    def is_better(self, values: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """Compare by the loss of the validation: with many labels, few predictions are an exact match."""
        return values["val_loss"] < best["val_loss"]

    def served(self, probabilities: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the `labels` over one half (string, (n, most of an image)), the likeliest first, filled up with ""."""
        values, ranked = tf.math.top_k(probabilities, k=tf.shape(probabilities)[1])
        # Sorted by probability, so the labels over one half come first in each row.
        predicted = values > THRESHOLD
        max_labels = tf.reduce_max(tf.math.count_nonzero(predicted, axis=1, dtype=tf.int32))
        return {"labels": tf.where(predicted, tf.gather(names, ranked), "")[:, :max_labels]}


ONE_LABEL = OneLabel()


def task_of(form: RecordFormat) -> Task:
    """Return the task of a dataset, by the format of its records."""
    return SeveralLabels() if form.multi_label else ONE_LABEL
