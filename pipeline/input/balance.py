"""Class-balanced sampling: rare classes several times an epoch, frequent ones not always, all equally often."""

from typing import Any

import tensorflow as tf

from pipeline.config.example_kinds import TABLE
from pipeline.dataset.manifest import Dataset
from pipeline.errors import DatasetError
from pipeline.input.decode import parse_label


def require_one_label(dataset: Dataset, place: str) -> None:
    """Refuse what cannot be balanced: an image of several labels has no class that says how often it is due.

    The rows of a table cannot be balanced either, because their labels are only read in batches.

    Raises DatasetError.
    """
    if dataset.kind == TABLE:
        raise DatasetError(
            f"{place} holds rows of a table, which cannot be balanced: set balanced=false and, for classes, "
            "class_weights=balanced"
        )
    if dataset.records.multi_label:
        raise DatasetError(
            f"images of {place} have several labels, so the classes cannot be balanced: set balanced=false"
        )


def balanced(records: tf.data.Dataset, dataset: Dataset, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    """Return numbered examples, each as often as its class needs it; in all about as many as there were.

    Counted, not drawn: a class of 10 examples that needs 25 has each of them two or three times, and which ones three
    times depends on the epoch. The copies follow one another: shuffle behind it.
    """
    counts = tf.constant(dataset.class_counts("train"), tf.float32)
    present = tf.cast(counts > 0, tf.float32)
    # One more of each class than its part: rounding down must not leave the epoch short.
    wanted = (tf.reduce_sum(counts) / tf.reduce_sum(present) + 1) * present
    times = tf.math.divide_no_nan(wanted, counts)
    # Each class starts with a random fraction of a copy. Otherwise, the same examples would get the extra copy in each
    # epoch.
    owed = tf.random.stateless_uniform([len(dataset.labels)], tf.stack([tf.constant(seed, tf.int64), epoch]))

    def pay(owed: tf.Tensor, example: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tuple[Any, tf.Tensor]]:
        label = parse_label(example[1], dataset.records)
        due = owed[label] + times[label]
        copies = tf.floor(due)
        owed = tf.tensor_scatter_nd_update(owed, [[label]], [due - copies])
        return owed, (example, tf.cast(copies, tf.int64))

    # Zero copies of an example are an empty dataset: the example is left out of this epoch.
    return records.scan(owed, pay).flat_map(
        lambda example, copies: tf.data.Dataset.from_tensors(example).repeat(copies)
    )
