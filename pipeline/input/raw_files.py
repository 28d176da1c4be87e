"""Batches from raw image files, for comparisons with shards only.

Raw files are slow because each file is opened separately, and each image is decoded whole even if the model sees a
small crop. Without a parallel map, one core does all of it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipeline.config.allowed import Sources
from pipeline.dataset.manifest import Dataset
from pipeline.errors import SourceError
from pipeline.input import decode
from pipeline.input.autograph import without_autograph
from pipeline.input.damage import damage_named
from pipeline.input.options import CENTER, BatchOptions
from pipeline.input.order import tf_options
from pipeline.storage import is_bucket
from pipeline.system.resources import usable_cores


@dataclass(frozen=True)
class RawFiles:
    """The raw files of the training examples of a dataset."""

    paths: Sequence[bytes]
    """As the system stores them: a name may not be UTF-8."""
    labels: Sequence[int]
    """Ids of the labels, from 0."""


@without_autograph
def raw_files_of(folder: Path, dataset: Dataset, root: str) -> RawFiles:
    """Return the raw files of the training examples, in the order of the shards. Each image has one label.

    The keys of the source are relative to `root`.

    Raises:
        SourceError: If an image is in a bucket, or if the administrator does not allow it.
        DatasetError: If a shard is damaged, or a record cannot be read.
    """
    form = dataset.records
    compression = "GZIP" if form.compression == "gzip" else ""
    shards = [str(folder / shard.name) for shard in dataset.splits["train"].shards]
    name = {form.keys.filename: tf.io.FixedLenFeature([], tf.string)}

    def row(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.io.parse_single_example(record, name)[form.keys.filename], decode.parse_label(record, form)

    with damage_named(folder):
        rows = list(tf.data.TFRecordDataset(shards, compression).map(row).as_numpy_iterator())
    keys = [os.fsdecode(key) for key, _ in rows]
    if remote := next(filter(is_bucket, [root, *keys]), None):
        raise SourceError(f"{remote} is in a bucket, and raw files are only read from a disk")
    paths, sources = [Path(root) / key for key in keys], Sources()
    for path in paths:
        sources.require(path)
    return RawFiles(list(map(os.fsencode, paths)), [int(label) for _, label in rows])


@without_autograph
def raw_batches(files: RawFiles, options: BatchOptions, parallel: bool, epochs: int) -> tf.data.Dataset:
    """Return the batches of all epochs from raw files, in the form of numbered `training_batches`.

    Each epoch has its own order, crops and flips, which follow from the seed and TensorFlow's global seed.
    Its last batch is filled up with the first files, with weight 0. The numbers of the examples are their positions in
    `files`, from 0.

    If `parallel`, several images are read and decoded at once, and batches are prefetched. Otherwise, one image is read
    after another, and a batch is made only when it is asked for. Of the options, the shuffle buffer and the cache are
    not used, and `crop` is "random" or "whole".
    """
    count, size = len(files.paths), options.batch_size
    padding = -count % size
    table = tf.data.Dataset.from_tensor_slices(
        (tf.constant(files.paths), tf.constant(files.labels, tf.int32), tf.range(count, dtype=tf.int64))
    )
    shuffled = table.shuffle(count, options.seed, reshuffle_each_iteration=True)
    weights = tf.data.Dataset.from_tensor_slices([1.0] * count + [0.0] * padding)
    numbers = tf.data.Dataset.random(options.seed, rerandomize_each_iteration=True)
    of_epoch = tf.data.Dataset.zip(shuffled.concatenate(table.repeat().take(padding)), weights, numbers)
    # As with shards, one iterator for all epochs: with one for each, every epoch would begin with empty buffers.
    examples = of_epoch.repeat(epochs)

    def load(
        row: tuple[tf.Tensor, tf.Tensor, tf.Tensor], weight: tf.Tensor, random: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        path, label, number = row
        # Stateless: with a seed for the whole process, every epoch would get the same crops again.
        place = tf.stack([random, number])
        image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
        image = _cropped(tf.ensure_shape(image, [None, None, 3]), options, place)
        mirrored = (tf.random.stateless_uniform([], place) < 0.5) & options.flip
        return image, label, weight, mirrored, number

    # The options, threads and prefetched batches of the shards: a ratio then says what the raw files cost, and not what
    # TensorFlow's autotuning costs in short epochs.
    own_options = tf_options()
    if parallel:
        loaded = examples.map(load, num_parallel_calls=2 * usable_cores(), deterministic=True)
        batches = loaded.batch(size, drop_remainder=True).prefetch(options.prefetch_batches)
    else:
        batches = examples.map(load).batch(size, drop_remainder=True)
        # By default, TensorFlow fuses the two, and the fused form makes the next batch while the model computes.
        own_options.experimental_optimization.map_and_batch_fusion = False
    return batches.with_options(own_options)


def _cropped(image: tf.Tensor, options: BatchOptions, seed: tf.Tensor) -> tf.Tensor:
    """Return uint8 of (image_size, image_size, 3): the whole image, or a square of 7/8 of its shorter side."""
    side: Any = options.image_size
    if options.crop == "random":
        crop = tf.cast(tf.cast(tf.reduce_min(tf.shape(image)[:2]), tf.float32) * CENTER, tf.int32)
        image = tf.image.stateless_random_crop(image, tf.stack([crop, crop, 3]), seed)
    return tf.ensure_shape(decode.resampled(image, tf.constant([side, side])), [side, side, 3])
