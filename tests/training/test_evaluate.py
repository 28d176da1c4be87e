"""The predictions for batches are in order and without padding, on one device and on two."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.evaluation.metrics import joined
from pipeline.evaluation.one_label import Predictions
from pipeline.training.evaluate import predicted

ROOT = Path(__file__).resolve().parents[2]
SHARES = [(255, 0, 0), (51, 153, 51), (0, 51, 204), (153, 51, 51), (51, 153, 51), (0, 0, 255), (204, 51, 0)]
LABELS = [0, 1, 1, 2, 1, 2, 0]


def model() -> keras.Model:
    """Return a model whose three probabilities are the red, green and blue of an image, divided by 255."""
    images = keras.Input((4, 4, 3))
    mean = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(images))
    return keras.Model(images, mean)


def batches() -> tf.data.Dataset:
    """Return two batches of four. The last example is padding, with a label that does not match its image."""
    images = np.tile(np.array([*SHARES, (255, 0, 0)], np.uint8)[:, np.newaxis, np.newaxis], (1, 4, 4, 1))
    labels, weights = np.array([*LABELS, 2], np.int32), np.array([1] * 7 + [0], np.float32)
    return tf.data.Dataset.from_tensor_slices((images, labels, weights)).batch(4, drop_remainder=True)


def assert_predicted(strategy: tf.distribute.Strategy) -> None:
    with strategy.scope():
        made = model()
    outputs = joined(predicted(strategy, made, strategy.experimental_distribute_dataset(batches()), Predictions))
    assert outputs.label.tolist() == LABELS
    assert outputs.predicted.tolist() == [0, 1, 2, 0, 1, 2, 0]
    of_labels = [shares[label] / 255 for shares, label in zip(SHARES, LABELS, strict=True)]
    assert np.allclose(outputs.label_probability, of_labels, atol=1e-6)
    assert np.allclose(outputs.probability, np.max(SHARES, axis=1) / 255, atol=1e-6)


def test_predictions_keep_the_order_of_examples_and_drop_padding():
    assert_predicted(tf.distribute.OneDeviceStrategy("/cpu:0"))


TWO_DEVICES = """
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tests.training.test_evaluate import assert_predicted
assert_predicted(tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]))
"""


@pytest.mark.long
def test_predictions_of_two_devices_keep_the_order_of_examples():
    """The test needs a separate process: TensorFlow can split a processor only before it uses it."""
    subprocess.run([sys.executable, "-c", TWO_DEVICES], cwd=ROOT, check=True, timeout=300)
