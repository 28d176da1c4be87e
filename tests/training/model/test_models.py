import json
import zipfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import keras
import numpy as np
import pytest

from pipeline.config.automatic import training_settings
from pipeline.config.example_kinds import APPLICATIONS, IMAGES, KINDS
from pipeline.errors import SettingsError
from pipeline.training.model.models import ModelOptions, base_of, build_model, model_options, with_probabilities


@pytest.mark.parametrize("name", APPLICATIONS)
def test_every_application_exists_in_keras(name: str):
    assert callable(getattr(keras.applications, name))


def check(name: str) -> None:
    model = build_model(model_options(training_settings({"model": name, "image_size": 96})), classes=4)
    images = np.random.default_rng(0).integers(0, 256, (2, 96, 96, 3), np.uint8)
    assert model(images).shape == (2, 4)
    probabilities = with_probabilities(model).predict(images, verbose=0)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-4)


@pytest.mark.parametrize("name", ["small_cnn", "MobileNetV2"])
def test_a_model_maps_images_to_one_logit_per_class(name: str):
    check(name)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in KINDS[IMAGES].models if name not in ("small_cnn", "MobileNetV2")])
def test_a_larger_model_maps_images_to_one_logit_per_class(name: str):
    check(name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("MobileNetV2", 0, -1.0), ("MobileNetV2", 255, 1.0), ("EfficientNetV2B0", 255, 255.0)],
)
def test_the_input_is_scaled_to_the_range_of_the_published_weights(name: str, value: int, expected: float):
    assert scaled(name, value).tolist() == pytest.approx([expected] * 3)


def test_resnet_gets_bgr_pixels_minus_the_imagenet_mean():
    assert scaled("ResNet50", 255).tolist() == pytest.approx([255 - 103.939, 255 - 116.779, 255 - 123.68], rel=1e-4)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_input_is_scaled_like_preprocess_input_of_keras(name: str):
    """For models that scale their input themselves, `preprocess_input` does nothing."""
    module = import_module(getattr(keras.applications, name).__module__)
    pixels = np.full((1, 4, 4, 3), 40, np.float32)
    assert scaled(name, 40).tolist() == pytest.approx(module.preprocess_input(pixels)[0, 0, 0].tolist(), rel=1e-4)


def scaled(name: str, value: int) -> np.ndarray:
    from pipeline.training.model.models import _scaled

    inputs = keras.Input((4, 4, 3))
    model = keras.Model(inputs, _scaled(inputs, name))
    return np.asarray(model(np.full((1, 4, 4, 3), value, np.uint8)))[0, 0, 0]


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_a_mixed_precision_model_has_float32_inputs_and_logits(precision: str, tmp_path: Path):
    model = build_model(model_options(training_settings({"precision": precision, "image_size": 32})), classes=3)
    assert keras.config.dtype_policy().name == "float32"
    of_layer = {layer.name.split("_")[0]: layer.compute_dtype for layer in model.layers}
    assert (of_layer["conv2d"], of_layer["rescaling"], of_layer["logits"]) == (precision[6:], "float32", "float32")
    assert {variable.dtype for variable in model.weights} == {"float32"}
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    assert model(images).dtype == "float32"

    saved = with_probabilities(model)
    saved.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert np.array_equal(loaded.predict(images, verbose=0), saved.predict(images, verbose=0))


def test_a_failed_build_resets_the_dtype_policy():
    with pytest.raises(OSError, match="no_such"):
        build_model(
            model_options(training_settings({"precision": "mixed_float16", "weights": "/no_such.weights.h5"})), 4
        )
    assert keras.config.dtype_policy().name == "float32"


def test_the_base_of_a_model_is_everything_but_the_logits():
    model = build_model(model_options(training_settings({"model": "MobileNetV2", "image_size": 32})), 4)
    head = {variable.path for variable in model.weights} - {variable.path for variable in base_of(model).weights}
    assert head == {"logits/kernel", "logits/bias"}


# --- user functions ---------------------------------------------------------------------------------------------------

OWN = """
import keras
from keras import layers

def sequential(image_size, classes):
    return keras.Sequential([layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(classes)])

def functional(image_size, classes):
    inputs = keras.Input((image_size, image_size, 3))
    return keras.Model(inputs, layers.Dense(classes)(layers.Flatten()(inputs)))

class Subclass(keras.Model):
    def __init__(self, classes, **options):
        super().__init__(**options)
        self.classes, self.flat, self.dense = classes, layers.Flatten(), layers.Dense(classes)

    def call(self, images):
        return self.dense(self.flat(images))

class Saved(Subclass):
    def get_config(self):
        return {"classes": self.classes}

def subclass(image_size, classes): return Saved(classes)
def unsaved(image_size, classes): return Subclass(classes)
def too_many(image_size, classes): return functional(image_size, classes + 1)
def too_large(image_size, classes): return functional(image_size + 1, classes)
def nothing(image_size, classes): pass
def fails(image_size, classes): return [][classes]

def two(image_size, classes):
    inputs = keras.Input((image_size, image_size, 3))
    return keras.Model(inputs, [functional(image_size, classes)(inputs)] * 2)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user package on the path of Python. Its name is unique to the test, because Python caches imports."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def own_options(name: str, **values: str) -> ModelOptions:
    return ModelOptions(name, image_size=32, **values)


@pytest.mark.parametrize("name", ["sequential", "functional", "subclass"])
def test_a_user_function_makes_a_model_that_can_be_saved(name: str, own: str, tmp_path: Path):
    model = with_probabilities(build_model(own_options(f"{own}:{name}"), 4))
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    assert np.allclose(model.predict(images, verbose=0).sum(axis=1), 1, atol=1e-4)
    model.save(tmp_path / "model.keras")
    assert (model.name, (tmp_path / "model.keras").exists()) == (name, True)


def test_a_user_model_has_float32_logits_in_mixed_precision(own: str):
    model = build_model(own_options(f"{own}:functional", precision="mixed_float16"), 4)
    assert (model.layers[-1].dtype_policy.name, model.outputs[0].dtype) == ("mixed_float16", "float32")


def test_a_user_model_can_load_weights_from_a_file(own: str, tmp_path: Path):
    first = build_model(own_options(f"{own}:functional"), 4)
    first.layers[-1].save_weights(tmp_path / "own.weights.h5")
    again = build_model(own_options(f"{own}:functional", weights=str(tmp_path / "own.weights.h5")), 4)
    for one, other in zip(first.get_weights(), again.get_weights(), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", r"does not exist, because .*/own_.*\.py has no 'gone': name a function of this module$"),
        ("functionall", r"does not exist, because .*/own_.*\.py has no 'functionall': did you mean 'functional'\?$"),
        ("fails", r"failed, called with \(32, 4\) \(IndexError: list index out of range\)"),
        ("nothing", "must return a keras.Model, got NoneType"),
        ("too_many", r"must return one logit per class, with the shape \(None, 4\), got \(None, 5\)"),
        ("two", r"must return one logit per class, with the shape \(None, 4\), got list"),
        ("too_large", r"must take images of the shape \(None, 32, 32, 3\) \(ValueError: "),
        ("unsaved", r"must be a model that Keras can save \(NotImplementedError: .*get_config"),
    ],
)
def test_an_unusable_model_function_is_refused_in_one_line(name: str, message: str, own: str):
    with pytest.raises(SettingsError, match=rf"^model '{own}:{name}' {message}") as caught:
        build_model(own_options(f"{own}:{name}"), 4)
    assert "\n" not in str(caught.value)


def test_a_missing_package_of_a_model_is_refused():
    with pytest.raises(SettingsError, match=r"^model 'no_such:make' cannot be imported: .*No module named 'no_such'"):
        build_model(own_options("no_such:make"), 4)


def test_the_error_for_a_package_that_fails_to_import_names_its_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "own_failing.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    message = (
        r"^model 'own_failing:make' cannot be imported: correct its module \(ZeroDivisionError: division by zero\)"
    )
    with pytest.raises(SettingsError, match=message):
        build_model(own_options("own_failing:make"), 4)


@pytest.mark.parametrize("model", ["small_cnn", "own"])
def test_loading_a_weights_file_runs_no_code(model: str, own: str, tmp_path: Path):
    """Keras reads only the arrays of a .keras file. Its layers could run arbitrary code."""
    options = own_options(f"{own}:sequential" if model == "own" else model)
    trained = build_model(options, 4)
    (trained.layers[-1] if model == "own" else trained).save(tmp_path / "model.keras")
    plant(tmp_path / "model.keras", tmp_path / "it_ran")
    build_model(replace(options, weights=str(tmp_path / "model.keras")), 4)
    assert not (tmp_path / "it_ran").exists()
    with pytest.raises(ValueError, match="arbitrary code execution"):
        keras.models.load_model(tmp_path / "model.keras")
    keras.models.load_model(tmp_path / "model.keras", safe_mode=False)
    assert (tmp_path / "it_ran").exists()  # proves that the planted code works


def plant(model: Path, trace: Path) -> None:
    """Replace the layers of a .keras file by a function, which creates a file when it runs."""
    name = str(trace)
    layer = keras.layers.Lambda(lambda images: __import__("pathlib").Path(name).touch() or images)
    inputs = keras.Input((32, 32, 3))
    code = keras.saving.serialize_keras_object(keras.Model(inputs, layer(inputs)))
    trace.unlink()  # building the layer ran the function
    with zipfile.ZipFile(model) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(model, "w") as archive:
        for name, content in {**files, "config.json": json.dumps(code).encode()}.items():
            archive.writestr(name, content)
