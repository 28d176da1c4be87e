"""Measures what kept images cost, on the disk and in memory."""

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.evaluation.blocks import geometric_mean
from pipeline.input.images import GROUP, by_position
from pipeline.runs.measured_caches import MeasuredCaches

MAX_BYTES, MAX_IMAGES = 64_000_000, 2048
"""Limits of the images that are written. They stay in the page cache."""
SHUFFLED, PASSES = 16_384, 8
"""How many images are shuffled in memory, and how often. Those on the disk are read as often."""


def measured_caches(image_bytes: int, folder: Path) -> MeasuredCaches:
    """Return what it costs to keep images of this size, and to read them again in later epochs.

    Images on the disk are in a temporary folder in `folder`. Raises OSError or tf.errors.OpError if the disk is full or
    cannot be written.
    """
    count = max(GROUP, min(MAX_IMAGES, MAX_BYTES // image_bytes) // GROUP * GROUP)
    image = tf.zeros([image_bytes], tf.uint8)
    images = tf.data.Dataset.range(count).map(lambda number: (image, tf.constant(0), number))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tenfold-cache-", dir=folder) as name, tf.device("CPU:0"):
        prefix = f"{name}/images"
        written = _pass(images.cache(prefix), count)
        read = by_position(prefix, tf.random.shuffle(tf.range(count, dtype=tf.int64), seed=0), images.element_spec)
        _pass(read, count)  # It traces the reading, and starts its threads.
        passes = [_pass(read, count) for _ in range(PASSES)]
        fill_us = _fill_us()
    return MeasuredCaches(
        write_us=written.cpu_us,
        read_cpu_us=geometric_mean(np.array([each.cpu_us for each in passes])),
        read_us=sum(each.us for each in passes) / PASSES,
        fill_us=fill_us,
    )


def _fill_us() -> float:
    """Return the time until an image in memory is in the buffer that shuffles all of them. Its size does not matter."""
    in_memory = tf.data.Dataset.range(SHUFFLED).map(lambda number: (tf.zeros([1], tf.uint8), 0, number)).cache()
    _pass(in_memory.skip(SHUFFLED), SHUFFLED)
    # The first image comes when the buffer is full. A training has one iterator for all epochs, too.
    first = tf.data.Dataset.range(PASSES).flat_map(lambda _: in_memory.shuffle(SHUFFLED, seed=0).take(1))
    return _pass(first, PASSES * SHUFFLED).us


class _Pass(NamedTuple):
    cpu_us: float
    us: float


def _pass(images: tf.data.Dataset, count: int) -> _Pass:
    cpu, clock = time.process_time(), time.perf_counter()
    for _ in images:
        pass
    return _Pass(1e6 * (time.process_time() - cpu) / count, 1e6 * (time.perf_counter() - clock) / count)
