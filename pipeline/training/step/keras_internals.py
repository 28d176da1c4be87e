"""What this project uses of Keras beside its documented interface. Seen in Keras 3.15.1.

After an upgrade, run `tests/training/step/test_keras_internals.py`: it fails if something of this has changed.
"""

from typing import Any

import keras


class AdamOfSums(keras.optimizers.Adam):  # type: ignore[misc]  # Keras is not followed
    """Adam for gradients that are the sum over all replicas already.

    Keras sums them itself, but only after it has clipped those of each replica. It does so in the private method
    `_all_reduce_sum_gradients`, which every update calls once.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return grads_and_vars


def attach_optimizer(model: keras.Model, optimizer: keras.Optimizer) -> None:
    """Let callbacks find the optimizer of a model, which Keras sets only in `compile`.

    What ModelCheckpoint saves of a compiled model could not be loaded without the class of the optimizer.
    """
    model.optimizer = optimizer


def set_direction(callback: keras.callbacks.Callback) -> None:
    """Let a callback that monitors an accuracy look for more of it.

    Callbacks read their attribute `mode` after the first epoch. From "auto" Keras finds the direction of metrics of a
    compiled model only.
    """
    if getattr(callback, "mode", "") == "auto" and str(getattr(callback, "monitor", "")).endswith("accuracy"):
        callback.mode = "max"
