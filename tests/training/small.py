"""A model of a few variables with the parts of large models: a base, a head, normalization and dropout."""

from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.settings import Settings
from pipeline.dataset.manifest import Dataset, Split
from pipeline.records.format import RecordFormat
from pipeline.training.state.checkpoint import Checkpoints, Position
from pipeline.training.step.loop import TakesSteps
from pipeline.training.step.optimizer import build_optimizer, optimizer_options
from pipeline.training.step.phases import build_steps, step_options

STEPS_PER_EPOCH = 2
_SPLITS = {"train": Split(8, 1, {"a": 2, "b": 6}, ())}
DATASET = Dataset("images", "1" * 16, ("a", "b"), {}, RecordFormat(), {}, _SPLITS, {}, {}, {}, {}, {}, {})
BATCH = (
    tf.constant(np.random.default_rng(0).integers(0, 256, (4, 5, 5, 3), np.uint8)),
    tf.constant([0, 1, 0, 1]),
    tf.constant([1.0, 1.0, 1.0, 0.0]),
    tf.constant(0.0),
)
"""Images, labels, weights, and no stop request."""
MIRRORED = tf.constant([True, False, False, True])
TRAINED = (*BATCH[:3], MIRRORED, BATCH[3])
"""The same batch, with the mask of the images that a training step mirrors."""


@dataclass
class Small:
    """The model of a job, with its optimizer, checkpoints and steps."""

    model: keras.Model
    optimizer: keras.Optimizer
    checkpoints: Checkpoints
    steps: TakesSteps

    def train(self, steps: int) -> list[float]:
        """Take some steps on one batch, and return their losses."""
        return [float(self.steps.train(*TRAINED)[0]) for _ in range(steps)]

    def save(self) -> None:
        """Write a checkpoint."""
        self.checkpoints.save(Position(step=int(self.optimizer.iterations)))
        self.checkpoints.wait()

    def weights(self) -> list[np.ndarray]:
        """Return copies of all variables."""
        return [variable.numpy() for variable in self.model.weights]


def small(
    settings: Settings,
    folder: Path,
    dropout: float = 0.5,
    normalized: bool = True,
    strategy: tf.distribute.Strategy | None = None,
) -> Small:
    """Create the model with fixed initial weights, or with the weights of the last checkpoint in `folder`."""
    keras.utils.set_random_seed(0)
    strategy = strategy or tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = _model(settings.precision, dropout, normalized)
        optimizer = build_optimizer(optimizer_options(settings, STEPS_PER_EPOCH), model)
        checkpoints = Checkpoints(folder, model, optimizer)
    checkpoints.restore()
    options = step_options(settings, DATASET, STEPS_PER_EPOCH, settings.micro_batches)
    steps = build_steps(strategy, model, optimizer, options)
    return Small(model, optimizer, checkpoints, steps)


def _model(precision: str, dropout: float, normalized: bool) -> keras.Model:
    inner = keras.Input((75,))
    x = keras.layers.Dense(8, dtype=precision, kernel_regularizer=keras.regularizers.L2(0.01))(inner)
    x = keras.layers.BatchNormalization(dtype=precision)(x) if normalized else x
    base = keras.Model(inner, keras.layers.Dropout(dropout, dtype=precision)(x))
    inputs = keras.Input((5, 5, 3))
    scaled = keras.layers.Flatten()(keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs))
    return keras.Model(inputs, keras.layers.Dense(2, dtype="float32")(base(scaled)))
