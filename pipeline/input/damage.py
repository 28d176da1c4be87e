"""Names a damaged shard, or a record that cannot be decoded: TensorFlow reports neither the file nor the record."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from pipeline.dataset import manifest as datasets
from pipeline.dataset.verify import first_damage, first_unreadable
from pipeline.errors import DatasetError
from pipeline.input.exhaustion import is_out_of_files, is_out_of_memory
from pipeline.input.read_whole import UNREADABLE, read_whole
from pipeline.storage import Place, place_of

DAMAGE = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.InternalError,
)
"""Errors that TensorFlow raises if a shard, or a file of decoded images, is damaged, ends early, or is missing."""
_OF_RECORDS = re.compile(
    r"IteratorGetNext|Decode(Image|AndCropJpeg)|ExtractJpegShape|Could not parse example"
    r"|assertion failed: \[an? (image|JPEG|PNG) "
)
"""What TensorFlow's message holds if it cannot read a record, in the input pipeline and in exported models.

That of an error of a training step holds none of it. Otherwise, each of them would lead to a search through all
records.
"""
_MEND = "remove the dataset's folder and build the dataset again; training then continues from its last checkpoint"
_log = logging.getLogger(__name__)


@contextmanager
def damage_named(dataset: Place | str, heartbeat: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Wrap a loop over batches: raise DatasetError that names the damaged or missing shard, or the unreadable record.

    If the error of TensorFlow has another reason, it is raised as it is. The search for the reason may read all shards.
    It calls `heartbeat` after each record.
    """
    folder = place_of(dataset) if isinstance(dataset, str) else dataset
    with unreadable_named(folder, heartbeat):
        try:
            yield
        except DAMAGE as error:
            # Before the search for damage, which reads all shards and may take hours.
            if is_out_of_memory(error) or is_out_of_files(error):
                raise
            what = _what_is_damaged(folder, heartbeat)
            # All shards are whole: the error has another reason, and must not send a person to build the dataset again.
            if not what:
                raise
            raise DatasetError(f"{what}: {_MEND}") from error


@contextmanager
def unreadable_named(folder: Place, heartbeat: Callable[[], object]) -> Iterator[None]:
    """Wrap a loop over batches: raise DatasetError that names the record that cannot be read.

    Otherwise, it is like `damage_named`.
    """
    try:
        yield
    except UNREADABLE as error:
        message = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
        if not _OF_RECORDS.search(message) or not (found := _first_unreadable(folder, heartbeat)):
            raise
        raise found from error


def _first_unreadable(folder: Place, heartbeat: Callable[[], object]) -> DatasetError | None:
    _log.warning("TensorFlow could not read a record: searching for it")
    try:
        dataset = datasets.load(folder)
        return first_unreadable(folder, dataset, read_whole(dataset), heartbeat)
    except (DatasetError, FileNotFoundError) as error:
        return DatasetError(f"{_removed(error)}: {_MEND}")


def _what_is_damaged(folder: Place, heartbeat: Callable[[], object]) -> str:
    try:
        return first_damage(folder, datasets.load(folder), heartbeat)
    except DatasetError as error:
        return _removed(error)


def _removed(error: Exception) -> str:
    return f"the dataset was removed or damaged while the training read it ({error})"
