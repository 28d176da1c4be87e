"""A sink that writes for TensorBoard: `tensorboard --logdir FOLDER`, wherever that is installed.

An event file holds TFRecords of `Event`. This module writes them itself. Each value thus has the time at which it was
measured, no operation of TensorFlow runs beside the training, and no worker needs the package tensorboard.
"""

import os
import platform
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import tensorflow as tf

from pipeline.monitor import Row
from pipeline.monitor.aggregation import Intervals
from pipeline.monitor.record import rows
from pipeline.records.tfrecord import frame

_PREFIX = "events.out.tfevents"
"""TensorBoard reads the files whose names contain this."""


class TensorBoardSink:
    """Writes each epoch into `folder`, and aggregates of samples and batches into `folder/windows`, as scalars.

    The step of an epoch is its number (from 1), and that of an aggregate is the training step. A training that goes on
    adds another file of aggregates, but writes its epochs again, beginning with `done`, the rows of those before its
    checkpoint. The epochs after its checkpoint are trained again, and would otherwise appear twice.
    Raises OSError if the folder cannot be written.
    """

    def __init__(self, folder: Path, done: Iterable[Row] = ()) -> None:
        for path in folder.glob(f"{_PREFIX}.*"):
            # Epochs only: the aggregates are in a folder of their own, and stay.
            path.unlink()
        self._epochs, self._others = _EventFile(folder), _EventFile(folder / "windows")
        self._intervals = Intervals()
        for row in done:
            self.write(row)

    def write(self, row: Row) -> None:
        """Write an epoch, or the aggregates that a sample or batch completes."""
        self._write(self._intervals.add(row))

    def close(self) -> None:
        """Write the aggregates that are not complete. Raises OSError if the disk fails, after closing everything."""
        with closing(self._epochs), closing(self._others):
            self._write(self._intervals.take())

    def _write(self, rows: Iterable[Row]) -> None:
        for row in rows:
            (self._epochs if row.kind == "epochs" else self._others).write(row)


def open_tensorboard(run_folder: Path, epochs_done: int) -> TensorBoardSink:
    """Return the sink of a run. It begins with the epochs that are done, from the record of the run."""
    done = (row for row in rows(run_folder / "record", "epochs") if row.step <= epochs_done)
    return TensorBoardSink(run_folder / "tensorboard", done)


class _EventFile:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = 1 + len(list(folder.glob(f"{_PREFIX}.*")))  # TensorBoard reads them in the order of their names.
        path = folder / f"{_PREFIX}.{number:010d}.{platform.node()}.{os.getpid()}"
        # Unbuffered: a killed training loses no value, and TensorBoard can follow.
        self._file = path.open("xb", buffering=0)
        # Each event file begins with the version of its format.
        self._append(tf.compat.v1.Event(file_version="brain.Event:2"))

    def write(self, row: Row) -> None:
        # As `tf.summary.scalar` writes them.
        metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
        summary = tf.compat.v1.Summary()
        for name, value in row.values.items():
            summary.value.add(tag=name, tensor=tf.make_tensor_proto(value, tf.float32), metadata=metadata)
        self._append(tf.compat.v1.Event(wall_time=row.time, step=row.step, summary=summary))

    def close(self) -> None:
        self._file.close()

    def _append(self, event: tf.compat.v1.Event) -> None:
        record = frame(event.SerializeToString())
        while record:  # A disk that is nearly full takes a part. The next call raises the reason.
            record = record[self._file.write(record) :]
