"""The examples of a split in the order of training: epochs, their shuffled records and their padding.

It is the same for examples of any kind. What comes where follows from the options and the place in the training alone.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.dataset import manifest as datasets
from pipeline.dataset.manifest import Dataset
from pipeline.dataset.shard_reader import ShardReader
from pipeline.input.autograph import without_autograph
from pipeline.input.balance import balanced, require_one_label
from pipeline.input.options import BatchOptions
from pipeline.input.shard_pieces import PieceNumbers, ShardPieces, shuffle_elements
from pipeline.input.shares import Share, epoch_order, repeated, share_of
from pipeline.input.tensorflow_internals import seed_graph
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place, place_of
from pipeline.system.resources import usable_cores

ONLY = Server()


class ServerSplit(NamedTuple):
    """One split of a dataset as one server reads it."""

    dataset: Dataset
    shards: ShardPieces
    share: Share
    options: BatchOptions
    seed: int
    """Seed of the augmentation. Each server has its own, or all would augment their examples alike."""


def open_split(
    folder: Place | str, options: BatchOptions, name: str, server: Server, reader: ShardReader | None
) -> ServerSplit:
    """Return a split of the dataset in `folder`.

    Raises:
        DatasetError: If there is no dataset, one of its files is missing, or its classes cannot be balanced.
    """
    place = place_of(folder) if isinstance(folder, str) else folder
    dataset = datasets.load(place)
    if reader is None:  # For a reader, `remote_shards` has compared them already.
        datasets.require_shards(place, dataset)
    if options.balanced:
        require_one_label(dataset, str(place))
    share = share_of(dataset.splits[name].shards, options.batch_size, server)
    seed = options.seed + server.index * 1_000_003
    return ServerSplit(dataset, ShardPieces(place, dataset.records, reader), share, options, seed)


def epochs_of(share: Share, seed: int, first: int, last: int) -> tf.data.Dataset:
    """Return the epochs `first` to `last` as (number, order of the pieces), int64."""

    def order(epoch: int) -> NDArray[np.int64]:
        return np.array(epoch_order(share.pieces, seed, int(epoch)), np.int64)

    def row(epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # In Python, because TensorFlow has no such hash. It is one call for each epoch.
        return epoch, tf.ensure_shape(tf.numpy_function(order, [epoch], tf.int64), [len(share.pieces)])

    # Not from_generator: with it, on Python 3.11, malloc maps and unmaps each image of more than 128 KB, and raw images
    # are read at a fifth of the speed.
    return tf.data.Dataset.range(first, last + 1).map(row)


def epoch_records(split: ServerSplit, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
    """Return the numbered records of an epoch, then its padding."""
    padding = split.shards.in_turn(split.share.padding, again=True)
    return split.shards.closed_at_end(shuffled_records(split, epoch, order).concatenate(padding))


def shuffled_records(split: ServerSplit, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
    """Return the numbered records of an epoch, from several files in turn, shuffled in a buffer."""
    dataset, shards, share, options, _ = split
    records = _exactly(shards.interleaved(share.pieces, order), share.examples)
    if options.balanced:
        records = balanced(records, dataset, options.seed, epoch)
        # A part of the examples may lack a class or hold few of it. All servers still need the same number of examples.
        if share.examples < dataset.splits["train"].examples:
            more = shards.in_turn(tuple(repeated(share.pieces, share.examples)), again=True)
            records = _first(share.examples, records, more)
    # Before decoding: an encoded image takes a tenth of the memory of its pixels.
    elements = shuffle_elements(dataset, options.shuffle_bytes)
    return shuffled(records, elements, options.seed, epoch)


def records_in_turn(split: ServerSplit) -> tf.data.Dataset:
    """Return each numbered record once, in the order of the shards, then the padding."""
    records = _exactly(split.shards.in_turn(split.share.pieces), split.share.examples)
    return records.concatenate(split.shards.in_turn(split.share.padding, again=True))


def shuffled(examples: tf.data.Dataset, elements: tf.Tensor | int, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    """Return the examples in the order of an epoch. Call it in the function of a `flat_map`, whose graph it seeds."""
    seed_graph(seed + 1)  # If this seed and the epoch were both 0, TensorFlow would take a random seed.
    # The epoch is the seed of the operation, so TensorFlow must not draw another order for each pass.
    return examples.shuffle(elements, epoch, reshuffle_each_iteration=False)


def batch_weights(split: ServerSplit, batch: tf.Tensor) -> tf.Tensor:
    """Return the weights (float32, (batch size,)) of a batch by its number from 0: 1, or 0 for padding."""
    size, share = split.options.batch_size, split.share
    in_epoch = batch % max(share.steps, 1) * size + tf.range(size, dtype=tf.int64)
    return tf.cast(in_epoch < share.examples, tf.float32)


@without_autograph
def order_of_training(folder: Place, dataset: Dataset, options: BatchOptions, epochs: int) -> tf.data.Dataset:
    """Return the numbers of the examples (int64, scalar) in the order of `training_batches`, without padding.

    No shard is read. `options.balanced` must be off, because it needs the labels.
    """
    share = share_of(dataset.splits["train"].shards, options.batch_size, ONLY)
    split = ServerSplit(dataset, PieceNumbers(folder, dataset.records, None), share, options, options.seed)
    numbers = epochs_of(share, options.seed, 1, epochs).flat_map(
        lambda epoch, order: shuffled_records(split, epoch, order)
    )
    return numbers.with_options(tf_options())


def _first(count: int, records: tf.data.Dataset, more: tf.data.Dataset) -> tf.data.Dataset:
    """Return the first examples of `records`, and of `more` if there are too few.

    All `records` are read: the reader of a bucket counts the shards that were read to their end. `take` would stop
    before.
    """
    both = records.map(lambda *each: (False, each)).concatenate(more.map(lambda *each: (True, each)))
    return (
        both.enumerate()
        .take_while(lambda number, example: (number < count) | ~example[0])
        .filter(lambda number, _: number < count)
        .map(lambda _, example: example[1])
    )


def _exactly(records: tf.data.Dataset, examples: int) -> tf.data.Dataset:
    """Return the records, with an error at their end if there are fewer than `examples`.

    For TensorFlow, a shard that was cut between two records ends there: the epoch would miss the rest without an error.
    """
    return records.apply(tf.data.experimental.assert_cardinality(examples))


def cache_prefix(options: BatchOptions, split: str) -> str:
    """Return the argument of `Dataset.cache`: what the names of the files begin with, or nothing for memory."""
    return "" if options.cache == "memory" else f"{options.cache}-{split}"


def tf_options() -> tf.data.Options:
    """Return the options of all input pipelines here."""
    options = tf.data.Options()
    # The thread of autotune looks at the pipeline less and less often, and the end of an iterator waits for its next
    # look: epochs of 0.8 s took 1.3 s. It also begins with one core.
    options.autotune.enabled = False
    # Each server reads its own share already. TensorFlow would divide it again, and most examples would be lost.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # Threads of its own, so that decoding does not delay the training step. TensorFlow would start one for each core of
    # the machine, whatever the quota of the container.
    options.threading.private_threadpool_size = usable_cores()
    return options
