"""Micro-batches: equal parts of a batch, one after another. A device needs the memory of one part only."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def summed(compute: Callable[..., Any], batch: tuple[Any, ...], count: int, zeros: Any) -> Any:
    """Return the sums of what `compute` returns for each of `count` micro-batches.

    Args:
        compute: Takes the parts of a micro-batch, and returns any nest of tensors. None in it stays None.
        batch: Nests of tensors whose first dimension is a multiple of `count`.
        count: How many micro-batches there are.
        zeros: What `compute` returns, all zero.
    """
    if count == 1:
        return compute(*batch)
    parts = _split(batch, count)
    absent: list[Any] = []

    def is_left(number: tf.Tensor, _: Any) -> tf.Tensor:
        return number < count

    def add(number: tf.Tensor, sums: Any) -> tuple[tf.Tensor, Any]:
        of_part = compute(*tf.nest.map_structure(lambda part: part[number], parts))
        absent.append(tf.nest.map_structure(lambda part: part is None, of_part))
        # A loop cannot hold None, so its zero stays until the end.
        return number + 1, tf.nest.map_structure(lambda s, part: s if part is None else tf.add(s, part), sums, of_part)

    # One at a time. TensorFlow's default of ten iterations at once would need the memory of ten micro-batches.
    _, sums = tf.while_loop(is_left, add, (0, zeros), parallel_iterations=1, maximum_iterations=count)
    return tf.nest.map_structure(lambda is_absent, total: None if is_absent else total, absent[0], sums)


def concatenated(compute: Callable[[Any], tf.Tensor], batch: Any, count: int, dtype: str = "float32") -> tf.Tensor:
    """Return what `compute` returns for each of `count` micro-batches (`dtype`, a row for each example), in one."""
    if count == 1:
        return compute(batch)
    rows = tf.map_fn(compute, _split(batch, count), parallel_iterations=1, fn_output_signature=tf.as_dtype(dtype))
    return tf.reshape(rows, tf.concat([[-1], tf.shape(rows)[2:]], axis=0))


def _split(batch: Any, count: int) -> Any:
    """Return the tensors of a nest with a new first dimension of `count`."""

    def split(tensor: tf.Tensor) -> tf.Tensor:
        # The longest list of a batch of rows is unknown until the batch is there.
        known = [tf.shape(tensor)[axis] if size is None else size for axis, size in enumerate(tensor.shape)]
        return tf.reshape(tensor, [count, -1, *known[1:]])

    return tf.nest.map_structure(split, batch)
