"""One training step and one evaluation step, on every replica of a strategy."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import SettingsError
from pipeline.input.augmentation import flipped, jittered, seed_of_batch
from pipeline.input.tensorflow_internals import python_calls, traced_graph
from pipeline.system.wording import first_of
from pipeline.training.model.losses import Loss
from pipeline.training.model.task import ONE_LABEL, Task
from pipeline.training.step.loop import Features
from pipeline.training.step.micro_batches import summed
from pipeline.training.step.optimizer import loss_scaling
from pipeline.training.step.strategy import is_on_gpu

_log = logging.getLogger(__name__)
_MAX_NAMES = 10
"""Limit for the weights that one warning names."""


@dataclass(frozen=True)
class StepOptions:
    """What the steps of a model do, beside computing its gradients."""

    task: Task = ONE_LABEL
    loss: Loss | None = None
    """The loss that is trained on. None: the plain loss of the task, by which an evaluation always goes."""
    flip: bool = False
    """Mirror the training images that the input marks. The input decides, so that all replicas do the same as one."""
    color_jitter: float = 0.0
    """How far the colors of training images change at most, 0 to 1."""
    seed: int = 0
    """Seed of the colors."""
    micro_batches: int = 1
    """Equal parts in which a replica takes its batch, one after another, for one update. A step needs the memory of one
    part."""
    xla: bool = False
    """Compile both steps with XLA. With several replicas, the sum of their gradients and the update are left out."""
    frozen_updates: int = 0
    """Updates of the optimizer during which the base of the model does not learn. Only `build_steps` heeds it."""
    simulated_s: float = 0.0
    """If not 0, each step takes this many seconds and computes nothing. Only `build_steps` heeds it."""


PLAIN = StepOptions()


class Steps:
    """Compiled steps of one model under one strategy.

    Both steps take a batch: features (images, uint8 of (n, size, size, 3), or a dict of the columns of a table), labels
    (as the loss takes them) and weights (float32, (n,)). The training step also takes which images to mirror (bool,
    (n,)). The last argument is whether this server should stop (float32 scalar, 0 or 1).

    `train_several` takes several short steps in one call. With more than one replica, it is None.

    Both return four float32 sums over the replicas of all servers, (4,): the losses of the examples, their metric (how
    many predictions are correct, or their errors), how many examples there are, and how many replicas should stop. All
    servers thus learn in the same step that one of them has to leave. An example of weight 0 counts nowhere.

    After these sums, the training step returns the two numbers of `loss_scaling`, and then one for each replica: 1 if
    that replica spoiled the step, because its loss or its gradients are not finite, else 0. All servers learn this in
    the same step, too.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        optimizer: keras.Optimizer,
        options: StepOptions = PLAIN,
    ) -> None:
        self._strategy, self._model, self._optimizer, self._options = strategy, model, optimizer, options
        self._task, self._loss = options.task, options.loss or options.task.loss
        self._is_distributed = strategy.num_replicas_in_sync > 1
        self._unreached: set[str] = set()
        self.python_calls = 0
        self.evaluate = tf.function(self._evaluate, reduce_retracing=True, autograph=False)
        self.trace()

    def trace(self) -> None:
        """Trace the training step again: a traced step keeps the trainable variables that there were."""
        self.train = tf.function(self._train, reduce_retracing=True, autograph=False)
        several = tf.function(self._train_several, reduce_retracing=True, autograph=False)
        self.train_several = several if self._strategy.num_replicas_in_sync == 1 else None

    def _train(
        self, features: Features, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, should_stop: tf.Tensor
    ) -> tf.Tensor:
        # Before the step, for the mean over all replicas: a mean of their means would count an example beside padding
        # for more than others.
        counts = self._sum(_counts, weights, should_stop)
        step = self._train_replica if self._is_distributed else self._compiled(self._train_replica)
        of_step = self._sum(step, features, labels, weights, mirrored, counts[0])
        # After the update. No sum: it is the same on all replicas.
        result = tf.concat([of_step[:2], counts, loss_scaling(self._optimizer), of_step[2:]], axis=0)
        self.python_calls = python_calls(traced_graph())  # This runs once, when the step is traced.
        return result

    def _train_several(
        self, stack: tuple[Features, ...], first: tf.Tensor, count: tf.Tensor, should_stop: tf.Tensor
    ) -> tf.Tensor:
        """Take a step with each of `count` batches of a stack, from `first` on (int32). Return (count, values)."""

        def step(number: tf.Tensor, results: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            features, labels, weights, mirrored = tf.nest.map_structure(lambda each: each[first + number], stack)
            result = self._train(features, labels, weights, mirrored, should_stop)
            return number + 1, results.write(number, result)

        results = tf.TensorArray(tf.float32, count)
        # One step after another: each takes the weights that the step before has left.
        _, results = tf.while_loop(lambda number, _: number < count, step, (0, results), parallel_iterations=1)
        return results.stack()

    def _evaluate(self, features: Features, labels: tf.Tensor, weights: tf.Tensor, should_stop: tf.Tensor) -> tf.Tensor:
        return self._sum(self._compiled(self._evaluate_replica), features, labels, weights, should_stop)

    def _sum(self, of_replica: Callable[..., tf.Tensor], *values: Features) -> tf.Tensor:
        of_replicas = self._strategy.run(of_replica, args=values)
        # On the first device. By default, a sum of several GPUs is on the CPU, and the call of the step waits for it.
        with tf.device(self._strategy.extended.worker_devices[0]):
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, of_replicas, axis=None)

    def _compiled(self, of_replica: Callable[..., Any]) -> Callable[..., Any]:
        if not self._options.xla:
            return of_replica
        # Not the compiled function itself: `strategy.run` would make one program for all devices of it, and XLA knows
        # only one device.
        return lambda *values: tf.function(of_replica, jit_compile=True, autograph=False)(*values)

    def _train_replica(
        self, features: Features, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, examples: tf.Tensor
    ) -> tf.Tensor:
        compute = self._compiled(self._compute) if self._is_distributed else self._compute
        with _exchanges_explained():
            gradients, sums = compute(features, labels, weights, mirrored, examples)
        gradients, variables = self._reached(gradients)
        # Before the optimizer, which would clip, and look for an overflow, in the part of this replica alone.
        gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        self._optimizer.apply(gradients, variables)
        return sums

    def _compute(
        self, features: Features, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, examples: tf.Tensor
    ) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        """Return what this replica adds to the gradients, and its sums with its part of `_spoiled` after them."""
        augmented = flipped(features, mirrored, is_on_gpu(self._strategy)) if self._options.flip else features
        augmented = self._colored(augmented) if self._options.color_jitter else augmented
        variables = self._model.trainable_variables
        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables], tf.zeros(2)
        gradients_of = partial(self._gradients, examples)
        gradients, sums = summed(gradients_of, (augmented, labels, weights), self._options.micro_batches, zeros)
        if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            # Keras looks for an overflow in the slices of an embedding with an operation that has no kernel for GPUs.
            gradients = [each if each is None else tf.convert_to_tensor(each) for each in gradients]
        # Checked before the gradients are summed. Afterwards, those of all replicas are spoiled.
        return gradients, tf.concat([sums, self._spoiled(sums[0], gradients)], axis=0)

    def _reached(self, gradients: list[tf.Tensor | None]) -> tuple[list[tf.Tensor], list[keras.Variable]]:
        """Return the gradients of the weights that the loss depends on, and these weights. Warn once of the others."""
        pairs = [*zip(gradients, self._model.trainable_variables, strict=True)]
        reached = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        if not reached:
            raise SettingsError(
                "the loss depends on no weight of the model: it must use its layers in what it returns, and a loss of "
                "your own must use the logits"
            )
        unreached = [variable.path for gradient, variable in pairs if gradient is None]
        # The step is traced for each replica, and again for batches of another shape.
        if not self._unreached.issuperset(unreached):
            names = first_of(unreached, _MAX_NAMES)
            _log.warning("the loss does not depend on these weights of the model, so they do not learn: %s", names)
        self._unreached.update(unreached)
        return [gradient for gradient, _ in reached], [variable for _, variable in reached]

    def _spoiled(self, loss: tf.Tensor, gradients: list[tf.Tensor | None]) -> tf.Tensor:
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
        self, examples: tf.Tensor, features: Features, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        """Return what a micro-batch adds to the gradients of the mean loss of all `examples`, and its sums.

        The gradient of a variable that the loss does not depend on is None.
        """
        with tf.GradientTape() as tape:
            logits = self._model(features, training=True)
            losses = self._loss(labels, logits) * weights
            mean = tf.math.divide_no_nan(tf.reduce_sum(losses), examples)
            # The share of a micro-batch in the losses of the layers, such as those of a regularizer.
            mean += sum(self._model.losses) / (self._strategy.num_replicas_in_sync * self._options.micro_batches)
            scaled = self._optimizer.scale_loss(mean)  # The reported loss stays a number if this overflows.
        sums = _sums(losses, self._task.measured(labels, logits), weights)
        return tape.gradient(scaled, self._model.trainable_variables), sums

    def _colored(self, images: tf.Tensor) -> tf.Tensor:
        """Return the images in the colors of this step. The optimizer counts the steps, also across checkpoints."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        step = tf.cast(self._optimizer.iterations, tf.int64)
        # A number for each replica: with one for all, they would make the same of their examples.
        number = step * self._strategy.num_replicas_in_sync + tf.cast(replica, tf.int64)
        return jittered(images, self._options.color_jitter, seed_of_batch(self._options.seed, number))

    def _evaluate_replica(
        self, features: Features, labels: tf.Tensor, weights: tf.Tensor, should_stop: tf.Tensor
    ) -> tf.Tensor:
        sums = summed(self._evaluated, (features, labels, weights), self._options.micro_batches, tf.zeros(2))
        return tf.concat([sums, _counts(weights, should_stop)], axis=0)

    def _evaluated(self, features: Features, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        logits = self._model(features, training=False)
        return _sums(self._task.loss(labels, logits) * weights, self._task.measured(labels, logits), weights)


@contextmanager
def _exchanges_explained() -> Iterator[None]:
    """Explain the error of TensorFlow if the replicas exchange values where they cannot."""
    try:
        yield
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        raise SettingsError(
            "a layer of the model combines values of all devices, such as BatchNormalization(synchronized=True): set "
            "xla=false and micro_batches=1, or train on one device"
        ) from error


def _counts(weights: tf.Tensor, should_stop: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.reduce_sum(weights), should_stop])


def _sums(losses: tf.Tensor, measured: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(measured * weights)])
