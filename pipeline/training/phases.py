"""The steps of a training as its settings want them, those of a transfer learning in two phases."""

import logging

import keras
import tensorflow as tf

from pipeline.config import Settings
from pipeline.dataset.manifest import Dataset
from pipeline.training.models import base_of
from pipeline.training.simulated import SimulatedSteps
from pipeline.training.steps import Steps
from pipeline.training.task import task_of

_log = logging.getLogger(__name__)


class TwoPhases:
    """The steps of a model whose base is frozen during the first `frozen` updates of the optimizer.

    The optimizer's count decides, as it does on the learning rate: it is in every checkpoint, and leaves out the steps
    that loss scaling skips. The optimizer must be built already, for the base as well.
    """

    def __init__(self, steps: Steps, base: keras.Model, optimizer: keras.Optimizer, frozen: int) -> None:
        self._steps, self._base, self._optimizer, self._frozen = steps, base, optimizer, frozen
        self.evaluate = steps.evaluate
        base.trainable = False

    @property
    def python_calls(self) -> int:
        """That of `Steps`."""
        return self._steps.python_calls

    def train(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, mirrored: tf.Tensor, asked: tf.Tensor
    ) -> tf.Tensor:
        """A training step, as that of `Steps`."""
        if not self._base.trainable and int(self._optimizer.iterations) >= self._frozen:
            self._thaw()
        return self._steps.train(images, labels, weights, mirrored, asked)

    def _thaw(self) -> None:
        _log.info("all of the model learns from here on")
        self._base.trainable = True
        self._steps.trace()


def build_steps(
    settings: Settings,
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: keras.Optimizer,
    dataset: Dataset,
    steps_per_epoch: int,
    parts: int = 1,
) -> Steps | TwoPhases | SimulatedSteps:
    """The steps of a training of `dataset`, for an optimizer that is built and, after a stop, restored.

    Each replica takes its batch in so many `parts`.
    """
    if settings.simulated_step_ms:
        _log.warning(
            "simulated_step_ms=%g: no step computes anything, and the model learns nothing", settings.simulated_step_ms
        )
        return SimulatedSteps(strategy, settings.simulated_step_ms / 1000)
    task = task_of(dataset.records)
    loss = task.training_loss(settings, dataset)
    told = settings.color_jitter, settings.seed, loss, settings.xla, task, parts, settings.flip
    steps = Steps(strategy, model, optimizer, *told)
    frozen = settings.freeze_epochs * steps_per_epoch
    return TwoPhases(steps, base_of(model), optimizer, frozen) if frozen else steps
