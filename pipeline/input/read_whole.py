"""Reads whole records with the code of the training, to find those that no training can read.

TensorFlow reports neither the shard nor the number of a record that it cannot parse or decode. To note them for each
example would slow all trainings down, so the record is searched for after the error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import tensorflow as tf

from pipeline.dataset.manifest import Dataset
from pipeline.dataset.verify import ReadWhole
from pipeline.errors import DatasetError
from pipeline.input.batch_kind import batch_kind_of
from pipeline.input.exhaustion import plain_message
from pipeline.system.parallel import ordered_map
from pipeline.system.resources import usable_cores

UNREADABLE = (tf.errors.InvalidArgumentError, UnicodeDecodeError)
"""What TensorFlow raises for a record that it cannot read.

Its message quotes a record that is no tf.train.Example. If that is not UTF-8, Python cannot read the message.
"""
_AT_ONCE = 64
"""Records in one call of TensorFlow. A call for a single row of a table would take as long as for all of these."""


def read_whole(dataset: Dataset) -> ReadWhole:
    """Return the function with which `verify` and `first_unreadable` read the records of a dataset."""
    read = batch_kind_of(dataset).reader(dataset)
    read_in_graph = tf.function(read, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)

    def reason_of(records: Sequence[bytes], read: Callable[[tf.Tensor], object]) -> str:
        try:
            with tf.device("/cpu:0"):  # As in the input pipeline. A GPU would not refuse a wrong label.
                read(tf.constant(records, tf.string))
        except UNREADABLE as error:
            return why_unread(error)
        return ""

    def with_reasons(records: Sequence[bytes]) -> list[tuple[bytes, str]]:
        if not reason_of(records, read_in_graph):
            return [(record, "") for record in records]
        # One by one, because the error does not tell the record. Eagerly, because its message is shorter then.
        return [(record, reason_of([record], read)) for record in records]

    def read_all(records: Iterable[bytes]) -> Iterator[tuple[bytes, str]]:
        damage: list[DatasetError] = []
        sound = _up_to_damage(records, damage)
        groups = iter(lambda: list(islice(sound, _AT_ONCE)), [])
        for group in ordered_map(with_reasons, groups, usable_cores(), size_of=lambda group: sum(map(len, group))):
            yield from group
        if damage:
            raise damage[0]

    return read_all


def why_unread(error: tf.errors.OpError | UnicodeDecodeError) -> str:
    """Return in words why TensorFlow could not read a record, from one of the errors UNREADABLE."""
    why = "it is not a tf.train.Example" if isinstance(error, UnicodeDecodeError) else plain_message(error)
    return f"TensorFlow cannot read it ({why})"


def _up_to_damage(records: Iterable[bytes], damage: list[DatasetError]) -> Iterator[bytes]:
    """Yield the records of a shard. Add the error of a damaged record to `damage`, and end there.

    Raised within `ordered_map`, the error would discard the records before it, which the threads are still reading.
    """
    try:
        yield from records
    except DatasetError as error:
        damage.append(error)
