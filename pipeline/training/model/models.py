"""Models of images by name. They take images of 0 to 255, (batch, size, size, 3), and give logits, (batch, classes)."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras

from pipeline.config.automatic import TrainingSettings
from pipeline.errors import OwnCodeError, SettingsError
from pipeline.training.model.own_functions import explain_errors, import_function, require_arguments
from pipeline.training.model.task import ONE_LABEL, Task


@dataclass(frozen=True)
class ModelOptions:
    """Which model is built."""

    name: str
    """A known model, or a function of the user's own as package.module:function."""
    image_size: int = 0
    """Side of the square images that it takes, in pixels."""
    weights: str = ""
    """A local file of weights; empty: random ones."""
    precision: str = "float32"
    """Numeric precision of its layers. Its weights and logits are always float32."""


def model_options(settings: TrainingSettings) -> ModelOptions:
    """Return the options of some settings."""
    return ModelOptions(settings.model, settings.image_size, settings.weights, settings.precision)


def build_model(options: ModelOptions, classes: int) -> keras.Model:
    """Build a model of images.

    Raises:
        ValueError, OSError: If the file of weights does not fit.
        SettingsError: If a function of the user's own cannot be used.
    """
    with dtype_policy(options.precision):
        size = options.image_size
        inputs = keras.Input((size, size, 3), name="image")
        if ":" in options.name:
            called = f"({size}, {classes})"
            return own_model(options, (size, classes), called, inputs, f"images of the shape {inputs.shape}")
        if options.name == "small_cnn":
            return with_weights(keras.Model(inputs, _small_cnn(inputs, classes), name="small_cnn"), options)
        application = getattr(keras.applications, options.name)
        base = application(include_top=False, weights=options.weights or None, input_shape=(size, size, 3))
        return keras.Model(inputs, _head(base(_scaled(inputs, options.name)), classes), name=options.name)


def with_weights(model: keras.Model, options: ModelOptions) -> keras.Model:
    """Return the same model, with the weights of the file if the options name one."""
    if options.weights:
        model.load_weights(options.weights)
    return model


@contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Make layers in the block with a policy. Keras has one policy for the whole process, so restore it afterwards."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def base_of(model: keras.Model) -> keras.Model:
    """Return the part of a model that comes from keras.applications: all but scaling and head."""
    return next(layer for layer in model.layers if isinstance(layer, keras.Model))


def with_probabilities(model: keras.Model, task: Task = ONE_LABEL) -> keras.Model:
    """Return a model with the same weights that gives probabilities, or values: the form in which models are saved."""
    # A model of a table takes a dict, whose keys a list of inputs would lose.
    inputs = _inputs_by_name(model) or model.inputs
    return functional(inputs, task.predictions()(model.outputs[0]), name=model.name)


def functional(inputs: Any, outputs: Any, name: str) -> keras.Model:
    """Return a model of these inputs. If they are a dict, a key may differ from the name of its input.

    Keras warns of that. But the names of columns cannot be those of inputs: Keras refuses a slash in a name, and a name
    that a layer of the model has already.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "When providing `inputs` as a dict", UserWarning)
        return keras.Model(inputs, outputs, name=name)


def own_model(options: ModelOptions, arguments: tuple[Any, int], called: str, inputs: Any, taken: str) -> keras.Model:
    """Build the model of a function of the user's own, and add nothing before it: users need not guess at a scaling.

    The last one of its `arguments` is the number of logits. Error messages have the arguments in words as `called`, and
    the inputs of the model as `taken`. Raises SettingsError if the function cannot be used.
    """
    what = f"model {options.name!r}"
    classes = arguments[-1]
    function = import_function(what, options.name)
    require_arguments(what, function, *arguments, described=called)
    with explain_errors(f"{what} failed, called with {called}", OwnCodeError):
        own = function(*arguments)
    if not isinstance(own, keras.Model):
        raise SettingsError(f"{what} must return a keras.Model, got {type(own).__name__}")
    with explain_errors(f"{what} must take {taken}"):
        # A model of a table may take only some of its columns.
        names = _inputs_by_name(own) if isinstance(inputs, dict) else None
        logits = own({name: inputs[name] for name in names} if names else inputs)
    shape = getattr(logits, "shape", type(logits).__name__)
    if shape != (None, classes):
        raise SettingsError(f"{what} must return one logit per class, with the shape {(None, classes)}, got {shape}")
    # Into the user's own model, because the file knows nothing of the layers that are added here.
    with_weights(own, options)
    # Logits of half precision overflow in the loss, and the user's model may compute in half precision.
    model = functional(inputs, keras.ops.cast(logits, "float32"), name=options.name.partition(":")[2])
    with explain_errors(f"{what} must be a model that Keras can save"):  # Otherwise it fails after the first epoch.
        keras.saving.serialize_keras_object(model)
    return model


def _inputs_by_name(model: keras.Model) -> dict[str, Any] | None:
    """Return the inputs of a model that takes a dict; None for others, and for a subclass, which states no inputs."""
    inputs = getattr(model, "input", None)
    return inputs if isinstance(inputs, dict) else None


def _small_cnn(images: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Return a model of four blocks of convolutions, each at half the resolution of the one before."""
    x = _scaled_to_one(images)
    for filters in (32, 64, 96, 128):
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        # Momentum 0.9: with a few hundred images an epoch the default 0.99 never reaches the data's own mean.
        x = keras.layers.BatchNormalization(momentum=0.9)(x)
        x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D()(x)
    return _head(x, classes)


def _scaled(images: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Return the images as the published weights of a model of keras.applications were trained on them."""
    match name:
        case "MobileNetV2" | "InceptionResNetV2":
            return _scaled_to_one(images)
        case "MobileNetV3Small" | "MobileNetV3Large" | "EfficientNetV2B0":  # They scale images themselves.
            return keras.ops.cast(images, "float32")
        case "ResNet50":  # Blue first, less the mean of ImageNet.
            mean = (103.939, 116.779, 123.68)
            less_mean = keras.layers.Normalization(mean=mean, variance=(1.0, 1.0, 1.0), dtype="float32")
            return less_mean(keras.ops.flip(keras.ops.cast(images, "float32"), axis=-1))
    raise ValueError(f"no scaling is known for {name}")


def _scaled_to_one(images: keras.KerasTensor) -> keras.KerasTensor:
    # float32 whatever the policy: in bfloat16 neighboring shades become one.
    return keras.layers.Rescaling(1 / 127.5, offset=-1, dtype="float32")(images)


def _head(x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dropout(0.2)(x)
    # float32 whatever the policy: logits of half precision overflow in the loss.
    return keras.layers.Dense(classes, dtype="float32", name="logits")(x)
