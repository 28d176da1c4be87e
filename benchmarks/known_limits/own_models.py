"""Users' own models and callbacks that slow down a training, for the jobs of `benchmarks.verdicts`."""

import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

PAUSE_S, LONG_PAUSE_S = 0.04, 0.25
EPOCH_S = 4.0
SEARCHED = 60
"""Length of a loop in Python, in units of 10,000 rounds: about 30 ms for each step."""


def through_python(image_size: int, classes: int) -> keras.Model:
    """Return a model with a layer that calls Python code."""
    images = keras.Input((image_size, image_size, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(images))
    searched = _Searched()(pooled)
    return keras.Model(images, keras.layers.Dense(classes)(searched))


def heavy(image_size: int, classes: int) -> keras.Model:
    """Return a model of 30 million weights that computes little: its checkpoints take long, but not its steps."""
    images = keras.Input((image_size, image_size, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(images)
    wide = keras.layers.Dense(5_000)(keras.layers.Dense(5_000)(pooled))
    return keras.Model(images, keras.layers.Dense(classes)(wide))


class _Searched(keras.layers.Layer):
    """Returns its input after a search in Python."""

    def call(self, values: tf.Tensor) -> tf.Tensor:
        """Return the same values."""
        searched = tf.py_function(_search, [values], tf.float32)
        return tf.ensure_shape(searched, values.shape)


def _search(values: tf.Tensor) -> tf.Tensor:
    sum(number * number for number in range(SEARCHED * 10_000))
    return values


class _Each(keras.callbacks.Callback):
    """Does something after each batch, or each epoch."""

    def __init__(self, batch_s: float = 0.0, epoch_s: float = 0.0, computes: bool = False) -> None:
        super().__init__()
        self._batch_s, self._epoch_s, self._computes = batch_s, epoch_s, computes

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Work after a batch."""
        self._work(self._batch_s)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Work after an epoch."""
        self._work(self._epoch_s)

    def _work(self, seconds: float) -> None:
        if not self._computes:
            time.sleep(seconds)
            return
        end, matrix = time.perf_counter() + seconds, np.random.default_rng(0).random((200, 200))
        while time.perf_counter() < end:
            matrix @ matrix


def pause_after_batches(folder: Path) -> list[keras.callbacks.Callback]:
    """Return a callback that waits after each batch, as for a server."""
    return [_Each(batch_s=PAUSE_S)]


def long_pause_after_batches(folder: Path) -> list[keras.callbacks.Callback]:
    """Return a callback that waits for longer than a step after each batch."""
    return [_Each(batch_s=LONG_PAUSE_S)]


def compute_after_batches(folder: Path) -> list[keras.callbacks.Callback]:
    """Return a callback that computes after each batch."""
    return [_Each(batch_s=PAUSE_S, computes=True)]


def pause_after_epochs(folder: Path) -> list[keras.callbacks.Callback]:
    """Return a callback that waits after each epoch, as for an upload."""
    return [_Each(epoch_s=EPOCH_S)]


def compute_after_epochs(folder: Path) -> list[keras.callbacks.Callback]:
    """Return a callback that computes after each epoch."""
    return [_Each(epoch_s=EPOCH_S, computes=True)]
