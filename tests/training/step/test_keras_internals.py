"""The private parts of Keras that the project uses: these tests fail if an upgrade changes them."""

import math
from pathlib import Path

import keras
import pytest

from pipeline.training.step.keras_internals import AdamOfSums, CountedLossScale, attach_optimizer, set_direction


def test_each_update_calls_the_overridden_method_once(monkeypatch: pytest.MonkeyPatch):
    assert hasattr(keras.optimizers.Adam, "_all_reduce_sum_gradients")
    calls: list[int] = []

    def recorded(self: AdamOfSums, grads_and_vars: list) -> list:
        calls.append(len(grads_and_vars))
        return grads_and_vars

    monkeypatch.setattr(AdamOfSums, "_all_reduce_sum_gradients", recorded)
    variables = [keras.Variable([1.0, 2.0]), keras.Variable([3.0])]
    AdamOfSums(0.1).apply([keras.ops.ones((2,)), keras.ops.ones((1,))], variables)
    assert calls == [2]
    assert float(variables[1].numpy()[0]) == pytest.approx(2.9, abs=1e-3)


def test_each_update_counts_skipped_steps():
    optimizer, variable = CountedLossScale(AdamOfSums(0.1)), keras.Variable([1.0])
    counts = []
    for gradient in (math.nan, math.inf, 1.0, math.nan):
        optimizer.apply([keras.ops.convert_to_tensor([gradient])], [variable])
        counts.append(int(optimizer.skipped))
    assert counts == [1, 2, 0, 1]


def test_a_model_with_an_attached_optimizer_is_saved_without_the_optimizer(tmp_path: Path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = AdamOfSums(0.1)
    attach_optimizer(model, optimizer)
    assert model.optimizer is optimizer
    assert not model.compiled
    model.save(tmp_path / "model.keras")
    assert not keras.models.load_model(tmp_path / "model.keras").compiled


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("val_accuracy", (0.5, 0.9, 0.7), 0.9),
        ("val_loss", (0.5, 0.3, 0.4), 0.3),
        ("val_mae", (5.0, 3.0, 4.0), 3.0),
    ],
)
def test_a_direction_set_in_advance_is_used_after_the_first_epoch(monitor: str, values: tuple[float, ...], best: float):
    callback = keras.callbacks.EarlyStopping(monitor, patience=5)
    assert callback.mode == "auto"
    set_direction(callback)
    callback.set_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    callback.on_train_begin()
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {monitor: value})
    assert float(callback.best) == best


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.EarlyStopping("val_accuracy"),
        keras.callbacks.ModelCheckpoint("model.keras", "val_accuracy"),
        keras.callbacks.ReduceLROnPlateau("val_accuracy"),
    ],
)
def test_all_monitoring_callbacks_have_the_same_attributes(callback: keras.callbacks.Callback):
    set_direction(callback)
    assert (callback.monitor, callback.mode) == ("val_accuracy", "max")
