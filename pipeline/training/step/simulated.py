"""Steps of a simulated accelerator: each takes a fixed time and computes nothing."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.training.step.loop import Batch, Features
from pipeline.training.step.optimizer import NO_LOSS_SCALING


@dataclass(frozen=True)
class SimulatedResult:
    """The result of a step of a simulated accelerator, which takes one step after another."""

    sums: tf.Tensor
    began: float
    ended: float
    """When the accelerator begins and ends the step, in seconds of its clock."""
    clock: Callable[[], float]
    device: str = "simulated"

    def numpy(self) -> NDArray[np.float32]:
        """Wait until the accelerator ends the step, and return its sums."""
        # `sleep` may return a little early.
        while (left := self.ended - self.clock()) > 0:
            time.sleep(left)
        sums: NDArray[np.float32] = self.sums.numpy()
        return sums


def batches_without_data(count: int) -> list[Batch]:
    """Return batches of a validation, which takes the time of its steps then, without the start of an input.

    Nobody reads its result, and short epochs would otherwise look as if the validation limited them.
    """
    nothing = tf.zeros(0)
    return count * [(nothing, nothing, nothing)]


class SimulatedSteps:
    """Steps of an accelerator that works beside the host, and only waits: for benchmarks and planning.

    They take the batches of `Steps` and return the same numbers, with a loss of 0 and no correct prediction. The wait
    holds no core, so the input can use all of them, as it can beside a real accelerator. Each step of the training or
    of the validation takes `step_s` seconds of `clock`, which never goes back.
    """

    python_calls = 0
    """The wait is not the user's Python code."""
    train_several = None
    """Steps that are sent one at a time show whether the host is fast enough for that."""

    def __init__(
        self, strategy: tf.distribute.Strategy, step_s: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._strategy, self._step_s, self._clock = strategy, step_s, clock
        self._sums = tf.function(self._of_batch, reduce_retracing=True, autograph=False)
        self._free_from = 0.0

    def train(
        self, features: Features, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, should_stop: tf.Tensor
    ) -> SimulatedResult:
        """Send a training step to the accelerator."""
        result = self.evaluate(features, labels, weights, should_stop)
        return replace(result, sums=tf.concat([result.sums, NO_LOSS_SCALING], axis=0))

    def evaluate(
        self, features: Features, labels: tf.Tensor, weights: tf.Tensor, should_stop: tf.Tensor
    ) -> SimulatedResult:
        """Send a step of the validation to the accelerator."""
        # The sums take a part of the step.
        began = max(self._clock(), self._free_from)
        sums = self._sums(weights, should_stop)
        self._free_from = began + self._step_s
        return SimulatedResult(sums, began, self._free_from, self._clock)

    def _of_batch(self, weights: tf.Tensor, should_stop: tf.Tensor) -> tf.Tensor:
        sums = self._strategy.run(lambda w, a: tf.stack([0.0, 0.0, tf.reduce_sum(w), a]), args=(weights, should_stop))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)
