"""Micro-batches: equal parts of a batch, one after another. A device needs the memory of one part only."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def summed(compute: Callable[..., Any], batch: tuple[tf.Tensor, ...], count: int, zeros: Any) -> Any:
    """Return the sums of what `compute` returns for each of `count` micro-batches.

    Args:
        compute: Takes the tensors of a micro-batch, and returns any nest of tensors.
        batch: Tensors whose first dimension is a multiple of `count`.
        count: How many micro-batches there are.
        zeros: What `compute` returns, all zero.
    """
    if count == 1:
        return compute(*batch)
    parts = [_split(tensor, count) for tensor in batch]

    def is_left(number: tf.Tensor, _: Any) -> tf.Tensor:
        return number < count

    def add(number: tf.Tensor, sums: Any) -> tuple[tf.Tensor, Any]:
        of_part = compute(*(part[number] for part in parts))
        return number + 1, tf.nest.map_structure(tf.add, sums, of_part)

    # One at a time. TensorFlow's default of ten iterations at once would need the memory of ten micro-batches.
    return tf.while_loop(is_left, add, (0, zeros), parallel_iterations=1, maximum_iterations=count)[1]


def concatenated(compute: Callable[[tf.Tensor], tf.Tensor], batch: tf.Tensor, count: int) -> tf.Tensor:
    """Return what `compute` returns for each of `count` micro-batches (float32, a row for each example), in one."""
    if count == 1:
        return compute(batch)
    rows = tf.map_fn(compute, _split(batch, count), parallel_iterations=1, fn_output_signature=tf.float32)
    return tf.reshape(rows, tf.concat([[-1], tf.shape(rows)[2:]], axis=0))


def _split(tensor: tf.Tensor, count: int) -> tf.Tensor:
    return tf.reshape(tensor, (count, -1, *tensor.shape[1:]))
