"""The process of a training server whose input resizes each image in Python: `slow_resizing.py RUN_FOLDER PARENT`.

It is `python -m pipeline.training`, but for a function that a user could have written into the input.
"""

import runpy
import time

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.input import decode

PYTHON_S = 0.004
"""Seconds of a core that Python takes for an image."""
_resampled = decode.resampled


def slowly(image: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return a resized image, after Python has computed something with it."""
    found = tf.numpy_function(_computed, [_resampled(image, size)], tf.uint8)
    return tf.ensure_shape(found, [None, None, 3])


def _computed(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    end = time.thread_time() + PYTHON_S
    while time.thread_time() < end:
        sum(number * number for number in range(1000))
    return image


if __name__ == "__main__":
    decode.resampled = slowly
    runpy.run_module("pipeline.training", run_name="__main__")
