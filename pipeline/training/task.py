"""What is asked of a model, as the data set decides: the one label of an image, or all labels that it has."""

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
    """What differs from one kind of question to the other. Labels are those of a batch, (n,) or (n, classes)."""

    def training_loss(self, settings: Settings, dataset: Dataset) -> Loss:
        """The loss that the settings want trained on."""

    def loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """The plain one, by which a validation is told, (n,)."""

    def correct(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return which predictions are correct, float32 of (n,), 0 or 1."""

    def probabilities(self) -> keras.Layer:
        """From logits to probabilities."""

    def is_better(self, values: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """Whether the model of one epoch is better than that of another."""

    def served(self, probabilities: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """What the exported model says beside its probabilities, (n, classes); `names` are those of the classes."""


class OneLabel:
    """Which of the classes an image is of: their probabilities are 1 in sum."""

    def training_loss(self, settings: Settings, dataset: Dataset) -> Loss:
        """The cross-entropy, smoothed and weighted."""
        return training_loss(settings, dataset)

    def loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """The cross-entropy."""
        return cross_entropy(labels, logits)

    def correct(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Whether the likeliest class is the true one."""
        return tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), labels), tf.float32)

    def probabilities(self) -> keras.Layer:
        """A softmax."""
        return keras.layers.Softmax(name="probabilities")

    def is_better(self, values: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """By the accuracy of the validation."""
        return values["val_accuracy"] > best["val_accuracy"]

    def served(self, probabilities: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """The likeliest `label` (string, (n,)) and its `probability` (float32, (n,))."""
        return {
            "label": tf.gather(names, tf.argmax(probabilities, axis=-1)),
            "probability": tf.reduce_max(probabilities, axis=-1),
        }


class SeveralLabels:
    """Which labels an image has: each has a probability of its own."""

    def training_loss(self, settings: Settings, dataset: Dataset) -> Loss:
        """The sigmoid cross-entropy, smoothed; classes have no weights here."""
        return smoothed_sigmoid(settings.label_smoothing) if settings.label_smoothing else sigmoid_cross_entropy

    def loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """The sigmoid cross-entropy, the mean over all classes."""
        return sigmoid_cross_entropy(labels, logits)

    def correct(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Whether all labels of an example were predicted, and no other: the exact match."""
        return tf.cast(tf.reduce_all(tf.equal(labels > 0, logits > 0), axis=-1), tf.float32)

    def probabilities(self) -> keras.Layer:
        """A sigmoid a class."""
        return keras.layers.Activation("sigmoid", name="probabilities")

    def is_better(self, values: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """By the loss of the validation: few images are an exact match where there are many labels."""
        return values["val_loss"] < best["val_loss"]

    def served(self, probabilities: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """The `labels` over one half (string, (n, most of an image)), the likeliest first, filled up with ""."""
        values, ranked = tf.math.top_k(probabilities, k=tf.shape(probabilities)[1])
        predicted = values > THRESHOLD
        most = tf.reduce_max(tf.math.count_nonzero(predicted, axis=1, dtype=tf.int32))
        return {"labels": tf.where(predicted, tf.gather(names, ranked), "")[:, :most]}


ONE_LABEL = OneLabel()


def task_of(form: RecordFormat) -> Task:
    """What a model is asked of the images of a data set, by its records."""
    return SeveralLabels() if form.multi_label else ONE_LABEL
