"""A loss of the user's own, which the setting `loss` names."""

import tensorflow as tf

from pipeline.errors import SettingsError
from pipeline.training.model.losses import Loss
from pipeline.training.model.own_functions import explain_errors, import_function, require_arguments
from pipeline.training.model.task import Task


def own_loss(name: str, task: Task) -> Loss:
    """Return the loss of a function, named as package.module:function, which gets the targets of the task, and logits.

    Raises:
        OwnCodeError: If its module cannot be imported.
        SettingsError: If the module has no such function. The loss raises it if the function cannot take two arguments,
            fails, or does not return one loss for each example.
    """
    what = f"loss {name!r}"
    function = import_function(what, name)

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        targets = task.targets(labels)
        require_arguments(what, function, targets, logits, described="(labels, logits)")
        with explain_errors(f"{what} failed"):
            losses = tf.cast(function(targets, logits), tf.float32)
        # The examples that only fill up a batch would count in a mean over the batch.
        if losses.shape.rank != 1 or not losses.shape.is_compatible_with(logits.shape[:1]):
            raise SettingsError(
                f"{what} must return one loss for each example, with the shape {logits.shape[:1]}, got "
                f"{losses.shape}: do not reduce over the batch"
            )
        return losses

    return loss
