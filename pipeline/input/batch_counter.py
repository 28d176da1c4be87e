"""Counts the batches that an input pipeline has made. The ready batches are those that the training has not taken."""

from typing import Any

import tensorflow as tf


class BatchCounter:
    """Counts the batches that pass a place of an input pipeline."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        """The number of batches that can be ready behind that place."""
        with tf.device("CPU:0"):
            self._made = tf.Variable(0, trainable=False, dtype=tf.int64)

    def counted(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Return the same batches, which are counted as they pass."""

        def count(*batch: Any) -> Any:
            with tf.control_dependencies([self._made.assign_add(1, read_value=False)]):
                return tf.nest.map_structure(tf.identity, batch)  # No copy: TensorFlow passes the memory on.

        return batches.map(count)

    def ready_pct(self, taken: int) -> float:
        """Return how many batches are ready, in percent of the capacity, if `taken` batches were taken."""
        # TensorFlow may make a batch more than the capacity. The count of a new attempt can be behind `taken`.
        return 100 * min(1.0, max(0, int(self._made) - taken) / self.capacity)
