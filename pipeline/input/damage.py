"""A damaged shard, named: TensorFlow says at which byte it stopped, but not in which file."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from pipeline import dataset as datasets
from pipeline.errors import DatasetError
from pipeline.storage import Place, place_of
from pipeline.verify import first_damage

DAMAGE = (tf.errors.DataLossError, tf.errors.FailedPreconditionError)
"""What damaged shards end in; the second where one ends before its last example."""


@contextmanager
def damage_named(dataset: Place | str) -> Iterator[None]:
    """Around a loop over batches: raises DatasetError with the shard and the byte where one of them is damaged."""
    try:
        yield
    except DAMAGE as error:
        folder = place_of(dataset) if isinstance(dataset, str) else dataset
        what = first_damage(folder, datasets.load(folder))
        if not what and not isinstance(error, tf.errors.DataLossError):
            raise  # it stands for many things
        raise DatasetError(
            f"{what or error.message}: remove the data set's folder and build it again; training then goes on from its "
            "last checkpoint"
        ) from error
