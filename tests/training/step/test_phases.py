"""Transfer learning in two phases on a small model. A stop does not change the result."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.config.automatic import training_settings
from pipeline.config.settings import Settings
from pipeline.training.model.models import base_of
from tests.training.small import BATCH, small

FROZEN = 2 * 2
"""The steps of two epochs."""


@pytest.fixture
def settings() -> Settings:
    of_transfer = {"freeze_epochs": 2, "weights": "/w.weights.h5", "model": "MobileNetV2"}
    return training_settings({"learning_rate": 0.01, "warmup_epochs": 0.5, "weight_decay": 0.1, **of_transfer})


@pytest.mark.long
def test_the_head_learns_first_and_the_base_after_the_frozen_epochs(settings: Settings, tmp_path: Path):
    training = small(settings, tmp_path)
    base = base_of(training.model)

    def of_base() -> list[np.ndarray]:  # includes the moving averages of normalization
        return [variable.numpy() for variable in base.weights]

    before, head = of_base(), training.model.layers[-1].kernel.numpy()
    training.train(FROZEN)
    assert all(np.array_equal(*pair) for pair in zip(of_base(), before, strict=True))
    assert not np.array_equal(training.model.layers[-1].kernel, head)
    training.train(1)
    assert not any(np.array_equal(*pair) for pair in zip(of_base(), before, strict=True))


@pytest.mark.long
def test_a_training_stopped_after_each_step_equals_an_uninterrupted_training(settings: Settings, tmp_path: Path):
    whole = small(settings, tmp_path / "whole")
    losses = whole.train(FROZEN + 2)
    again = []
    for _ in losses:
        stopped = small(settings, tmp_path / "stopped")
        again += stopped.train(1)
        stopped.save()
    assert again == pytest.approx(losses, rel=1e-6)
    for one, other in zip(whole.weights(), stopped.weights(), strict=True):
        assert np.allclose(one, other, rtol=1e-6)


@pytest.mark.long
def test_class_weights_change_the_training_loss_but_not_the_evaluation_loss(tmp_path: Path):
    plain = small(training_settings({}), tmp_path / "plain")
    other = small(training_settings({"class_weights": "balanced"}), tmp_path / "other")
    assert other.steps.evaluate(*BATCH)[0] == plain.steps.evaluate(*BATCH)[0]
    assert other.train(1)[0] != pytest.approx(plain.train(1)[0], rel=1e-3)
