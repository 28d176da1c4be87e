"""Errors of TensorFlow in a loop over batches, turned into the error that a person can act on."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import tensorflow as tf

from pipeline.errors import StorageError
from pipeline.input.damage import DAMAGE, damage_named
from pipeline.input.exhaustion import is_out_of_files, is_out_of_memory, out_of_files_error
from pipeline.training.assembly import Training
from pipeline.training.failure.device_memory import out_of_memory_error
from pipeline.training.inputs import Readers


@contextmanager
def explain_batch_errors(training: Training, readers: Readers) -> Iterator[None]:
    """Wrap a loop over batches: name the damaged shard, say why no more batches came, or that they were too large.

    Errors of TensorFlow that have another reason are raised as they are.
    """
    try:
        # Local copies have an error of their own, below: the shards in the bucket may be whole.
        with nullcontext() if any(readers) else damage_named(training.dataset_folder):
            yield
    except tf.errors.OpError as error:
        # TensorFlow only reports that a `numpy_function` failed. The reader knows why.
        if readers.failure:
            raise readers.failure from error
        if is_out_of_memory(error):
            raise out_of_memory_error(training.run, training.device_batch_size, training.micro_batches) from error
        if is_out_of_files(error):
            raise out_of_files_error(error) from error
        if isinstance(error, DAMAGE) and (damaged := readers.damaged_copy):
            raise StorageError(
                f"{damaged} was damaged or removed after it was checked: run again. The shard is then fetched again, "
                "and training continues from its last checkpoint"
            ) from error
        raise
