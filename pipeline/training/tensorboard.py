"""TensorBoard as a sink: `tensorboard --logdir FOLDER`, wherever that is installed.

An event file holds TFRecords of `Event`: written as they are, they have the time at which a value was taken, no
operation of TensorFlow runs beside the training, and no worker needs the package tensorboard.
"""

import os
import platform
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import tensorflow as tf

from pipeline.monitor import Row
from pipeline.monitor.aggregation import Intervals
from pipeline.records.tfrecord import frame

_PREFIX = "events.out.tfevents"


class TensorBoardSink:
    """Writes each epoch into `folder`, and intervals of samples and batches into `folder/windows`, a scalar a value.

    The step of an epoch is its number (from 1), that of an interval the training step. A training that goes on adds
    another file of intervals, but writes its epochs again: those after its checkpoint are repeated, and would be
    there twice. `done` are the rows of those before it. Raises OSError if the folder cannot be written.
    """

    def __init__(self, folder: Path, done: Iterable[Row] = ()) -> None:
        for path in folder.glob(f"{_PREFIX}.*"):
            path.unlink()
        self._epochs, self._others = _EventFile(folder), _EventFile(folder / "windows")
        self._intervals = Intervals()
        for row in done:
            self.write(row)

    def write(self, row: Row) -> None:
        self._write(self._intervals.add(row))

    def close(self) -> None:
        """Write the intervals that are open. Raises OSError if the disk fails; everything is closed then, too."""
        with closing(self._epochs), closing(self._others):
            self._write(self._intervals.take())

    def _write(self, rows: Iterable[Row]) -> None:
        for row in rows:
            (self._epochs if row.kind == "epochs" else self._others).write(row)


class _EventFile:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = 1 + len(list(folder.glob(f"{_PREFIX}.*")))  # in the order of their names, as TensorBoard reads them
        path = folder / f"{_PREFIX}.{number:010d}.{platform.node()}.{os.getpid()}"
        self._file = path.open("xb", buffering=0)
        self._append(tf.compat.v1.Event(file_version="brain.Event:2"))

    def write(self, row: Row) -> None:
        values = [_scalar(name, value) for name, value in row.values.items()]
        self._append(tf.compat.v1.Event(wall_time=row.time, step=row.step, summary=tf.compat.v1.Summary(value=values)))

    def close(self) -> None:
        self._file.close()

    def _append(self, event: tf.compat.v1.Event) -> None:
        record = frame(event.SerializeToString())
        while record:  # a disk that is nearly full takes a part; the next call says why
            record = record[self._file.write(record) :]


def _scalar(name: str, value: float) -> tf.compat.v1.Summary.Value:
    """What `tf.summary.scalar` writes."""
    metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
    tensor = tf.make_tensor_proto(value, tf.float32)
    return tf.compat.v1.Summary.Value(tag=name, tensor=tensor, metadata=metadata)
