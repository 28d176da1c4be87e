"""One training step and one evaluation step, on every replica of a strategy."""

import logging
from collections.abc import Callable
from functools import partial

import keras
import tensorflow as tf

from pipeline.input.color import jittered, seed_of_batch
from pipeline.input.flip import flipped
from pipeline.training.losses import Loss
from pipeline.training.microbatches import summed
from pipeline.training.python_calls import python_calls
from pipeline.training.task import ONE_LABEL, Task

_log = logging.getLogger(__name__)
_Replica = Callable[..., tf.Tensor]


class Steps:
    """Compiled steps of one model under one strategy.

    Both take a batch, images (uint8, (n, size, size, 3)), labels (as the loss has them) and weights (float32, (n,)),
    and whether this server is `asked` to stop (float32 scalar, 0 or 1); the training step before that which images it
    is to mirror (bool, (n,)), as it does with `flip`: the input decides it of each example, so that all replicas do
    the same as one. They return four float32 sums over the replicas
    of all servers, (4,): the examples' losses, how many of them were right, how many there were, and `asked`: all
    servers learn in the same step that one of them has to leave. What weighs nothing is in none of them. After
    these sums, the training step returns a number for each replica: 1 if that replica spoiled the step, because its
    loss or its gradients are not finite, else 0. All servers learn this in the same step, too. The training step sees
    other colors, by up to `color_jitter` (0 to 1), and gives the `loss` that it trains on, by default the plain one of
    the `task`; an evaluation gives that one. `xla` compiles both with XLA, where there is one replica.
    Each replica takes its batch in so many `parts`, one after another, for one update: the memory of a step is that of
    a part.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        optimizer: keras.Optimizer,
        color_jitter: float = 0.0,
        seed: int = 0,
        loss: Loss | None = None,
        xla: bool = False,
        task: Task = ONE_LABEL,
        parts: int = 1,
        flip: bool = False,
    ) -> None:
        self._strategy, self._model, self._optimizer = strategy, model, optimizer
        self._color_jitter, self._seed, self._flip = color_jitter, seed, flip
        self._task, self._loss, self._parts = task, loss or task.loss, parts
        self._xla = xla and _is_alone(strategy)
        self.python_calls = 0
        """How many operations of the training step call Python code, once it is traced."""
        self.evaluate = tf.function(self._evaluate, reduce_retracing=True)
        self.trace()

    def trace(self) -> None:
        """Have the training step traced anew: one that was traced keeps the trainable variables that it knew."""
        self.train = tf.function(self._train, reduce_retracing=True)

    def _train(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, asked: tf.Tensor
    ) -> tf.Tensor:
        # Before the step, for the mean over all replicas: a mean of their means would count an example beside padding
        # for more than others.
        told = self._sum(_told, weights, asked)
        step = self._compiled(self._train_replica)
        found = self._sum(step, images, labels, weights, mirrored, told[0])
        sums = tf.concat([found[:2], told, found[2:]], axis=0)
        self.python_calls = python_calls(tf.compat.v1.get_default_graph())  # This runs once, when it is traced.
        return sums

    def _evaluate(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, asked: tf.Tensor) -> tf.Tensor:
        return self._sum(self._compiled(self._evaluate_replica), images, labels, weights, asked)

    def _sum(self, of_replica: _Replica, *values: tf.Tensor) -> tf.Tensor:
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, self._strategy.run(of_replica, args=values), axis=None)

    def _compiled(self, of_replica: _Replica) -> _Replica:
        # The part of a replica, not what goes on between them: XLA knows no strategy.
        return tf.function(of_replica, jit_compile=True) if self._xla else of_replica

    def _train_replica(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, examples: tf.Tensor
    ) -> tf.Tensor:
        seen = flipped(images, mirrored) if self._flip else images
        seen = self._colored(seen) if self._color_jitter else seen
        variables = self._model.trainable_variables
        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables], tf.zeros(2)
        of_part = partial(self._gradients, examples)
        gradients, sums = summed(of_part, (seen, labels, weights), self._parts, zeros)
        # Checked before the gradients are summed. Afterwards, those of all replicas are spoiled.
        spoiled = self._spoiled(sums[0], gradients)
        # Before the optimizer, which would clip, and look for an overflow, in the part of this replica alone.
        gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        self._optimizer.apply(gradients, variables)
        return tf.concat([sums, spoiled], axis=0)

    def _spoiled(self, loss: tf.Tensor, gradients: list[tf.Tensor]) -> tf.Tensor:
        """Return a number for each replica: 1 for this one if its loss or gradients are not finite, else 0.

        The check uses the square of the norm of the sum over all replicas, because Adam keeps squares, which overflow
        first. The norm takes one operation for each gradient. With loss scaling, gradients overflow now and then. The
        optimizer leaves such a step out, so the gradients are not checked.
        """
        replicas = self._strategy.num_replicas_in_sync
        is_finite = tf.math.is_finite(loss)
        if not isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            norm = tf.linalg.global_norm([tf.cast(each, tf.float32) for each in gradients if each is not None])
            is_finite &= tf.math.is_finite(tf.square(replicas * norm))
        own = tf.one_hot(tf.distribute.get_replica_context().replica_id_in_sync_group, replicas)
        return tf.where(is_finite, tf.zeros_like(own), own)

    def _gradients(
        self, examples: tf.Tensor, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """What a part of the batch adds to the gradients of the mean loss of all `examples`, and its sums."""
        with tf.GradientTape() as tape:
            logits = self._model(images, training=True)
            losses = self._loss(labels, logits) * weights
            mean = tf.math.divide_no_nan(tf.reduce_sum(losses), examples) + self._penalty()
            scaled = self._optimizer.scale_loss(mean)  # what is reported stays a number where this overflows
        sums = _sums(losses, self._task.right(labels, logits), weights)
        return tape.gradient(scaled, self._model.trainable_variables), sums

    def _penalty(self) -> tf.Tensor | float:
        """A part's share of what the layers of a model want small, as those with a regularizer do."""
        return sum(self._model.losses) / (self._strategy.num_replicas_in_sync * self._parts)

    def _colored(self, images: tf.Tensor) -> tf.Tensor:
        """The images in the colors of this step, which the optimizer counts: its count is in every checkpoint."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        step = tf.cast(self._optimizer.iterations, tf.int64)
        # A number for each replica: with one for all, they would make the same of their examples.
        number = step * self._strategy.num_replicas_in_sync + tf.cast(replica, tf.int64)
        return jittered(images, self._color_jitter, seed_of_batch(self._seed, number))

    def _evaluate_replica(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, asked: tf.Tensor
    ) -> tf.Tensor:
        sums = summed(self._evaluated, (images, labels, weights), self._parts, tf.zeros(2))
        return tf.concat([sums, _told(weights, asked)], axis=0)

    def _evaluated(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        logits = self._model(images, training=False)
        return _sums(self._task.loss(labels, logits) * weights, self._task.right(labels, logits), weights)


def _is_alone(strategy: tf.distribute.Strategy) -> bool:
    """Whether there is one replica: XLA compiles none of what replicas have to tell each other in mid-step."""
    if strategy.num_replicas_in_sync > 1:
        _log.warning("xla=true is left aside: it serves trainings on one device")
    return bool(strategy.num_replicas_in_sync == 1)


def _told(weights: tf.Tensor, asked: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.reduce_sum(weights), asked])


def _sums(losses: tf.Tensor, right: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(right * weights)])
