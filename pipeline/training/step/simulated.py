"""Steps of a simulated accelerator: each takes a fixed time and computes nothing."""

import time

import tensorflow as tf

from pipeline.training.step.loop import Features
from pipeline.training.step.optimizer import NO_LOSS_SCALING


class SimulatedSteps:
    """Steps that wait in place of computing, for benchmarks and planning.

    They take the batches of `Steps` and return the same numbers, with a loss of 0 and no correct prediction. The wait
    holds no core, so the input can use all of them, as it can beside a real accelerator.

    Args:
        strategy: Strategy that distributes the batches.
        step_s: Seconds that a step of the training or of the validation takes.
    """

    python_calls = 0
    """The wait is not the user's Python code."""

    def __init__(self, strategy: tf.distribute.Strategy, step_s: float) -> None:
        self._strategy, self._step_s = strategy, step_s
        self._sums = tf.function(self._of_batch, reduce_retracing=True, autograph=False)

    def train(
        self, features: Features, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, should_stop: tf.Tensor
    ) -> tf.Tensor:
        """Take a training step, as `Steps` does."""
        return tf.concat([self.evaluate(features, labels, weights, should_stop), NO_LOSS_SCALING], axis=0)

    def evaluate(self, features: Features, labels: tf.Tensor, weights: tf.Tensor, should_stop: tf.Tensor) -> tf.Tensor:
        """Take a step of the validation, as `Steps` does."""
        begin = time.perf_counter()
        sums = self._sums(weights, should_stop)
        # The rest of the step only: the sums have taken a part of it.
        time.sleep(max(0.0, self._step_s - (time.perf_counter() - begin)))
        return sums

    def _of_batch(self, weights: tf.Tensor, should_stop: tf.Tensor) -> tf.Tensor:
        sums = self._strategy.run(lambda w, a: tf.stack([0.0, 0.0, tf.reduce_sum(w), a]), args=(weights, should_stop))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)
