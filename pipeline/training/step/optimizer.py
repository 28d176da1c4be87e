"""The optimizer of a training, and its learning rate from the first update to the last."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import keras
from keras import ops

from pipeline.config import Settings
from pipeline.training.step.keras_internals import AdamOfSums

BATCH_OF_RATE = 256
"""Batch size that a learning rate is meant for, if it is scaled."""
_BETA_1, _BETA_2 = 0.9, 0.999
"""Adam keeps these shares of its two averages in each update."""


def build_optimizer(settings: Settings, model: keras.Model, steps_per_epoch: int) -> keras.Optimizer:
    """Return the Adam that the settings ask for. Its variables are not made yet, and nothing of the model is frozen."""
    # If callbacks may set the rate, Keras gets a number and makes a variable of it, which is in every checkpoint.
    rate = scaled_rate(settings) if may_be_set(settings) else learning_rate(settings, steps_per_epoch)
    optimizer = AdamOfSums(
        rate,
        _BETA_1,
        _BETA_2,
        # This makes it AdamW: Keras subtracts it from the weights themselves, and leaves the gradients alone.
        weight_decay=settings.weight_decay or None,
        global_clipnorm=settings.clip_norm or None,
    )
    # Biases, and the scales and offsets of normalization. Their shapes identify them, because names are free.
    vectors = [variable for variable in model.trainable_variables if len(variable.shape) < 2]
    optimizer.exclude_from_weight_decay(vectors)
    return keras.optimizers.LossScaleOptimizer(optimizer) if settings.precision == "mixed_float16" else optimizer


def may_be_set(settings: Settings) -> bool:
    """Return whether callbacks may set the learning rate: Keras refuses that if it follows a schedule."""
    plain = settings.learning_rate_schedule == "constant" and not settings.warmup_epochs and not settings.freeze_epochs
    return bool(settings.callbacks) and plain


def rate_now(optimizer: keras.Optimizer) -> float:
    """Return the learning rate of the next update. `float` cannot convert a variable of several replicas."""
    return float(ops.convert_to_numpy(optimizer.learning_rate))


def learning_rate(settings: Settings, steps_per_epoch: int) -> "LearningRate":
    """Return the schedule of the learning rate."""
    return LearningRate(
        highest=scaled_rate(settings),
        warmup=settings.warmup_epochs * steps_per_epoch,
        falls_until=settings.epochs * steps_per_epoch if settings.learning_rate_schedule == "cosine" else None,
        frozen=settings.freeze_epochs * steps_per_epoch,
        finetune_rate=settings.finetune_rate,
    )


def scaled_rate(settings: Settings) -> float:
    """Return the highest learning rate, scaled for the batch size (Goyal et al. 2017; Krizhevsky 2014)."""
    power = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[settings.learning_rate_scaling]
    return float(settings.learning_rate * (settings.batch_size / BATCH_OF_RATE) ** power)


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
