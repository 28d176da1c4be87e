"""Batches of images.

A batch is (images, labels, weights): uint8 of (batch, size, size, 3), RGB; int32 of (batch,), from 0; float32 of
(batch,). If images may have several labels, the labels are uint8 of (batch, classes): 1 if the image has the label,
else 0.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import tensorflow as tf

from pipeline.dataset.manifest import Dataset
from pipeline.input import decode
from pipeline.input.autograph import without_autograph
from pipeline.input.batch_kind import TrainingExamples
from pipeline.input.order import (
    ServerSplit,
    batch_weights,
    cache_prefix,
    epoch_records,
    epochs_of,
    shuffled,
    shuffled_records,
)
from pipeline.input.tensorflow_internals import is_cached, read_cached
from pipeline.system.resources import usable_cores

GROUP = 8
"""Images that are read from a disk cache at once. One by one, opening its files costs as much as reading the images."""
_Example = tuple[tf.Tensor, ...]


def training_images(split: ServerSplit) -> TrainingExamples:
    """Return the training images of a split, decoded in each epoch, or once if the options keep them."""
    match split.options.cache:
        case "off":
            return _Encoded(split)
        case "memory":
            return _InMemory(split)
    return _OnDisk(split)


def validation_images(split: ServerSplit, records: tf.data.Dataset) -> tf.data.Dataset:
    """Return the batches of an evaluation. Nothing of them is random."""
    options, dataset = split.options, split.dataset

    def centered(example: _Example, place: _Place) -> tuple[tf.Tensor, ...]:
        _, serialized = example
        stored = decode.parse(serialized, dataset.records)
        image = decode.decode_for_evaluation(stored, dataset.records, options.crop, options.image_size)
        return image, decode.target(stored.label, dataset), place.weight

    return (
        tf.data.Dataset.zip(records, _places(split, 0))
        .map(centered, num_parallel_calls=2 * usable_cores(), deterministic=True)
        .batch(options.batch_size, drop_remainder=True)
    )


def image_reader(dataset: Dataset) -> Callable[[tf.Tensor], object]:
    """Return a function that decodes the whole images of some records (string, (n,)), one after another."""

    @without_autograph
    def read(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        stored = decode.parse(serialized, dataset.records)
        size = tf.stack([stored.height, stored.width])
        image = decode.decode_crop(stored, tf.concat([[0, 0], size], 0), dataset.records, size)
        # TensorFlow leaves out what no result needs, so the results depend on all pixels and labels.
        return tf.reduce_max(image), tf.reduce_max(decode.target(stored.label, dataset))

    dtypes = tf.uint8, tf.uint8 if dataset.records.multi_label else tf.int32
    return lambda serialized: tf.map_fn(read, serialized, fn_output_signature=dtypes, parallel_iterations=1)


def image_stages(split: ServerSplit) -> Mapping[str, TrainingExamples]:
    """Return the training images of a split, cut after each stage, by the name of the stage. Batches come first."""
    cuts = {stage: _CutOff(split, stage) for stage in ("batch", "read", "parse", "decode")}
    return {**cuts, "resize": _Encoded(split)}


class _Place(NamedTuple):
    """Values that follow from the place of an example in the training alone, whatever checkpoint it goes on from."""

    numbers: tf.Tensor
    """Random numbers from 0 to 1 (float32, (5,)): four for the crop, the last for `mirrored`."""
    mirrored: tf.Tensor
    """bool: whether to exchange left and right."""
    weight: tf.Tensor
    """float32: 1, or 0 for padding."""


def _places(split: ServerSplit, start: int) -> tf.data.Dataset:
    """Return the places from batch `start` on, computed for a batch at once: a single place would take as long."""
    size = split.options.batch_size

    def places(batch: tf.Tensor) -> _Place:
        numbers = tf.random.stateless_uniform([size, 5], tf.stack([tf.constant(split.seed, tf.int64), batch]))
        return _Place(numbers, (numbers[:, 4] < 0.5) & split.options.flip, batch_weights(split, batch))

    return tf.data.Dataset.range(start, tf.int64.max).map(places).unbatch()


class _Training(TrainingExamples):
    """Training images. A subclass says what an example of an epoch is, and how it becomes an image."""

    def __init__(self, split: ServerSplit) -> None:
        self._split, self._options = split, split.options

    def batches(self, examples: tf.data.Dataset, start: int, numbered: bool) -> tf.data.Dataset:
        def row(example: _Example, place: _Place) -> tuple[tf.Tensor, ...]:
            image, label, number = self._cropped(example, place)
            image = tf.ensure_shape(image, [self._options.image_size, self._options.image_size, 3])
            if numbered:
                return image, label, place.weight, place.mirrored, number
            return decode.flipped(image, place.mirrored), label, place.weight

        return (
            # The n-th example of the training always gets the n-th place, so crops and flips do not depend on a
            # checkpoint.
            tf.data.Dataset.zip(examples, _places(self._split, start))
            # Twice as many calls as cores: the order is fixed, so one large image holds up all images behind it.
            .map(row, num_parallel_calls=2 * usable_cores(), deterministic=True)
            .batch(self._options.batch_size, drop_remainder=True)
        )

    @abstractmethod
    def _cropped(self, example: _Example, place: _Place) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return image, label and number of an example."""


class _Encoded(_Training):
    """Images whose crops are decoded in each epoch. An example is a numbered record."""

    def epoch(self, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        return epoch_records(self._split, epoch, order)

    def _cropped(self, example: _Example, place: _Place) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        number, serialized = example
        dataset, options = self._split.dataset, self._options
        # One by one: parsing a whole batch and splitting it again took longer for pixels, and gained nothing for JPEG.
        stored = decode.parse(serialized, dataset.records)
        crop = decode.random_crop(stored, options, place.numbers)
        image = decode.decode_crop(stored, crop, dataset.records, tf.constant([options.image_size] * 2))
        return image, decode.target(stored.label, dataset), number


class _CutOff(_Encoded):
    """Images that go through the stages up to one of them. The stages behind it handle a constant image.

    With "batch", the examples are constants, too: only their places are computed, and batches are made.
    """

    def __init__(self, split: ServerSplit, last: str) -> None:
        super().__init__(split)
        self._last = last
        classes = [len(split.dataset.labels)] if split.dataset.records.multi_label else []
        # Made once. To fill a new image with zeros would take as long as some stages.
        self._image = tf.zeros([self._options.image_size] * 2 + [3], tf.uint8)
        self._label = tf.zeros(classes, tf.uint8 if classes else tf.int32)

    def epoch(self, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        if self._last != "batch":
            return super().epoch(epoch, order)
        example = tf.constant(0, tf.int64), tf.constant("")
        return tf.data.Dataset.from_tensors(example).repeat(self._split.share.steps * self._options.batch_size)

    def _cropped(self, example: _Example, place: _Place) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        number, serialized = example
        if self._last in ("batch", "read"):
            return self._image, self._label, number
        form = self._split.dataset.records
        stored = decode.parse(serialized, form)
        label = decode.target(stored.label, self._split.dataset)
        # TensorFlow leaves out what no result needs, so a number of each batch depends on the last stage.
        if self._last == "parse":
            return self._image, label, tf.cast(stored.height + stored.width, tf.int64)
        crop = decode.random_crop(stored, self._options, place.numbers)
        decoded = decode.decoded_crop(stored, crop, form, tf.constant([self._options.image_size] * 2))
        return self._image, label, tf.size(decoded, tf.int64)


class _Cached(_Training):
    """Images that are decoded once, a little larger than the model's images, and cropped again in each epoch.

    A subclass says in which order later epochs read them.
    """

    def __init__(self, split: ServerSplit) -> None:
        super().__init__(split)
        first = self._options.kept_from
        records = epochs_of(split.share, self._options.seed, first, first).flat_map(
            lambda epoch, order: shuffled_records(split, epoch, order)
        )
        self._images = self._decoded(records).cache(cache_prefix(self._options, "train"))
        self._padding = self._decoded(split.shards.in_turn(split.share.padding, again=True))

    def _cropped(self, example: _Example, place: _Place) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        image, label, number = example
        side = tf.constant([self._options.image_size] * 2)
        crop = decode.placed_crop(side, tf.shape(image)[:2], place.numbers)
        return decode.crop_of(image, crop), label, number

    def _decoded(self, records: tf.data.Dataset) -> tf.data.Dataset:
        return records.map(self._larger, num_parallel_calls=2 * usable_cores(), deterministic=True)

    def _larger(self, number: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        dataset = self._split.dataset
        stored = decode.parse(serialized, dataset.records)
        crop, size = decode.cached_crop(stored, self._options.crop, self._options.image_size)
        image = decode.decode_crop(stored, crop, dataset.records, size)
        return image, decode.target(stored.label, dataset), number


class _InMemory(_Cached):
    """Images in memory."""

    def epoch(self, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        # The first epoch uses no buffer: one of all images would decode all of them before the first batch. In later
        # epochs, a buffer of all images takes no more memory, because it holds the same images as the cache.
        all_of_them = max(self._split.share.examples, 1)
        is_first = epoch == self._options.kept_from
        elements = tf.cond(is_first, lambda: tf.constant(1, tf.int64), lambda: tf.constant(all_of_them, tf.int64))
        return shuffled(self._images, elements, self._options.seed, epoch).concatenate(self._padding)


def by_position(prefix: str, positions: tf.Tensor, spec: Sequence[tf.TensorSpec]) -> tf.data.Dataset:
    """Return the images at these positions of a disk cache, int64 of (n,), n a multiple of GROUP. See `read_cached`."""
    return (
        tf.data.Dataset.from_tensor_slices(tf.reshape(positions, [-1, GROUP]))
        .map(
            lambda group: read_cached(prefix, group, spec),
            num_parallel_calls=max(2, usable_cores() // 4),
            deterministic=True,
        )
        .flat_map(lambda *group: reduce(tf.data.Dataset.concatenate, map(tf.data.Dataset.from_tensors, group)))
    )


class _OnDisk(_Cached):
    """Images on the disk. Later epochs read them by position, so no buffer has to hold images to mix them."""

    def epoch(self, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        prefix = cache_prefix(self._options, "train")
        is_first = tf.equal(epoch, self._options.kept_from)
        is_written = tf.ensure_shape(tf.numpy_function(lambda: is_cached(prefix), [], tf.bool), [])
        # The first epoch takes the images as they are decoded. If a training continues in a later epoch, and the files
        # are gone, one pass writes them again.
        passes, later = tf.cast(is_first | ~is_written, tf.int64), tf.cast(~is_first, tf.int64)
        decoded = tf.data.Dataset.range(passes).flat_map(lambda _: self._images).filter(lambda *_: is_first)
        again = tf.data.Dataset.range(later).flat_map(lambda _: self._by_position(prefix, epoch))
        return decoded.concatenate(again).concatenate(self._padding)

    def _by_position(self, prefix: str, epoch: tf.Tensor) -> tf.data.Dataset:
        """Return the cached images in the order of an epoch. Each image is equally likely at each place."""
        examples = self._split.share.examples
        seed = tf.stack([tf.constant(self._options.seed, tf.int64), epoch])
        # `index_shuffle` needs no list, but its orders are related: findings/tensorflow-orders-of-index-shuffle.sh.
        order = tf.random.experimental.stateless_shuffle(tf.range(examples, dtype=tf.int64), seed)
        # The last group is filled up, because the number of its images is a part of the graph.
        places = tf.range(-(-examples // GROUP) * GROUP) % max(examples, 1)
        return by_position(prefix, tf.gather(order, places), self._images.element_spec).take(examples)
