"""Measures what it costs to keep images on the local disk: to write each one once, and to read it in a later epoch."""

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from pipeline.input.images import GROUP, by_position

MAX_BYTES, MAX_IMAGES = 64_000_000, 2048
"""Limits of the images that are written. They stay in the page cache."""
PASSES = 8
"""How often they are read."""


class DiskCacheCosts(NamedTuple):
    """What an image costs, in microseconds."""

    write_us: float
    """CPU time to write it. One thread writes."""
    read_cpu_us: list[float]
    """CPU time to read it, of each pass."""
    read_us: float
    """Time until it was read, with all threads that read."""
    images: int


def measure_disk_cache(image_bytes: int, folder: Path) -> DiskCacheCosts:
    """Write images of this size into a temporary folder in `folder`, as a training does, and read them several times.

    Raises OSError or tf.errors.OpError if the disk is full or cannot be written.
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
    return DiskCacheCosts(
        written.cpu_us, [each.cpu_us for each in passes], sum(each.us for each in passes) / PASSES, count
    )


class _Pass(NamedTuple):
    cpu_us: float
    us: float


def _pass(images: tf.data.Dataset, count: int) -> _Pass:
    cpu, clock = time.process_time(), time.perf_counter()
    for _ in images:
        pass
    return _Pass(1e6 * (time.process_time() - cpu) / count, 1e6 * (time.perf_counter() - clock) / count)
