"""What this project uses of Keras beside its documented interface. Seen in Keras 3.15.1.

After an upgrade, run `tests/training/step/test_keras_internals.py`: it fails if something of this has changed.
"""

from typing import Any

import keras
from typing_extensions import override

from pipeline.evaluation.best_epoch import EPOCH_METRICS


class AdamOfSums(keras.optimizers.Adam):  # type: ignore[misc]  # Keras is not followed
    """Adam for gradients that are the sum over all replicas already.

    Keras sums them itself, but only after it has clipped those of each replica. It does so in the private method
    `_all_reduce_sum_gradients`, which every update calls once.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return grads_and_vars


class CountedLossScale(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]  # Keras is not followed
    """Loss scaling that counts how many steps in a row it has skipped, in a variable that every checkpoint holds.

    After each step, Keras calls one of two private methods: one if the gradients are finite, and one if they are not.
    """

    @override
    def build(self, var_list: list[keras.Variable]) -> None:
        super().build(var_list)
        self.skipped = self.add_variable(shape=(), dtype="int", name="skipped")

    def _stateful_handle_finite_grads(self, grads: list[Any], trainable_variables: list[keras.Variable]) -> None:
        super()._stateful_handle_finite_grads(grads, trainable_variables)
        self.skipped.assign(0)

    def _stateful_handle_non_finite_grads(self) -> None:
        super()._stateful_handle_non_finite_grads()
        self.skipped.assign_add(1)


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
