"""Parts and numbers of a file that is a string tensor, read with operations of TensorFlow alone."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

ALL = 2**31 - 1
"""As the length of a part: everything up to the end."""
_POSITION = "position in the request, from 0:"


def part(content: tf.Tensor, start: tf.Tensor | int, length: tf.Tensor | int) -> tf.Tensor:
    """Return `length` bytes of a scalar string, or fewer if it ends before. TensorFlow would refuse a later start."""
    return tf.strings.substr(content, tf.clip_by_value(start, 0, tf.strings.length(content)), tf.maximum(length, 0))


def numbers(content: tf.Tensor, start: tf.Tensor | int, dtype: tf.DType, count: int) -> tf.Tensor:
    """Return big-endian numbers, int32 of (count,). Those after the end of the content are 0."""
    size = count * dtype.size
    found = tf.io.decode_raw(part(content, start, size), dtype, little_endian=False, fixed_length=size)
    return tf.cast(tf.ensure_shape(found, [count]), tf.int32)


def first(found: tf.Tensor, otherwise: Any = "") -> tf.Tensor:
    """Return the first of some tensors, (n, ...), or `otherwise` if there are none."""
    return tf.concat([found, [otherwise]], 0)[0]


RefuseUnless = Callable[[tf.Tensor, str, tf.Tensor], tf.Tensor]
"""`refuse_unless` for the file at a known position."""


def refuse_unless(position: tf.Tensor, condition: tf.Tensor, why: str, content: tf.Tensor) -> tf.Tensor:
    """Return `content`. If the condition is false, the call of the model fails with InvalidArgumentError and `why`.

    The error names the position of the file in the request, from 0.
    """
    # tf.debugging.Assert adds a conditional, which takes as long as ten other operations.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=[why, _POSITION, position])]):
        return tf.identity(content)


def seldom(branch: Callable[[], Any]) -> Callable[[], Any]:
    """Return a branch of a conditional that few files take, as a single operation if it is not taken.

    TensorFlow walks through the operations of all branches otherwise, which takes longer than those of the taken one.
    """
    called: Callable[[], Any] = tf.function(branch, autograph=False, experimental_attributes={"_noinline": True})
    return called
