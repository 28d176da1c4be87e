"""The input pipeline of images: one straight line from shard files to batches.

A batch is (images, labels, weights): uint8 of (batch, size, size, 3), RGB; int32 of (batch,), from 0; float32 of
(batch,), 1, or 0 for the padding that fills up the last batch of an epoch. If an image may have several labels, they
are uint8 of (batch, classes), 1 for those that it has. All batches are of one size, and all servers take equally many.
What comes where follows from the options and the place in the training alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.dataset import manifest as datasets
from pipeline.dataset.manifest import Dataset
from pipeline.dataset.shard_reader import ShardReader
from pipeline.input import decode
from pipeline.input.balance import balanced, require_one_label
from pipeline.input.batch_counter import BatchCounter
from pipeline.input.examples import Numbers, Shards, shuffle_elements
from pipeline.input.options import BatchOptions
from pipeline.input.shares import Share, epoch_order, repeated, share_of
from pipeline.input.tensorflow_internals import seed_graph
from pipeline.rendezvous.servers import Server
from pipeline.storage import Place, place_of
from pipeline.system.cores import usable_cores

ONLY = Server()
_Row = tuple[tf.Tensor, ...]


def training_batches(
    dataset: Place | str,
    options: BatchOptions,
    *,
    epochs: int = 1,
    start: int = 0,
    server: Server = ONLY,
    reader: ShardReader | None = None,
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

    Returns:
        Batches of (images, labels, weights): uint8 of (batch, image_size, image_size, 3), the labels, and float32 of
        (batch,), 0 for padding. A damaged shard raises tf.errors.DataLossError in the loop over them.

    Raises:
        DatasetError: If there is no dataset, or `balanced` is set for images of several labels.
    """

    def mirrored(image: tf.Tensor, label: tf.Tensor, weight: tf.Tensor, mirrored: tf.Tensor, _: tf.Tensor) -> _Row:
        return decode.flipped(image, mirrored), label, weight

    return _training(_open(dataset, options, "train", server, reader), epochs, start, mirrored)


def numbered_batches(
    dataset: Place | str,
    options: BatchOptions,
    *,
    epochs: int = 1,
    start: int = 0,
    server: Server = ONLY,
    reader: ShardReader | None = None,
    counter: BatchCounter | None = None,
) -> tf.data.Dataset:
    """Return training batches for a step that mirrors images itself: (images, labels, weights, mirrored, numbers).

    The images are not mirrored. `mirrored` (bool, (batch,)) says which of them the step mirrors, with `flipped` of
    `pipeline/input/flip.py`. `numbers` (int64, (batch,)) are the places of the examples in all training shards, from 0.
    Arguments and errors are those of `training_batches`; `counter` counts the batches.
    """
    split = _open(dataset, options, "train", server, reader)
    return _training(split, epochs, start, lambda *row: row, counter)


def _training(
    split: "_ServerSplit", epochs: int, start: int, finished: Callable[..., _Row], counter: BatchCounter | None = None
) -> tf.data.Dataset:
    """Return the batches of `finished`, which takes image, label, weight, whether to mirror, and number of an example.

    It is one dataset for all epochs: with one for each, every epoch would begin with empty buffers and new threads.
    """
    options = split.options
    images = _Cached(split) if options.cache != "off" else _Encoded(split)
    epochs_begun, steps_done = divmod(start, max(split.share.steps, 1))
    # In the epoch that a training goes on with, the examples of the batches before `start` are skipped.
    examples = _epochs(split.share, options.seed, epochs_begun + 1, epochs).flat_map(
        lambda epoch, order: images.epoch(epoch, order).skip(
            steps_done * options.batch_size * tf.cast(epoch == epochs_begun + 1, tf.int64)
        )
    )
    return (
        # The n-th example of the training always gets the n-th place, so crops and flips do not depend on a checkpoint.
        tf.data.Dataset.zip(examples, _places(split, start))
        # Twice as many calls as cores: the order is fixed, so one large image holds up all images behind it.
        .map(
            lambda *of_place: finished(*images.augmented(*of_place)),
            num_parallel_calls=2 * usable_cores(),
            deterministic=True,
        )
        # An epoch is padded to full batches, so no example is dropped. All batches have one static shape.
        .batch(options.batch_size, drop_remainder=True)
        # Before the prefetch buffer: batches that are counted, but not taken, are in the buffer.
        .apply(counter.counted if counter else lambda batches: batches)
        # `flat_map` hides the number of batches. `len` and Keras need it.
        .apply(tf.data.experimental.assert_cardinality(max(epochs * split.share.steps - start, 0)))
        # At the end, so that whole batches are made ahead while the accelerator works on this one.
        .prefetch(options.prefetch_batches)
        .with_options(tf_options())
    )


def validation_batches(
    dataset: Place | str,
    options: BatchOptions,
    *,
    server: Server = ONLY,
    reader: ShardReader | None = None,
) -> tf.data.Dataset:
    """Return the validation batches: every example once, in the order of the shards, without augmentation.

    Arguments and errors are those of `training_batches`.
    """
    split = _open(dataset, options, "validation", server, reader)
    images = _Encoded(split)
    records = _exactly(split.shards.in_turn(split.share.pieces), split.share.examples)
    batches = (
        tf.data.Dataset.zip(records.concatenate(split.shards.again(split.share.padding)), _places(split, 0))
        .map(images.centered, num_parallel_calls=2 * usable_cores(), deterministic=True)
        .batch(options.batch_size, drop_remainder=True)
        .apply(tf.data.experimental.assert_cardinality(split.share.steps))
    )
    if options.cache != "off":  # Whole batches are cached, because their order never changes.
        batches = batches.cache(_file(options, "validation"))
    return batches.prefetch(options.prefetch_batches).with_options(tf_options())


def order_of_training(folder: Place, dataset: Dataset, options: BatchOptions, epochs: int) -> tf.data.Dataset:
    """Return the numbers of the examples (int64, scalar) in the order of `numbered_batches`, without padding.

    No shard is read. `options.balanced` must be off, because it needs the labels.
    """
    share = share_of(dataset.splits["train"].shards, options.batch_size, ONLY)
    split = _ServerSplit(dataset, Numbers(folder, dataset.records, None), share, options, options.seed)
    return _epochs(share, options.seed, 1, epochs).flat_map(_Encoded(split).shuffled).with_options(tf_options())


class _ServerSplit(NamedTuple):
    """One split of a dataset as one server reads it."""

    dataset: Dataset
    shards: Shards
    share: Share
    options: BatchOptions
    seed: int
    """Seed of the crops and flips. Each server has its own, or all would augment their examples alike."""


def _open(
    folder: Place | str, options: BatchOptions, name: str, server: Server, reader: ShardReader | None
) -> _ServerSplit:
    place = place_of(folder) if isinstance(folder, str) else folder
    dataset = datasets.load(place)
    if reader is None:  # For a reader, `remote_shards` has compared them already.
        datasets.require_shards(place, dataset)
    if options.balanced:
        require_one_label(dataset, str(place))
    share = share_of(dataset.splits[name].shards, options.batch_size, server)
    seed = options.seed + server.index * 1_000_003
    return _ServerSplit(dataset, Shards(place, dataset.records, reader), share, options, seed)


def _epochs(share: Share, seed: int, first: int, last: int) -> tf.data.Dataset:
    """Return the epochs `first` to `last` as (number, order of the pieces), int64."""

    def order(epoch: int) -> NDArray[np.int64]:
        return np.array(epoch_order(share.pieces, seed, int(epoch)), np.int64)

    def row(epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # In Python, because TensorFlow has no such hash. It is one call for each epoch.
        return epoch, tf.ensure_shape(tf.numpy_function(order, [epoch], tf.int64), [len(share.pieces)])

    # Not from_generator: with it, on Python 3.11, malloc maps and unmaps each image of more than 128 KB, and raw images
    # are read at a fifth of the speed.
    return tf.data.Dataset.range(first, last + 1).map(row)


class _Place(NamedTuple):
    """Values that follow from the place of an example in the training alone, whatever checkpoint it goes on from."""

    numbers: tf.Tensor
    """Random numbers from 0 to 1 (float32, (5,)): four for the crop, the last for `mirrored`."""
    mirrored: tf.Tensor
    """bool: whether to exchange left and right."""
    weight: tf.Tensor
    """float32: 1, or 0 for padding."""


def _places(split: _ServerSplit, start: int) -> tf.data.Dataset:
    """Return the places from batch `start` on, computed for a batch at once: a single place would take as long."""
    size, share = split.options.batch_size, split.share

    def places(batch: tf.Tensor) -> _Place:
        numbers = tf.random.stateless_uniform([size, 5], tf.stack([tf.constant(split.seed, tf.int64), batch]))
        in_epoch = batch % max(share.steps, 1) * size + tf.range(size, dtype=tf.int64)
        mirrored = (numbers[:, 4] < 0.5) & split.options.flip
        return _Place(numbers, mirrored, tf.cast(in_epoch < share.examples, tf.float32))

    return tf.data.Dataset.range(start, tf.int64.max).map(places).unbatch()


class _Encoded:
    """Examples whose crops are decoded in each epoch."""

    def __init__(self, split: _ServerSplit) -> None:
        self._split, self._options = split, split.options
        self._form = split.dataset.records
        self._crop_mode = split.options.crop

    def _target(self, stored: decode.Stored) -> tf.Tensor:
        return decode.target(stored.label, self._split.dataset)

    def epoch(self, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        """Return the numbered examples of an epoch, then its padding."""
        return self.shuffled(epoch, order).concatenate(self._split.shards.again(self._split.share.padding))

    def shuffled(self, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        """Return the numbered examples of an epoch, from several files in turn, shuffled in a buffer."""
        dataset, shards, share, options, _ = self._split
        records = _exactly(shards.interleaved(share.pieces, order), share.examples)
        if options.balanced:
            # A server's share may lack a class or hold few examples of it. All servers still need the same number of
            # examples.
            more = shards.again(tuple(repeated(share.pieces, share.examples)))
            records = balanced(records, dataset, options.seed, epoch).concatenate(more).take(share.examples)
        # Before decoding: an encoded image takes a tenth of the memory of its pixels.
        elements = shuffle_elements(dataset.splits["train"], options.shuffle_bytes)
        return _shuffled(records, elements, options.seed, epoch)

    def augmented(self, example: tuple[tf.Tensor, tf.Tensor], place: _Place) -> tuple[tf.Tensor, ...]:
        """Return image, label, weight, whether to mirror it, and the number of an example."""
        number, serialized = example
        # One by one: parsing a whole batch and splitting it again took longer for pixels, and gained nothing for JPEG.
        stored = decode.parse(serialized, self._form)
        crop = decode.random_crop(stored, self._crop_mode, self._options, place.numbers)
        image = decode.decode_crop(stored, crop, self._form, tf.constant([self._options.image_size] * 2))
        return _square(image, self._options), self._target(stored), place.weight, place.mirrored, number

    def centered(self, example: tuple[tf.Tensor, tf.Tensor], place: _Place) -> tuple[tf.Tensor, ...]:
        """Return image, label and weight for an evaluation. Nothing of it is random."""
        _, serialized = example
        stored = decode.parse(serialized, self._form)
        image = decode.decode_for_evaluation(stored, self._form, self._crop_mode, self._options.image_size)
        return image, self._target(stored), place.weight


class _Cached:
    """Examples that are decoded once, a little larger than the model's images, and cropped again in each epoch."""

    def __init__(self, split: _ServerSplit) -> None:
        self._split, self._options = split, split.options
        self._crop_mode = split.options.crop
        records = _epochs(split.share, self._options.seed, 1, 1).flat_map(_Encoded(split).shuffled)
        self._images = self._decoded(records).cache(_file(self._options, "train"))
        self._padding = self._decoded(split.shards.again(split.share.padding))

    def epoch(self, epoch: tf.Tensor, _: tf.Tensor) -> tf.data.Dataset:
        """Return the decoded images of an epoch with their labels and numbers, then its padding."""
        # The first epoch takes the images as they are decoded: a buffer of all of them would decode all of them before
        # the first batch. In later epochs, the buffer takes no more memory, because it holds what the cache holds.
        all_of_them = max(self._split.share.examples, 1)
        elements = tf.cond(epoch == 1, lambda: tf.constant(1, tf.int64), lambda: tf.constant(all_of_them, tf.int64))
        return _shuffled(self._images, elements, self._options.seed, epoch).concatenate(self._padding)

    def augmented(self, cached: tuple[tf.Tensor, ...], place: _Place) -> tuple[tf.Tensor, ...]:
        """Return image, label, weight, whether to mirror it, and the number of an example."""
        image, label, number = cached
        crop = decode.crop_within(image, self._options.image_size, place.numbers)
        return _square(decode.crop_of(image, crop), self._options), label, place.weight, place.mirrored, number

    def _decoded(self, records: tf.data.Dataset) -> tf.data.Dataset:
        return records.map(self._larger, num_parallel_calls=2 * usable_cores(), deterministic=True)

    def _larger(self, number: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        dataset = self._split.dataset
        stored = decode.parse(serialized, dataset.records)
        crop, size = decode.cached_crop(stored, self._crop_mode, self._options.image_size)
        image = decode.decode_crop(stored, crop, dataset.records, size)
        return image, decode.target(stored.label, dataset), number


def _square(image: tf.Tensor, options: BatchOptions) -> tf.Tensor:
    return tf.ensure_shape(image, [options.image_size, options.image_size, 3])


def _shuffled(examples: tf.data.Dataset, elements: tf.Tensor | int, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    """Return the examples in the order of an epoch. Call it in the function of a `flat_map`, whose graph it seeds."""
    seed_graph(seed + 1)  # If this seed and the epoch were both 0, TensorFlow would take a random seed.
    # The epoch is the seed of the operation, so TensorFlow must not draw another order for each pass.
    return examples.shuffle(elements, epoch, reshuffle_each_iteration=False)


def _exactly(records: tf.data.Dataset, examples: int) -> tf.data.Dataset:
    """Return the records, with an error at their end if there are fewer than `examples`.

    For TensorFlow, a shard that was cut between two records ends there: the epoch would miss the rest without an error.
    """
    return records.apply(tf.data.experimental.assert_cardinality(examples))


def _file(options: BatchOptions, split: str) -> str:
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
    return options
