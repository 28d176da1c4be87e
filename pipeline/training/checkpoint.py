"""Checkpoints: weights, optimizer, and how far the training is. A rerun goes on from the last one."""

import logging
from pathlib import Path

import keras
import tensorflow as tf

KEPT = 2
_log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one training, in one folder. Each is whole or absent: its index is written last."""

    def __init__(self, folder: Path, model: keras.Model, optimizer: keras.Optimizer) -> None:
        self.epochs_done = tf.Variable(0, dtype=tf.int64)
        self.step = tf.Variable(0, dtype=tf.int64)
        optimizer.build(model.trainable_variables)  # its variables must exist before they can be restored
        state = tf.train.Checkpoint(
            model=model,
            optimizer=optimizer,
            epochs_done=self.epochs_done,
            step=self.step,
        )
        self._manager = tf.train.CheckpointManager(state, str(folder), max_to_keep=KEPT, checkpoint_name="checkpoint")

    def restore(self) -> None:
        """Go back to the last checkpoint, if there is one."""
        if self._manager.restore_or_initialize():
            _log.info("going on after epoch %d, step %d", int(self.epochs_done), int(self.step))

    def save(self, epochs_done: int, step: int) -> None:
        """Write a checkpoint that says how many epochs and steps are behind it."""
        self.epochs_done.assign(epochs_done)
        self.step.assign(step)
        self._manager.save(checkpoint_number=step)
