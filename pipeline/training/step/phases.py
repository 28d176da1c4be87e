"""The steps that the settings of a training ask for; those of transfer learning have two phases."""

import logging
from typing import NamedTuple

import keras
import tensorflow as tf

from pipeline.config.automatic import TrainingSettings
from pipeline.dataset.manifest import Dataset
from pipeline.input import steps_per_epoch
from pipeline.training.model.models import base_of
from pipeline.training.model.own_loss import own_loss
from pipeline.training.model.tensor_kind import build_model_of, task_of, tensor_kind_of
from pipeline.training.step.loop import Features, TakesSteps
from pipeline.training.step.optimizer import build_optimizer, optimizer_options, updates_done
from pipeline.training.step.simulated import SimulatedSteps
from pipeline.training.step.steps import StepOptions, Steps

_log = logging.getLogger(__name__)


class TwoPhases:
    """The steps of a model whose base is frozen during the first `frozen` updates of the optimizer.

    The optimizer's count decides, as it does on the learning rate: it is in every checkpoint, and leaves out the steps
    that loss scaling skips. The optimizer must be built already, for the base as well.
    """

    train_several = None
    """The steps of a large model take long enough."""

    def __init__(self, steps: Steps, base: keras.Model, optimizer: keras.Optimizer, frozen: int) -> None:
        self._steps, self._base, self._optimizer, self._frozen = steps, base, optimizer, frozen
        self._max_updates = updates_done(optimizer)
        """The optimizer's count, if no step was skipped. To read the count itself is to wait for the accelerator."""
        self.evaluate = steps.evaluate
        # After the optimizer was built, so that the base has its places among the optimizer's variables from the start.
        base.trainable = False

    @property
    def python_calls(self) -> int:
        """How many operations of the training step call Python code, once it is traced."""
        return self._steps.python_calls

    def train(self, *batch: Features) -> tf.Tensor:
        """Take a training step, as `Steps` does; before the first one of the second phase, unfreeze the base."""
        may_unfreeze = not self._base.trainable and self._max_updates >= self._frozen
        if may_unfreeze and updates_done(self._optimizer) >= self._frozen:
            _log.info("the whole model learns from here on")
            self._base.trainable = True
            # The traced step has no gradients of the base.
            self._steps.trace()
        self._max_updates += 1
        return self._steps.train(*batch)


def step_options(settings: TrainingSettings, dataset: Dataset, steps_per_epoch: int, micro_batches: int) -> StepOptions:
    """Return the options of a training on `dataset` with some settings."""
    if settings.simulated_step_ms:
        _log.warning(
            "simulated_step_ms=%g: no step computes anything, and the model learns nothing", settings.simulated_step_ms
        )
        return StepOptions(simulated_s=settings.simulated_step_ms / 1000)
    task, kind = task_of(dataset), tensor_kind_of(dataset)
    class_counts = dataset.class_counts("train") if settings.class_weights == "balanced" else None
    usual = task.training_loss(settings.label_smoothing, class_counts)
    return StepOptions(
        task=task,
        loss=own_loss(settings.loss, task) if settings.loss else usual,
        flip=settings.flip and kind.is_augmented,
        color_jitter=settings.color_jitter if kind.is_augmented else 0.0,
        seed=settings.seed,
        micro_batches=micro_batches,
        xla=settings.xla,
        frozen_updates=settings.freeze_epochs * steps_per_epoch,
    )


def build_steps(
    strategy: tf.distribute.Strategy, model: keras.Model, optimizer: keras.Optimizer, options: StepOptions
) -> TakesSteps:
    """Return the steps of a model that gives logits. Its optimizer is built and, after a stop, restored."""
    if options.simulated_s:
        return SimulatedSteps(strategy, options.simulated_s)
    steps = Steps(strategy, model, optimizer, options)
    return TwoPhases(steps, base_of(model), optimizer, options.frozen_updates) if options.frozen_updates else steps


class BuiltSteps(NamedTuple):
    """A model at the start of a training, with what it is trained by."""

    model: keras.Model
    optimizer: keras.Optimizer
    steps: TakesSteps


def built_steps(settings: TrainingSettings, dataset: Dataset, strategy: tf.distribute.Strategy) -> BuiltSteps:
    """Return a new model with its steps, for a measurement on one server."""
    steps = steps_per_epoch(dataset, settings.batch_size, 1)
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = build_model_of(settings, dataset)
        optimizer = build_optimizer(optimizer_options(settings, steps), model)
        optimizer.build(model.trainable_variables)
    options = step_options(settings, dataset, steps, settings.micro_batches)
    return BuiltSteps(model, optimizer, build_steps(strategy, model, optimizer, options))
