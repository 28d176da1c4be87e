"""The evaluation of a model on batches: in their order, without their padding, on one device and on two."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.evaluation.metrics import Predictions, joined
from pipeline.training.evaluate import predicted

ROOT = Path(__file__).resolve().parents[2]
SHARES = [(255, 0, 0), (51, 153, 51), (0, 51, 204), (153, 51, 51), (51, 153, 51), (0, 0, 255), (204, 51, 0)]
LABELS = [0, 1, 1, 2, 1, 2, 0]


def model() -> keras.Model:
    """The probabilities of three classes are how much red, green and blue there is, 255 of all together."""
    images = keras.Input((4, 4, 3))
    mean = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(images))
    return keras.Model(images, mean)


def batches() -> tf.data.Dataset:
    """Two batches of four; the last example is padding, and of a class that the label does not say."""
    images = np.tile(np.array([*SHARES, (255, 0, 0)], np.uint8)[:, np.newaxis, np.newaxis], (1, 4, 4, 1))
    labels, weights = np.array([*LABELS, 2], np.int32), np.array([1] * 7 + [0], np.float32)
    return tf.data.Dataset.from_tensor_slices((images, labels, weights)).batch(4, drop_remainder=True)


def assert_predicted(strategy: tf.distribute.Strategy) -> None:
    with strategy.scope():
        made = model()
    kept = joined(predicted(strategy, made, strategy.experimental_distribute_dataset(batches()), Predictions))
    assert kept.label.tolist() == LABELS
    assert kept.predicted.tolist() == [0, 1, 2, 0, 1, 2, 0]
    of_labels = [shares[label] / 255 for shares, label in zip(SHARES, LABELS, strict=True)]
    assert np.allclose(kept.label_probability, of_labels, atol=1e-6)
    assert np.allclose(kept.probability, np.max(SHARES, axis=1) / 255, atol=1e-6)


def test_examples_are_kept_in_their_order_and_padding_is_not():
    assert_predicted(tf.distribute.OneDeviceStrategy("/cpu:0"))


TWO_DEVICES = """
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tests.training.test_evaluate import assert_predicted
assert_predicted(tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]))
"""


@pytest.mark.long
def test_two_devices_keep_the_order_too():
    """In a process of its own: TensorFlow can divide a processor only before it has used it."""
    subprocess.run([sys.executable, "-c", TWO_DEVICES], cwd=ROOT, check=True, timeout=300)
