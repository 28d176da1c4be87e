"""Losses of examples, compared with Keras and with manual calculations."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.dataset.manifest import Dataset, Split
from pipeline.records.format import RecordFormat
from pipeline.training.model.losses import balanced_weights, cross_entropy, smoothed_cross_entropy, training_loss

LABELS = tf.constant([0, 2, 2])
LOGITS = tf.constant([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0], [0.0, 0.0, 9.0]])
SPLITS = {"train": Split(8, 1, {"a": 2, "c": 6}, ())}
DATASET = Dataset("images", "1" * 16, ("a", "b", "c"), {}, RecordFormat(), {}, SPLITS, {}, {}, {}, {}, {}, {})
SHARES = np.array([2.0, 2 / 3, 2 / 3])
"""The weights of the three examples, for two classes of 2 and 6 examples."""


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_label_smoothing_equals_that_of_keras(smoothing: float):
    of_keras = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing, reduction="none")
    assert np.allclose(smoothed_cross_entropy(LABELS, LOGITS, smoothing), of_keras(tf.one_hot(LABELS, 3), LOGITS))


@pytest.mark.parametrize(
    ("counts", "weights"),
    [([5, 5], [1.0, 1.0]), ([1, 3], [2.0, 2 / 3]), ([0, 2, 6], [0.0, 2.0, 2 / 3]), ([0, 0], [0.0, 0.0])],
)
def test_balanced_weights_give_each_class_the_same_total_weight(counts: list[int], weights: list[float]):
    assert balanced_weights(counts) == pytest.approx(weights)


@pytest.mark.parametrize(
    ("smoothing", "class_counts", "losses"),
    [
        (0.0, None, cross_entropy(LABELS, LOGITS)),
        (0.2, None, smoothed_cross_entropy(LABELS, LOGITS, 0.2)),
        (0.0, DATASET.class_counts("train"), SHARES * cross_entropy(LABELS, LOGITS)),
        (0.2, DATASET.class_counts("train"), SHARES * smoothed_cross_entropy(LABELS, LOGITS, 0.2)),
    ],
)
def test_the_training_loss_is_smoothed_and_weighted(smoothing: float, class_counts: list | None, losses: tf.Tensor):
    assert np.allclose(training_loss(smoothing, class_counts)(LABELS, LOGITS), losses)
