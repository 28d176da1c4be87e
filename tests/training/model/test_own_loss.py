"""A loss of the user's own: what it gets, and what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config.settings import settings_from
from pipeline.errors import OwnCodeError, SettingsError
from pipeline.runs.own_code import require_own_code
from pipeline.training.model.own_loss import own_loss
from pipeline.training.model.task import ONE_LABEL, Regression

LOGITS = tf.constant([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]])
LABELS = tf.constant([0, 2])
OWN = """
import keras
import tensorflow as tf

class Fails(keras.layers.Layer):
    def call(self, inputs, training=False):
        if training:
            raise NotImplementedError("not yet")
        return inputs

def fails_in_training(image_size, classes):
    image = keras.Input((image_size, image_size, 3))
    return keras.Model(image, Fails()(keras.layers.Dense(classes)(keras.layers.Flatten()(image))))

def focal(labels, logits):
    log_p = tf.nn.log_softmax(logits)
    of_label = tf.gather(log_p, labels, batch_dims=1)
    return -((1 - tf.exp(of_label)) ** 2) * of_label

def absolute(labels, outputs):
    return tf.abs(outputs[:, 0] - labels)

def one_argument(labels):
    return labels

def mean(labels, logits):
    return tf.reduce_mean(focal(labels, logits))

def of_classes(labels, logits):
    return logits

def another_number(labels, logits):
    return focal(labels, logits)[:1]

def fails(labels, logits):
    return logits @ logits

def constant(labels, logits):
    return tf.zeros_like(logits[:, 0])
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_losses.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_loss_gets_labels_and_logits():
    shares = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    of_labels = shares[[0, 1], LABELS]
    expected = -((1 - of_labels) ** 2) * np.log(of_labels)
    assert np.allclose(own_loss("own_losses:focal", ONE_LABEL)(LABELS, LOGITS), expected)


def test_a_loss_of_a_regression_gets_targets_in_the_unit_of_the_outputs():
    task = Regression(mean=1e9, deviation=2.0)
    labels, outputs = tf.constant([1e9, 1e9 + 3], tf.float64), tf.constant([[0.5], [0.5]])
    assert np.allclose(own_loss("own_losses:absolute", task)(labels, outputs), [0.5, 1.0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one_argument", "must take (labels, logits), but has the arguments (labels)"),
        ("mean", "must return one loss for each example, with the shape (2,), got (): do not reduce over the batch"),
        ("of_classes", "must return one loss for each example, with the shape (2,), got (2, 3)"),
        ("another_number", "must return one loss for each example, with the shape (2,), got (1,)"),
        ("fails", "failed (InvalidArgumentError: "),
    ],
)
def test_a_loss_that_cannot_be_used_is_named(name: str, message: str):
    with pytest.raises(SettingsError, match=re.escape(f"loss 'own_losses:{name}' {message}")):
        own_loss(f"own_losses:{name}", ONE_LABEL)(LABELS, LOGITS)


def test_a_missing_function_or_module_is_named():
    with pytest.raises(SettingsError, match="has no 'focl': did you mean 'focal'"):
        own_loss("own_losses:focl", ONE_LABEL)
    with pytest.raises(OwnCodeError, match="loss 'own_gone:focal' cannot be imported"):
        own_loss("own_gone:focal", ONE_LABEL)


@pytest.mark.parametrize("values", [{"label_smoothing": 0.1}, {"class_weights": "balanced"}])
def test_settings_of_the_cross_entropy_are_refused(values: dict[str, object]):
    with pytest.raises(SettingsError, match="loss must be empty with label_smoothing or class_weights"):
        settings_from({"loss": "own_losses:focal", **values})


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mean", "must return one loss for each example"),
        ("constant", "the loss depends on no weight of the model: .*a loss of your own must use the logits"),
        ("focal", ""),
    ],
)
def test_a_loss_is_checked_before_a_shard_is_written(name: str, message: str):
    settings = settings_from({"loss": f"own_losses:{name}", "model": "small_cnn", "image_size": 32})
    if not message:
        require_own_code(settings, 3)
        return
    with pytest.raises(SettingsError, match=message):
        require_own_code(settings, 3)


@pytest.mark.long
def test_both_functions_are_named_if_either_may_be_wrong():
    settings = settings_from({"loss": "own_losses:focal", "model": "own_losses:fails_in_training", "image_size": 32})
    both = "model 'own_losses:fails_in_training' with loss 'own_losses:focal' cannot take a training step"
    with pytest.raises(SettingsError, match=both):
        require_own_code(settings, 3)
