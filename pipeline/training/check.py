"""Check a user's own model and loss: `python -m pipeline.training.check CLASSES LABELS ANSWER < SETTINGS`.

The process builds the model and traces a training step, as the first step of a training does. LABELS is `one` or
`several`: the labels of an image. SETTINGS are JSON. The file ANSWER gets JSON, too: {}, or the error as
`error_to_json` if the model cannot be trained. The user's code may print to stdout at any time, so stdout is not used.
"""

import json
import sys
from pathlib import Path

import keras
import tensorflow as tf

from pipeline.config.automatic import TrainingSettings, training_settings
from pipeline.errors import SettingsError, error_to_json
from pipeline.training.model.models import build_model, model_options
from pipeline.training.model.own_functions import explain_errors
from pipeline.training.model.own_loss import own_loss
from pipeline.training.model.task import ONE_LABEL, SeveralLabels, Task
from pipeline.training.step.steps import StepOptions, Steps


def main(classes: int, labels: str, answer: Path) -> None:
    """Check the model of the settings on stdin and write what is wrong with it."""
    settings = training_settings(json.load(sys.stdin))
    failure = {}
    try:
        model = build_model(model_options(settings), classes)
        functions = {"model": settings.model if ":" in settings.model else "", "loss": settings.loss}
        own = " with ".join(f"{name} {function!r}" for name, function in functions.items() if function)
        with explain_errors(f"{own} cannot take a training step: correct what it does in training"):
            trace_step(model, settings, ONE_LABEL if labels == "one" else SeveralLabels())
    # Any other error ends this process. Its parent then warns, and leaves the check to the training.
    except SettingsError as error:
        failure = error_to_json(error)
    answer.write_text(json.dumps(failure))


def trace_step(model: keras.Model, settings: TrainingSettings, task: Task) -> None:
    """Trace a training step of a model of images on one device, without computing anything.

    Raises whatever the model or its gradients raise.
    """
    # The memory of this worker may be too small for the averages of Adam.
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    options = StepOptions(
        task=task,
        loss=own_loss(settings.loss, task) if settings.loss else task.training_loss(settings.label_smoothing, None),
        flip=settings.flip,
        color_jitter=settings.color_jitter,
        micro_batches=settings.micro_batches,
        xla=settings.xla,
    )
    # A batch for one device. Other numbers of devices are not known yet, and divide it further.
    batch = settings.batch_size - settings.batch_size % settings.micro_batches
    size, classes = settings.image_size, model.outputs[0].shape[-1]
    is_one = task is ONE_LABEL
    Steps(tf.distribute.OneDeviceStrategy("/cpu:0"), model, optimizer, options).train.get_concrete_function(
        tf.TensorSpec((batch, size, size, 3), tf.uint8),
        tf.TensorSpec((batch,), tf.int32) if is_one else tf.TensorSpec((batch, classes), tf.uint8),
        tf.TensorSpec((batch,), tf.float32),
        tf.TensorSpec((batch,), tf.bool),
        tf.TensorSpec((), tf.float32),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
