"""The input pipeline: one straight line from shard files to batches, for examples of any kind.

A batch is (features, labels, weights). What the first two are depends on the kind of the examples, see images.py and
tables.py. Weights are float32 of (batch,): 1, or 0 for the padding that fills up the last batch of an epoch. All
batches are of one size, and all servers take equally many.
"""

from collections.abc import Generator, Iterable

import tensorflow as tf

from pipeline.dataset.shard_reader import ShardReader
from pipeline.input.autograph import without_autograph
from pipeline.input.batch_counter import BatchCounter
from pipeline.input.batch_kind import batch_kind_of
from pipeline.input.options import BatchOptions
from pipeline.input.order import (
    ONLY,
    ServerSplit,
    cache_prefix,
    epochs_of,
    open_split,
    records_in_turn,
    tf_options,
)
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place
from pipeline.system.parallel import Item, items_ahead


def training_batches(
    dataset: Place | str,
    options: BatchOptions,
    *,
    epochs: int = 1,
    start: int = 0,
    server: Server = ONLY,
    reader: ShardReader | None = None,
    numbered: bool = False,
    counter: BatchCounter | None = None,
) -> tf.data.Dataset:
    """Return the training batches of all epochs, `steps_per_epoch` for each epoch, with every example once an epoch.

    Args:
        dataset: Folder of a published dataset, local or gs://.
        options: How examples become batches.
        epochs: How many epochs there are.
        start: How many batches to leave out, counted from the first epoch: the position of a checkpoint. The batches of
            its epoch that are left out are read, but not decoded.
        server: The server, which gets its own share.
        reader: Hands out local copies of the shards. Without it, TensorFlow opens the shards themselves.
        numbered: For a step that mirrors images itself: the images are not mirrored.
        counter: Counts the batches.

    Returns:
        Batches of (features, labels, weights), or if `numbered`, of (features, labels, weights, mirrored, numbers).
        `mirrored` (bool, (batch,)) says which of the images the step mirrors, with `flipped` of
        `pipeline/input/augmentation.py`. Of rows, it is false. `numbers` (int64, (batch,)) are the places of the
        examples in all training shards, from 0. A damaged shard raises tf.errors.DataLossError in the loop.

    Raises:
        DatasetError: If there is no dataset, or `balanced` is set for images of several labels, or for a table.
    """
    split = open_split(dataset, options, "train", server, reader)
    return _training(split, epochs, start, numbered=numbered, counter=counter)


@without_autograph
def _training(
    split: ServerSplit, epochs: int, start: int, *, numbered: bool, counter: BatchCounter | None
) -> tf.data.Dataset:
    """Return the batches of all epochs.

    It is one dataset for all epochs: with one for each, every epoch would begin with empty buffers and new threads.
    """
    options = split.options
    kind = batch_kind_of(split.dataset).training(split)
    epochs_begun, steps_done = divmod(start, max(split.share.steps, 1))
    # In the epoch that a training goes on with, the examples of the batches before `start` are skipped.
    examples = epochs_of(split.share, options.seed, epochs_begun + 1, epochs).flat_map(
        lambda epoch, order: kind.epoch(epoch, order).skip(
            steps_done * options.batch_size * tf.cast(epoch == epochs_begun + 1, tf.int64)
        )
    )
    return (
        # An epoch is padded to full batches, so no example is dropped. All batches have one static shape.
        kind.batches(examples, start, numbered)
        # Before the prefetch buffer: batches that are counted, but not taken, are in the buffer.
        .apply(counter.counted if counter else lambda batches: batches)
        # `flat_map` hides the number of batches. `len` and Keras need it.
        .apply(tf.data.experimental.assert_cardinality(max(epochs * split.share.steps - start, 0)))
        # At the end, so that whole batches are made ahead while the accelerator works on this one.
        .prefetch(options.prefetch_batches)
        .with_options(tf_options())
    )


@without_autograph
def validation_batches(
    dataset: Place | str,
    options: BatchOptions,
    *,
    split: str = "validation",
    server: Server = ONLY,
    reader: ShardReader | None = None,
) -> tf.data.Dataset:
    """Return the validation batches: every example once, in the order of the shards, without augmentation.

    With `split="test"`, they are those of the test split. The other arguments and the errors are those of
    `training_batches`.
    """
    opened = open_split(dataset, options, split, server, reader)
    batches = (
        batch_kind_of(opened.dataset)
        .validation(opened, records_in_turn(opened))
        .apply(tf.data.experimental.assert_cardinality(opened.share.steps))
    )
    if options.cache != "off":  # Whole batches are cached, because their order never changes.
        batches = batches.cache(cache_prefix(options, split))
    return batches.prefetch(options.prefetch_batches).with_options(tf_options())


def one_ahead(batches: Iterable[Item]) -> Generator[Item]:
    """Yield the same batches; a thread takes the next one while the accelerator works on this one.

    TensorFlow passes a batch that is ready through threads that have to wake up first: 1.1 ms, 5% of a step of 20 ms.
    An error comes with the batch that it belongs to. `close()` ends the thread.
    """
    return items_ahead(batches, 1)
