from typing import get_args

import keras
import numpy as np
import pytest

from pipeline.config import ModelName, settings_from
from pipeline.training.models import build_model, with_probabilities

NAMES = get_args(ModelName)


@pytest.mark.parametrize("name", NAMES[1:])
def test_every_name_is_keras_own(name: str):
    assert callable(getattr(keras.applications, name))


def check(name: str) -> None:
    model = build_model(settings_from({"model": name, "image_size": 96}), classes=4)
    images = np.random.default_rng(0).integers(0, 256, (2, 96, 96, 3), np.uint8)
    assert model(images).shape == (2, 4)
    probabilities = with_probabilities(model).predict(images, verbose=0)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-4)


@pytest.mark.parametrize("name", ["small_cnn", "MobileNetV2"])
def test_a_model_takes_images_and_gives_a_number_a_class(name: str):
    check(name)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("small_cnn", "MobileNetV2")])
def test_a_larger_model_takes_images_and_gives_a_number_a_class(name: str):
    check(name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("MobileNetV2", 0, -1.0), ("MobileNetV2", 255, 1.0), ("EfficientNetV2B0", 255, 255.0)],
)
def test_the_input_is_scaled_as_the_published_weights_want_it(name: str, value: int, expected: float):
    assert scaled(name, value).tolist() == pytest.approx([expected] * 3)


def test_resnet_gets_blue_first_less_the_mean_of_imagenet():
    assert scaled("ResNet50", 255).tolist() == pytest.approx([255 - 103.939, 255 - 116.779, 255 - 123.68], rel=1e-4)


def scaled(name: str, value: int) -> np.ndarray:
    from pipeline.training.models import _scaled

    inputs = keras.Input((4, 4, 3))
    model = keras.Model(inputs, _scaled(inputs, name))
    return np.asarray(model(np.full((1, 4, 4, 3), value, np.uint8)))[0, 0, 0]
