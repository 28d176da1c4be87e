"""Checkpoints: weights, optimizer, and how far the training is. A rerun goes on from the last one."""

import logging
from dataclasses import astuple, fields
from pathlib import Path

import keras
import tensorflow as tf

from pipeline.training.loop import Sums

KEPT = 2
_NOT_SAID = -1
_log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one training, in one folder. Each is whole or absent: its index is written last."""

    def __init__(self, folder: Path, model: keras.Model, optimizer: keras.Optimizer) -> None:
        self.epochs_done = tf.Variable(0, dtype=tf.int64)
        self.step = tf.Variable(0, dtype=tf.int64)
        self._keeps = tf.Variable(_NOT_SAID, dtype=tf.int64)
        self._sums = tf.Variable(tf.zeros(len(fields(Sums)), tf.float64))
        optimizer.build(model.trainable_variables)  # its variables must exist before they can be restored
        state = tf.train.Checkpoint(
            model=model,
            optimizer=optimizer,
            seeds=_seeds(model),
            epochs_done=self.epochs_done,
            step=self.step,
            sums=self._sums,
            keeps=self._keeps,
        )
        self._manager = tf.train.CheckpointManager(state, str(folder), max_to_keep=KEPT, checkpoint_name="checkpoint")

    def restore(self) -> None:
        """Go back to the last checkpoint, if there is one."""
        if self._manager.restore_or_initialize():
            _log.info("going on after epoch %d, step %d", int(self.epochs_done), int(self.step))

    @property
    def sums(self) -> Sums:
        """Those of the epoch that was under way."""
        examples, *others = self._sums.numpy().tolist()
        return Sums(int(examples), *others)

    @property
    def keeps(self) -> bool | None:
        """Whether decoded images were kept; None before the first checkpoint."""
        return None if int(self._keeps) == _NOT_SAID else bool(self._keeps)

    def save(self, epochs_done: int, step: int, sums: Sums, keeps: bool) -> None:
        """Write a checkpoint with the number of epochs and steps behind it, and what the epoch under way has given."""
        self.epochs_done.assign(epochs_done)
        self.step.assign(step)
        self._sums.assign(astuple(sums))
        self._keeps.assign(int(keeps))
        self._manager.save(checkpoint_number=step)


def _seeds(model: keras.Model) -> list[keras.Variable]:
    """The counts of dropout's random numbers. TensorFlow does not find them, and would begin anew after a stop."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]
