"""The optimizer of a training, and its learning rate from the first update to the last."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import keras
from keras import ops

from pipeline.config.automatic import TrainingSettings
from pipeline.training.step.keras_internals import AdamOfSums, CountedLossScale

_BETA_1, _BETA_2 = 0.9, 0.999
"""Adam keeps these shares of its two averages in each update."""
NO_LOSS_SCALING = (0.0, 1.0)
"""What `loss_scaling` returns without it."""


def build_optimizer(options: "OptimizerOptions", model: keras.Model) -> keras.Optimizer:
    """Return an Adam with these options. Its variables are not made yet, and nothing of the model is frozen."""
    optimizer = AdamOfSums(
        # If callbacks may set the rate, Keras gets a number and makes a variable of it, which is in every checkpoint.
        options.schedule or options.highest_rate,
        _BETA_1,
        _BETA_2,
        # This makes it AdamW: Keras subtracts it from the weights themselves, and leaves the gradients alone.
        weight_decay=options.weight_decay or None,
        global_clipnorm=options.clip_norm or None,
    )
    # Biases, and the scales and offsets of normalization. Their shapes identify them, because names are free.
    vectors = [variable for variable in model.trainable_variables if len(variable.shape) < 2]
    optimizer.exclude_from_weight_decay(vectors)
    return CountedLossScale(optimizer) if options.scales_loss else optimizer


def rate_now(optimizer: keras.Optimizer) -> float:
    """Return the learning rate of the next update. `float` cannot convert a variable of several replicas."""
    return float(ops.convert_to_numpy(optimizer.learning_rate))


def updates_done(optimizer: keras.Optimizer) -> int:
    """Return how many updates were made. `int` cannot convert a variable of several replicas."""
    return int(ops.convert_to_numpy(optimizer.iterations))


def loss_scaling(optimizer: keras.Optimizer) -> Any:
    """Return how many steps in a row were skipped, and the loss scale: float32, (2,)."""
    if not isinstance(optimizer, CountedLossScale):
        return ops.convert_to_tensor(NO_LOSS_SCALING)
    return ops.stack([ops.cast(number, "float32") for number in (optimizer.skipped, optimizer.dynamic_scale)])


@dataclass(frozen=True)
class OptimizerOptions:
    """How the weights of a model follow its gradients."""

    highest_rate: float
    schedule: "LearningRate | None"
    """The learning rate of each update. None: it is constant until a callback sets it. Keras refuses to set the rate if
    it follows a schedule."""
    weight_decay: float
    clip_norm: float
    scales_loss: bool


def optimizer_options(settings: TrainingSettings, steps_per_epoch: int) -> OptimizerOptions:
    """Return the options of some settings."""
    schedule = LearningRate(
        highest=settings.learning_rate,
        warmup=settings.warmup_epochs * steps_per_epoch,
        falls_until=settings.epochs * steps_per_epoch if settings.learning_rate_schedule == "cosine" else None,
        frozen=settings.freeze_epochs * steps_per_epoch,
        finetune_rate=settings.finetune_rate,
    )
    is_constant = schedule.falls_until is None and not schedule.warmup and not schedule.frozen
    return OptimizerOptions(
        highest_rate=settings.learning_rate,
        schedule=None if settings.callbacks and is_constant else schedule,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        scales_loss=settings.precision == "mixed_float16",
    )


@dataclass(frozen=True)
class LearningRate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras is not followed
    """The learning rate by the number of earlier updates, which the optimizer counts and a checkpoint holds."""

    highest: float
    warmup: float = 0.0
    """Updates in which the rate rises from 0 in a straight line."""
    falls_until: int | None = None
    """Updates after which the rate is 0, along half a cosine that begins after the warm-up; None: it does not fall."""
    frozen: int = 0
    """Updates after which the base of the model learns, too; 0: from the start."""
    finetune_rate: float = 1.0
    """Factor of the rate from then on."""

    def __call__(self, step: Any) -> Any:
        """Return the rate (float32 scalar) for `step`, an integer scalar from 0."""
        step = ops.cast(step, "float32")
        risen = ops.minimum(step / self.warmup, 1.0) if self.warmup else 1.0
        if self.falls_until is None:
            fallen = ops.ones_like(step)
        else:
            done = ops.clip((step - self.warmup) / (self.falls_until - self.warmup), 0.0, 1.0)
            fallen = 0.5 * (1.0 + ops.cos(math.pi * done))
        rate = self.highest * risen * fallen
        return ops.where(step < self.frozen, rate, rate * self._finetuned(step)) if self.frozen else rate

    def _finetuned(self, step: Any) -> Any:
        """Return the factor of the rate while the base is tuned.

        Adam's averages of the base begin at zero with it, but its correction for that follows the count of all
        updates. Uncorrected, the first updates of the base would be up to 6.5 times too long.
        """
        since = ops.maximum(step - self.frozen, 0.0)  # Before, the branch that is not taken would be NaN.
        return self.finetune_rate * _correction(since + 1.0) / _correction(step + 1.0)

    def get_config(self) -> dict[str, Any]:
        """Return the fields, from which Keras makes a copy."""
        return asdict(self)


def _correction(update: Any) -> Any:
    """Return Adam's factor of the rate for averages that began at zero so many updates ago."""
    return ops.sqrt(1.0 - _BETA_2**update) / (1.0 - _BETA_1**update)
