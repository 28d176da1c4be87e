"""Losses of examples: what is trained on, and the plain cross-entropies, by which a validation is told."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from pipeline.config import Settings
from pipeline.dataset.manifest import Dataset

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""From labels (int32, (n,), or of several an image uint8, (n, classes), 0 or 1) and logits (float32, (n, classes)) to a
loss an example (float32, (n,))."""


def training_loss(settings: Settings, dataset: Dataset) -> Loss:
    """The loss that the settings want trained on."""
    smoothing = settings.label_smoothing
    weights = balanced_weights(dataset.class_counts("train")) if settings.class_weights == "balanced" else None

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        losses = smoothed_cross_entropy(labels, logits, smoothing) if smoothing else cross_entropy(labels, logits)
        return losses if weights is None else losses * tf.gather(tf.constant(weights, tf.float32), labels)

    return loss


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """The plain one: minus the logarithm of the probability that the label was given."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def smoothed_cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """The cross-entropy where a share of `smoothing` (0 to 1) of each label is spread evenly over all classes."""
    classes = logits.shape[-1]
    each = smoothing / classes
    wanted = tf.one_hot(labels, classes, on_value=1 - smoothing + each, off_value=each)
    return tf.nn.softmax_cross_entropy_with_logits(labels=wanted, logits=logits)


def sigmoid_cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """That of several labels: of each class that of its yes or no, and the mean over all classes."""
    wanted = tf.cast(labels, logits.dtype)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted, logits=logits), axis=-1)


def smoothed_sigmoid(smoothing: float) -> Loss:
    """The same where each yes and no is moved towards one half by a share of `smoothing` (0 to 1)."""

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return sigmoid_cross_entropy(tf.cast(labels, logits.dtype) * (1 - smoothing) + smoothing / 2, logits)

    return loss


def balanced_weights(counts: Sequence[int]) -> list[float]:
    """What an example of each class weighs, by the examples of the classes: in sum all the same, 1 on average."""
    present = sum(count > 0 for count in counts)
    return [sum(counts) / (present * count) if count else 0.0 for count in counts]
