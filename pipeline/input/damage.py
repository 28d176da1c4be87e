"""A damaged shard, named: TensorFlow says at which byte it stopped, but not in which file."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from pipeline import dataset as datasets
from pipeline.errors import DatasetError
from pipeline.storage import Place, place_of
from pipeline.verify import first_damage

DAMAGE = (tf.errors.DataLossError, tf.errors.FailedPreconditionError, tf.errors.NotFoundError)
"""What TensorFlow raises for shards that are damaged, end before their last example, or are missing."""


@contextmanager
def damage_named(dataset: Place | str) -> Iterator[None]:
    """Around a loop over batches: raises DatasetError with the shard and the byte if one is damaged or missing."""
    try:
        yield
    except DAMAGE as error:
        folder = place_of(dataset) if isinstance(dataset, str) else dataset
        what = _what_is_damaged(folder)
        if not what and not isinstance(error, tf.errors.DataLossError):
            raise  # it stands for many things
        raise DatasetError(
            f"{what or error.message}: remove the data set's folder and build it again; training then goes on from its "
            "last checkpoint"
        ) from error


def _what_is_damaged(folder: Place) -> str:
    try:
        return first_damage(folder, datasets.load(folder))
    except DatasetError as error:
        return f"the data set was removed or damaged while it was read ({error})"
