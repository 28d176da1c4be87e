"""A user model that is certain to fail is refused before an image is sharded."""

import logging
import sys
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.config.settings import settings_from
from pipeline.errors import SettingsError
from pipeline.runs.own_code import require_own_code
from tests.conftest import MakeImages

OWN = """
import atexit, os

def no_model(image_size, classes):
    return classes

def one_argument(image_size):
    raise NotImplementedError

def fails(image_size, classes):
    return [][classes]

def ends(image_size, classes):
    os._exit(0)

def of_layer(layer, image_size, classes):
    import keras
    image = keras.Input((image_size, image_size, 3))
    return keras.Model(image, layer(keras.layers.Dense(classes)(keras.layers.Flatten()(image))))

def fails_in_training(image_size, classes):
    import keras
    class Fails(keras.layers.Layer):
        def call(self, inputs, training=None):
            if training:
                raise NotImplementedError("not yet")
            return inputs
    return of_layer(Fails(), image_size, classes)

def without_gradient(image_size, classes):
    import keras
    return of_layer(keras.ops.stop_gradient, image_size, classes)

def with_unused_weight(image_size, classes):
    import keras
    class Unused(keras.layers.Layer):
        def build(self, shape):
            self.add_weight(shape=(3,))
        def call(self, inputs):
            return inputs
    return of_layer(Unused(), image_size, classes)

def prints(image_size, classes):
    import keras
    atexit.register(print, "good bye")
    os.write(1, b"\\xff")
    image = keras.Input((image_size, image_size, 3))
    return keras.Model(image, keras.layers.Dense(classes)(keras.layers.Flatten()(image)))
"""
FAILS = "import package_of_the_gpu_workers"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(OWN)
    (tmp_path / "own_failing.py").write_text(FAILS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.long
@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_model", "must return a keras.Model, got int"),
        ("one_argument", "must take (32, 2), but has the arguments (image_size)"),
        ("fail", "has no 'fail': did you mean 'fails'?"),
    ],
)
def test_a_run_reports_an_unusable_user_model_once(
    name: str,
    message: str,
    make_images: MakeImages,
    tmp_path: Path,
    capfd: pytest.CaptureFixture,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, "pipeline")
    values = {"source_uri": make_images({"a": 4, "b": 4}), "workspace": tmp_path / "w", "image_size": 32}
    assignments = [f"{field}={value}" for field, value in {**values, "model": f"own_models:{name}"}.items()]
    assert main(["run", *(each for assignment in assignments for each in ("--set", assignment))]) == 1
    output = capfd.readouterr().err
    assert (output + caplog.text).count(message) == 1
    assert f"checking the model own_models:{name}" in caplog.text
    assert not list((tmp_path / "w").rglob("*.tfrecord*"))


@pytest.mark.long
@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("own_models:fails", "failed, called with (32, 2) (IndexError"),
        ("own_failing:make", "No module named 'package_of_the_gpu_workers'"),
        ("own_gone:make", "No module named 'own_gone'"),
        ("own_models:ends", "could not check the model"),
        ("own_models:prints", ""),
        ("own_models:with_unused_weight", ""),
    ],
)
def test_a_user_model_that_may_work_on_the_training_worker_is_accepted(
    model: str, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    places = {"source_uri": str(tmp_path), "workspace": str(tmp_path / "w"), "image_size": 32}
    require_own_code(settings_from({**places, "model": model}), 2)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [message in warning for warning in warnings] == ([True] if message else [])


@pytest.mark.long
@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("model", "values", "multi_label", "message"),
    [
        (
            "fails_in_training",
            {"micro_batches": 3},
            True,
            r"cannot take a training step: .*NotImplementedError: .*call\(\). not yet",
        ),
        ("without_gradient", {"precision": "mixed_float16", "xla": True}, False, "the loss depends on no weight"),
    ],
)
def test_a_model_that_fails_in_the_first_step_is_refused(
    model: str, values: dict, multi_label: bool, message: str, tmp_path: Path
):
    places = {"source_uri": str(tmp_path), "workspace": str(tmp_path / "w"), "image_size": 32}
    with pytest.raises(SettingsError, match=message):
        require_own_code(
            settings_from({**places, **values, "model": f"own_models:{model}"}), 2, multi_label=multi_label
        )


@pytest.fixture
def without_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules on a worker without TensorFlow. Importing one of them is an error."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("import tensorflow")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def small(image_size, classes): ...", ""),
        ("if True:\n    from others import tiny as small", ""),
        ("small = lambda image_size, classes: None", ""),
        ("from others import *", ""),
        ("def __getattr__(name): ...", ""),
        ("def smal(image_size, classes): ...", "has no 'small': did you mean 'smal'?"),
        ("import tensorflow", "has no 'small': name a function of this module"),
        ("def small(", "is not valid Python"),
    ],
)
@pytest.mark.parametrize("module", ["models", "parts.models"])
def test_a_worker_without_tensorflow_searches_the_source_for_the_function(
    without_tensorflow: Path, module: str, source: str, message: str
):
    file = without_tensorflow / f"{module.replace('.', '/')}.py"
    file.write_text(source)
    settings = settings_from({"model": f"{module}:small"})
    if not message:
        require_own_code(settings, 2)
        return
    with pytest.raises(SettingsError, match=f"model '{module}:small'.*{file}.*") as refused:
        require_own_code(settings, 2)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "model", ["nowhere:small", "parts.nowhere:small", "models.models:small", "math:small", "small_cnn"]
)
def test_a_worker_without_tensorflow_accepts_a_model_that_it_cannot_inspect(without_tensorflow: Path, model: str):
    (without_tensorflow / "models.py").touch()
    require_own_code(settings_from({"model": model}), 2)
