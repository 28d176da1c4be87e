"""Names a damaged shard: TensorFlow reports the byte at which it stopped, but not the file."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from pipeline.dataset import manifest as datasets
from pipeline.dataset.verify import first_damage
from pipeline.errors import DatasetError
from pipeline.input.exhaustion import is_out_of_files, is_out_of_memory
from pipeline.storage import Place, place_of

DAMAGE = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.InternalError,
)
"""Errors that TensorFlow raises if a shard, or a file of decoded images, is damaged, ends early, or is missing."""


@contextmanager
def damage_named(dataset: Place | str) -> Iterator[None]:
    """Wrap a loop over batches: raise DatasetError with the shard and the byte if a shard is damaged or missing.

    If the error of TensorFlow has another reason, it is raised as it is.
    """
    try:
        yield
    except DAMAGE as error:
        # Before the search for damage, which reads all shards and may take hours.
        if is_out_of_memory(error) or is_out_of_files(error):
            raise
        folder = place_of(dataset) if isinstance(dataset, str) else dataset
        what = _what_is_damaged(folder)
        # All shards are whole: the error has another reason, and must not send a person to build the dataset again.
        if not what:
            raise
        raise DatasetError(
            f"{what}: remove the dataset's folder and build the dataset again; training then continues from its last "
            "checkpoint"
        ) from error


def _what_is_damaged(folder: Place) -> str:
    try:
        return first_damage(folder, datasets.load(folder))
    except DatasetError as error:
        return f"the dataset was removed or damaged while the training read it ({error})"
