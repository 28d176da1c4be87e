"""Predictions of an exported model: `python -m pipeline.training.served.exported EXPORT DATASET FOLDER PARENT`.

Writes predictions.npz into FOLDER. If it fails, it writes failure.json and exits with 1. The model gets images of the
size and the crop that it was trained with, or the columns of a table that it was trained with, whatever later trainings
on the dataset use.
"""

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.dataset import manifest as datasets
from pipeline.errors import DatasetError, TenfoldError
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import joined, save_predictions
from pipeline.runs.mirror import fetch
from pipeline.runs.run import load_about, save_failure
from pipeline.storage import Place, place_of
from pipeline.system.process import end_with_parent
from pipeline.system.progress import log_to_stderr, progress
from pipeline.training.gpus import free_gpu
from pipeline.training.tensorflow_start import hold_back_stderr


def main(export: Place, dataset: Place, folder: Path, parent: int) -> int:
    """Evaluate, and return the exit code."""
    log_to_stderr()
    # There is nothing to save, so this process need not end by itself.
    end_with_parent(parent, signal.SIGKILL)
    try:
        # A training may be using the other GPUs.
        with free_gpu():
            save_predictions(folder, evaluate_exported(export, dataset))
    except TenfoldError as error:
        save_failure(folder, error)
        return 1
    return 0


def evaluate_exported(export: Place, folder: Place) -> Answers:
    """Return the predictions of an exported model for the examples of `judged_split`, in the order of the shards.

    A label that the model does not know has a probability of 0.

    Raises:
        DatasetError: If the dataset is missing or damaged, or is a table without a column of the model.
        StorageError: If a bucket does not answer.
    """
    dataset = datasets.load_allowed(folder)
    datasets.require_shards(folder, dataset)
    split = dataset.judged_split
    examples, parts = dataset.splits[split].examples, []
    with loaded(export) as model, progress("champion", examples, dataset.unit) as advance:
        # It imports TensorFlow, which `loaded` starts quietly.
        from pipeline.input.damage import damage_named
        from pipeline.training.model.tensor_kind import tensor_kind_of

        with damage_named(folder):
            for part in tensor_kind_of(dataset).exported_predictions(model, load_about(export), folder, dataset):
                parts.append(part)
                advance(len(part.label))
    predictions = joined(parts)
    # A shard that was cut between two records ends without an error.
    if len(predictions.label) != examples:
        raise DatasetError(f"{folder} holds {len(predictions.label)} {split} examples, but {examples} were committed")
    return predictions


@contextmanager
def loaded(export: Place) -> Iterator[Any]:
    """Load a SavedModel, from a copy if it is in a bucket: TensorFlow would look for credentials of its own."""
    with hold_back_stderr():
        import tensorflow as tf

        for gpu in tf.config.list_physical_devices("GPU"):  # By default, it takes all memory of every GPU.
            tf.config.experimental.set_memory_growth(gpu, True)
    if isinstance(export, Path):
        yield tf.saved_model.load(str(export))
        return
    with tempfile.TemporaryDirectory(prefix="tenfold-") as name:
        fetch(Path(name), export, ("",))
        yield tf.saved_model.load(name)


if __name__ == "__main__":
    sys.exit(main(place_of(sys.argv[1]), place_of(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
