"""Functions whose datasets TensorFlow traces as they are written."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import tensorflow as tf

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def without_autograph(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return `function`, with AutoGraph off for all that it makes.

    AutoGraph rewrites each traced function, so that `if` and `for` work with tensors. This package uses the operations
    of TensorFlow for that. The rewriting took 1.8 s of the 10 s before the first step.
    """
    unconverted: Callable[_Arguments, _Result] = tf.autograph.experimental.do_not_convert(function)
    return unconverted
