"""The learning rate of each step, and updates of small variables."""

import keras
import numpy as np
import pytest

from pipeline.config.automatic import training_settings
from pipeline.training.step.optimizer import LearningRate, build_optimizer, optimizer_options

STEPS_PER_EPOCH = 4
ROSE_TO_THE_END = {"learning_rate_schedule": "cosine", "warmup_epochs": 2.0}


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ({}, {0: 1.0, 39: 1.0}),
        ({"warmup_epochs": 0.5}, {0: 0.0, 1: 0.5, 2: 1.0, 39: 1.0}),
        ({"learning_rate_schedule": "cosine"}, {0: 1.0, 10: 0.8535534, 20: 0.5, 40: 0.0, 50: 0.0}),
        (ROSE_TO_THE_END, {0: 0.0, 4: 0.5, 8: 1.0, 24: 0.5, 40: 0.0}),
    ],
)
def test_the_learning_rate_follows_the_settings(values: dict, rates: dict[int, float]):
    settings = training_settings({"epochs": 10, "learning_rate": 1.0, **values})
    rate = optimizer_options(settings, STEPS_PER_EPOCH).schedule
    assert {step: float(rate(step)) for step in rates} == pytest.approx(rates, abs=1e-6)


def test_fine_tuning_starts_with_the_first_update_after_the_frozen_epochs():
    of_transfer = {"freeze_epochs": 2, "weights": "/w.weights.h5", "model": "MobileNetV2", "finetune_rate": 0.25}
    rate = optimizer_options(training_settings({"learning_rate": 1.0, **of_transfer}), STEPS_PER_EPOCH).schedule
    assert float(rate(7)) == 1.0
    # Adam corrects the bias of its ninth update by 0.1546. The first update of the base needs 0.3162.
    assert float(rate(8)) == pytest.approx(0.25 * 0.3162 / 0.1546, rel=1e-3)
    assert float(rate(10_000)) == pytest.approx(0.25, rel=1e-3)


def test_the_base_is_updated_as_by_a_new_adam_optimizer():
    """The optimizer counted steps while the base was frozen. Uncorrected, its first updates would be too large."""
    base, alone, head = (keras.Variable([1.0, -2.0]) for _ in range(3))
    tuned = keras.optimizers.Adam(LearningRate(0.01, frozen=30, finetune_rate=0.1))
    tuned.build([base, head])
    fresh = keras.optimizers.Adam(0.001)
    gradients = [np.array([0.5 + number, -0.1], np.float32) for number in range(3)]
    for _ in range(30):
        tuned.apply([gradients[0]], [head])
    assert np.array_equal(base, alone)
    for gradient in gradients:
        tuned.apply([gradient, gradient], [base, head])
        fresh.apply([gradient], [alone])
    assert np.allclose(base, alone, rtol=1e-5)


def small_model() -> keras.Model:
    inputs = keras.Input((2,))
    return keras.Model(inputs, keras.layers.BatchNormalization()(keras.layers.Dense(3)(inputs)))


def moved(values: dict, gradient: float) -> tuple[keras.Model, keras.Optimizer]:
    """Return a model whose variables were one, after one update with a constant gradient, and its optimizer."""
    model = small_model()
    for variable in model.trainable_variables:
        variable.assign(np.ones(variable.shape))
    optimizer = build_optimizer(
        optimizer_options(training_settings({"learning_rate": 0.1, **values}), STEPS_PER_EPOCH), model
    )
    optimizer.build(model.trainable_variables)
    optimizer.apply([np.full(each.shape, gradient, np.float32) for each in model.trainable_variables])
    return model, optimizer


def test_weight_decay_skips_biases_and_normalization():
    model, _ = moved({"weight_decay": 0.5}, gradient=0.0)
    after = {variable.name: variable.numpy().ravel()[0] for variable in model.trainable_variables}
    assert after == pytest.approx({"kernel": 1 - 0.1 * 0.5, "bias": 1.0, "gamma": 1.0, "beta": 1.0})


@pytest.mark.parametrize(("clip_norm", "norm"), [(0.0, 15**0.5), (2.0, 2.0), (100.0, 15**0.5)])
def test_gradients_are_clipped_by_their_global_norm(clip_norm: float, norm: float):
    _, optimizer = moved({"clip_norm": clip_norm}, gradient=1.0)  # of 6 + 3 + 3 + 3 numbers
    first_moments = [variable for variable in optimizer.variables if variable.path.endswith("momentum")]
    assert np.sqrt(sum(np.sum(np.square(each)) for each in first_moments)) == pytest.approx(0.1 * norm, rel=1e-5)
