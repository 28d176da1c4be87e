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
    """Return numbered examples, each as often as its class needs it. The total number stays the same.

    The copies are counted, not drawn: if a class of 10 examples needs 25, each appears two or three times. The epoch
    decides which ones appear three times. The copies of an example follow one another, so shuffle the result. For a
    part of the records, such as those of one server, the number of examples stays about the same.
    """
    counts = tf.constant(dataset.class_counts("train"), tf.int64)
    random = tf.stack([tf.constant(seed, tf.int64), epoch])
    quotas = _quotas(counts, random)
    # Each class starts with a random fraction of a copy. Otherwise, the same examples would get the extra copy in each
    # epoch. The fractions are whole numbers over `counts`: the error of float32 would add or lose copies.
    owed = tf.random.stateless_uniform(counts.shape, random, None, None, tf.int64) % tf.maximum(counts, 1)

    def pay(owed: tf.Tensor, example: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tuple[Any, tf.Tensor]]:
        label = parse_label(example[1], dataset.records)
        due = owed[label] + quotas[label]
        owed = tf.tensor_scatter_nd_update(owed, [[label]], [due % counts[label]])
        return owed, (example, due // counts[label])

    # Zero copies of an example are an empty dataset: the example is left out of this epoch.
    return records.scan(owed, pay).flat_map(
        lambda example, copies: tf.data.Dataset.from_tensors(example).repeat(copies)
    )


def _quotas(counts: tf.Tensor, random: tf.Tensor) -> tf.Tensor:
    """Return how many examples of an epoch each class gets (int64, (classes,)).

    A class that has examples gets at least one. The quotas add up to all examples exactly: the end of a longer epoch
    would be cut off, and with it the only examples of some classes. Which classes get one more depends on the epoch.
    """
    present = tf.cast(counts > 0, tf.int64)
    examples, classes = tf.reduce_sum(counts), tf.maximum(tf.reduce_sum(present), 1)
    # Classes without examples come last. `random` with 1 added is not the seed of `owed`.
    drawn = tf.random.stateless_uniform(counts.shape, random + 1) + 1 - tf.cast(present, tf.float32)
    rank = tf.argsort(tf.argsort(drawn))
    return present * (examples // classes + tf.cast(tf.cast(rank, tf.int64) < examples % classes, tf.int64))
