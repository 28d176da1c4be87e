"""The differences between tasks with one label and with several labels per image."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.records.format import RecordFormat
from pipeline.training.model.losses import sigmoid_cross_entropy
from pipeline.training.model.models import ModelOptions, build_model, with_probabilities
from pipeline.training.model.task import Classes, OneLabel, SeveralLabels
from pipeline.training.model.tensor_kind import task_of
from pipeline.training.step.steps import StepOptions, Steps
from tests.training.model.test_losses import DATASET

LABELS = tf.constant([[1, 0, 1], [0, 0, 0], [0, 1, 0]], tf.uint8)
LOGITS = tf.constant([[2.0, -1.0, 0.5], [-3.0, 0.5, -1.0], [-1.0, 9.0, -0.1]])
SEVERAL = task_of(replace(DATASET, records=RecordFormat(multi_label=True)))


def test_the_dataset_decides_the_task():
    assert isinstance(SEVERAL, SeveralLabels)
    assert isinstance(task_of(DATASET), OneLabel)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_the_multilabel_loss_equals_binary_cross_entropy_of_keras(smoothing: float):
    of_keras = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=smoothing, reduction="none")
    loss = SEVERAL.training_loss(smoothing, None)
    assert np.allclose(loss(LABELS, LOGITS), of_keras(tf.cast(LABELS, tf.float32), LOGITS))
    by_hand = np.log1p(np.exp([-2.0, -1.0, -0.5])).mean()
    assert float(sigmoid_cross_entropy(LABELS, LOGITS)[0]) == pytest.approx(by_hand)


def test_the_output_of_a_model_that_ends_in_a_sigmoid_is_taken_as_logits_everywhere():
    # Keras' own loss would take the numbers before the sigmoid, unlike the metric and the exported model.
    output = keras.activations.sigmoid(LOGITS)
    assert np.allclose(SEVERAL.loss(LABELS, output), SEVERAL.loss(LABELS, tf.constant(output.numpy())))


def test_a_multilabel_prediction_is_correct_if_all_labels_match():
    assert SEVERAL.measured(LABELS, LOGITS).numpy().tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("task", "values", "better"),
    [
        (SEVERAL, {"val_loss": 0.1, "val_accuracy": 0.2}, True),
        (SEVERAL, {"val_loss": 0.4, "val_accuracy": 0.9}, False),
        (Classes(), {"val_loss": 0.1, "val_accuracy": 0.2}, True),
        (Classes(), {"val_loss": 0.4, "val_accuracy": 0.9}, False),
        (OneLabel(), {"val_loss": 0.1, "val_accuracy": 0.2}, False),
        (OneLabel(), {"val_loss": 0.4, "val_accuracy": 0.9}, True),
    ],
)
def test_the_task_decides_which_epoch_is_better(task, values: dict, better: bool):
    assert task.is_better(values, {"val_loss": 0.3, "val_accuracy": 0.5}) == better


def test_each_label_has_an_independent_probability():
    model = build_model(ModelOptions("small_cnn", image_size=32), classes=3)
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    probabilities = with_probabilities(model, SEVERAL).predict(images, verbose=0)
    assert np.allclose(probabilities, 1 / (1 + np.exp(-model(images).numpy())), atol=1e-6)


def test_served_labels_are_those_over_50_percent_in_order_of_probability():
    names = tf.constant([b"a", b"b", b"c"])
    served = SEVERAL.served(tf.constant([[0.6, 0.5, 0.9], [0.1, 0.7, 0.2], [0.1, 0.2, 0.3]]), names)["labels"]
    assert served.numpy().tolist() == [[b"c", b"a"], [b"b", b""], [b"", b""]]
    assert SEVERAL.served(tf.constant([[0.1, 0.2, 0.3]]), names)["labels"].shape == (1, 0)


def test_a_step_sums_losses_and_exact_matches_without_padding():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    steps = Steps(tf.distribute.OneDeviceStrategy("/cpu:0"), model, keras.optimizers.SGD(), StepOptions(task=SEVERAL))
    sums = steps.evaluate(LOGITS, LABELS, tf.constant([1.0, 1.0, 0.0]), tf.constant(0.0)).numpy()
    assert sums.tolist() == pytest.approx([float(tf.reduce_sum(sigmoid_cross_entropy(LABELS, LOGITS)[:2])), 1, 2, 0])
