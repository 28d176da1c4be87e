"""The values of each epoch for TensorBoard: `tensorboard --logdir FOLDER`, wherever that is installed."""

from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf


class EpochValues(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not followed
    """Writes all that is logged of an epoch into `folder`, a scalar each, with the epoch (from 1) as its step.

    `keras.callbacks.TensorBoard` wants the package tensorboard, which a worker has no other use for.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        # A training that goes on tells of all its epochs again: what a try before wrote would stand beside them.
        for path in self._folder.glob("events.out.tfevents.*"):
            path.unlink()
        self._writer = tf.summary.create_file_writer(str(self._folder))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        with self._writer.as_default(step=epoch + 1):
            for name, value in (logs or {}).items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=_scalar())
        self._writer.flush()

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        self._writer.close()


def _scalar() -> tf.compat.v1.SummaryMetadata:
    """What `tf.summary.scalar` says of its values, without the package tensorboard that it is written in."""
    return tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
