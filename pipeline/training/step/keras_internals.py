"""What this project uses of Keras beside its documented interface. Seen in Keras 3.15.1.

After an upgrade, run `tests/training/step/test_keras_internals.py`: it fails if something of this has changed.
"""

from typing import Any

import keras

from pipeline.evaluation.best_epoch import EPOCH_METRICS


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
    """Tell a callback that monitors a metric of the task which values of it are better.

    Callbacks read their attribute `mode` after the first epoch. From "auto" Keras finds the direction of metrics of a
    compiled model only.
    """
    monitored = str(getattr(callback, "monitor", ""))
    metric = next((each for each in EPOCH_METRICS if monitored.endswith(each.key)), None)
    if metric and getattr(callback, "mode", "") == "auto":
        callback.mode = "min" if metric.lower_is_better else "max"
