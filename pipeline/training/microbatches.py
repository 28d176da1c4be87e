"""A batch in equal parts, one after another: what a device has in its memory is what one of them wants."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def summed(of_part: Callable[..., Any], batch: tuple[tf.Tensor, ...], count: int, zeros: Any) -> Any:
    """The sums of what `of_part` makes of each of `count` parts of a batch.

    `zeros` are what it gives, any nest of tensors, all zero. The batch must be a multiple of `count`.
    """
    if count == 1:
        return of_part(*batch)
    parts = [_cut(tensor, count) for tensor in batch]

    def add(number: tf.Tensor, sums: Any) -> tuple[tf.Tensor, Any]:
        found = of_part(*(part[number] for part in parts))
        return number + 1, tf.nest.map_structure(tf.add, sums, found)

    # One at a time: of ten iterations, which are TensorFlow's default, it would hold the memory.
    told = lambda number, _: number < count, add, (0, zeros)
    return tf.while_loop(*told, parallel_iterations=1, maximum_iterations=count)[1]


def joined(of_part: Callable[[tf.Tensor], tf.Tensor], batch: tf.Tensor, count: int) -> tf.Tensor:
    """What `of_part` makes of each of `count` parts of a batch, float32 with a row an example, put together again."""
    if count == 1:
        return of_part(batch)
    rows = tf.map_fn(of_part, _cut(batch, count), parallel_iterations=1, fn_output_signature=tf.float32)
    return tf.reshape(rows, tf.concat([[-1], tf.shape(rows)[2:]], axis=0))


def _cut(tensor: tf.Tensor, count: int) -> tf.Tensor:
    return tf.reshape(tensor, (count, -1, *tensor.shape[1:]))
