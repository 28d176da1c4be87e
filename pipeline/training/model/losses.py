"""Losses of examples: those that are trained on, and the plain cross-entropies for the validation."""

from collections.abc import Callable, Sequence

import tensorflow as tf

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Takes labels and logits (float32, (n, classes)), and returns the loss of each example (float32, (n,)).

Labels are int32, (n,). If an image may have several, they are uint8, (n, classes), 0 or 1."""


def training_loss(smoothing: float, class_counts: Sequence[int] | None) -> Loss:
    """Return the cross-entropy for examples of one label, smoothed by 0 to 1, and weighted if there are counts."""
    weights = None if class_counts is None else balanced_weights(class_counts)

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        losses = smoothed_cross_entropy(labels, logits, smoothing) if smoothing else cross_entropy(labels, logits)
        return losses if weights is None else losses * tf.gather(tf.constant(weights, tf.float32), labels)

    return loss


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return minus the logarithm of the probability of the label."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def smoothed_cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Return the cross-entropy to labels of which a share of `smoothing` (0 to 1) is spread evenly over all classes."""
    classes = logits.shape[-1]
    share = smoothing / classes
    targets = tf.one_hot(labels, classes, on_value=1 - smoothing + share, off_value=share)
    return tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)


def sigmoid_cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float = 0.0) -> tf.Tensor:
    """Return the binary cross-entropy of each class (does the example have this label?), as a mean over the classes.

    Labels are moved towards one half by `smoothing` (0 to 1).
    """
    targets = tf.cast(labels, logits.dtype) * (1 - smoothing) + smoothing / 2
    # Not Keras' own: if a model ends in a sigmoid, it takes the numbers before that for the logits.
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits), axis=-1)


def balanced_weights(counts: Sequence[int]) -> list[float]:
    """Return the weight of an example of each class, so that all classes weigh the same, and examples 1 on average."""
    # Classes without training images would otherwise lower the weight of all others.
    present = sum(count > 0 for count in counts)
    return [sum(counts) / (present * count) if count else 0.0 for count in counts]
