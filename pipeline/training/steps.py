"""One training step and one evaluation step, on every replica of a strategy."""

from collections.abc import Callable

import keras
import tensorflow as tf

from pipeline.input.color import jittered, seed_of_batch
from pipeline.training.losses import Loss, cross_entropy


class Steps:
    """Compiled steps of one model under one strategy.

    Both take a batch, images (uint8, (n, size, size, 3)), labels (int32, (n,)) and weights (float32, (n,)), and return
    three float32 scalars: the sum of the examples' losses, how many of them were right, and how many there were. What
    weighs nothing is in none of them. The training step sees other colours, by up to `color_jitter` (0 to 1), and
    gives the `loss` that it trains on; an evaluation gives the cross-entropy. `xla` compiles both with XLA.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        optimizer: keras.Optimizer,
        color_jitter: float = 0.0,
        seed: int = 0,
        loss: Loss = cross_entropy,
        xla: bool = False,
    ) -> None:
        self._strategy, self._model, self._optimizer = strategy, model, optimizer
        self._color_jitter, self._seed = color_jitter, seed
        self._loss, self._xla = loss, xla
        self.evaluate = tf.function(self._evaluate, reduce_retracing=True)
        self.trace()

    def trace(self) -> None:
        """Have the training step traced anew: one that was traced keeps the trainable variables that it knew."""
        self.train = tf.function(self._train, reduce_retracing=True)

    def _train(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return self._on_replicas(self._train_replica, images, labels, weights)

    def _evaluate(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return self._on_replicas(self._evaluate_replica, images, labels, weights)

    def _on_replicas(self, step: Callable[..., tuple[tf.Tensor, ...]], *batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # The step of a replica, not what goes on between them: XLA knows no strategy.
        compiled = tf.function(step, jit_compile=True) if self._xla else step
        values = self._strategy.run(compiled, args=batch)
        return tuple(self._strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None) for value in values)

    def _train_replica(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        seen = self._colored(images) if self._color_jitter else images
        with tf.GradientTape() as tape:
            logits = self._model(seen, training=True)
            losses = self._loss(labels, logits) * weights
            mean = tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(weights))
            scaled = self._optimizer.scale_loss(mean)  # what is reported stays a number where this overflows
        variables = self._model.trainable_variables
        self._optimizer.apply(tape.gradient(scaled, variables), variables)
        return _sums(losses, labels, logits, weights)

    def _colored(self, images: tf.Tensor) -> tf.Tensor:
        """The images in the colours of this step, which the optimizer counts: its count is in every checkpoint."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        step = tf.cast(self._optimizer.iterations, tf.int64)
        # A number for each replica: with one for all, they would make the same of their examples.
        number = step * self._strategy.num_replicas_in_sync + tf.cast(replica, tf.int64)
        return jittered(images, self._color_jitter, seed_of_batch(self._seed, number))

    def _evaluate_replica(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        logits = self._model(images, training=False)
        return _sums(cross_entropy(labels, logits) * weights, labels, logits, weights)


def _sums(losses: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
    right = tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), labels), tf.float32)
    return tf.reduce_sum(losses), tf.reduce_sum(right * weights), tf.reduce_sum(weights)
