"""The input pipeline of images: one straight line from shard files to batches.

Batches are (images, labels): uint8 of shape (batch, size, size, 3), RGB, and int32 of shape (batch,). The last batch of
an epoch may be smaller. Order follows from (seed, epoch) alone.
"""

import hashlib
from pathlib import Path

import tensorflow as tf

from pipeline.dataset import Dataset, Split
from pipeline.records import RecordFormat

CYCLE = 8  # files read at once: enough to mix shards and to hide the latency of one


def training_batches(
    folder: Path,
    dataset: Dataset,
    *,
    epoch: int,
    image_size: int,
    batch_size: int,
    shuffle_bytes: int,
    seed: int,
) -> tf.data.Dataset:
    """Every training example of a data set once, in an order of this epoch's own."""
    split = dataset.splits["train"]
    files = shuffled_files(folder, split, seed, epoch)
    buffer = shuffle_elements(split, shuffle_bytes)
    return (
        tf.data.Dataset.from_tensor_slices(files)
        # Several files at once: one file's batches would repeat its neighbours in every epoch. Deterministic, since
        # the first file to answer would otherwise decide the order.
        .interleave(
            lambda file: records_of(file, dataset.records),
            cycle_length=CYCLE,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        # Before decoding: an element is then the encoded image, a tenth of its pixels' memory.
        .shuffle(buffer, seed=seed + epoch)
        .map(_decoder(dataset.records, image_size), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(batch_size)
        # Last: the next batches are made while the accelerator works on this one.
        .prefetch(tf.data.AUTOTUNE)
    )


def validation_batches(folder: Path, dataset: Dataset, *, image_size: int, batch_size: int) -> tf.data.Dataset:
    """Every validation example of a data set once, in the order of the shards."""
    files = [str(folder / shard.name) for shard in dataset.splits["validation"].shards]
    return (
        records_of(files, dataset.records)
        .map(_decoder(dataset.records, image_size), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )


def shuffled_files(folder: Path, split: Split, seed: int, epoch: int) -> list[str]:
    """The shard files of a split in the order of a salted hash of their names: the same anywhere, new each epoch."""
    salt = f"{seed}/{epoch}/"
    names = sorted(
        (shard.name for shard in split.shards), key=lambda name: hashlib.sha256((salt + name).encode()).digest()
    )
    return [str(folder / name) for name in names]


def shuffle_elements(split: Split, shuffle_bytes: int) -> int:
    """How many encoded examples of average size fit into a buffer of `shuffle_bytes`; never more than there are."""
    average = max(1, split.bytes // max(split.examples, 1))
    return max(1, min(split.examples, shuffle_bytes // average))


def records_of(files: list[str] | tf.Tensor, form: RecordFormat) -> tf.data.Dataset:
    """The serialized examples of some shard files, one after another."""
    return tf.data.TFRecordDataset(files, compression_type="GZIP" if form.compression == "gzip" else "")


def decode_example(serialized: tf.Tensor, form: RecordFormat, image_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """A serialized example -> image (uint8, image_size x image_size x 3) and label (int32, scalar, from 0).

    The whole image is squeezed into the square: nothing of it is cut away.
    """
    keys = form.keys
    features = tf.io.parse_single_example(
        serialized,
        {
            keys.encoded: tf.io.FixedLenFeature([], tf.string),
            keys.height: tf.io.FixedLenFeature([], tf.int64),
            keys.width: tf.io.FixedLenFeature([], tf.int64),
            keys.label: tf.io.FixedLenFeature([], tf.int64),
        },
    )
    if form.pixels == "raw":
        image = tf.reshape(
            tf.io.decode_raw(features[keys.encoded], tf.uint8), [features[keys.height], features[keys.width], 3]
        )
    else:
        # No animations: they would come out with rank 4. The shards hold none, but others' may.
        image = tf.io.decode_image(features[keys.encoded], channels=3, expand_animations=False)
    # Antialiased: without it shrinking a photograph to a small input leaves a pattern of dropped pixels.
    resized = tf.image.resize(image, [image_size, image_size], antialias=True)
    # Still uint8: four times less to batch, prefetch and send to the accelerator than float32.
    pixels = tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
    pixels.set_shape([image_size, image_size, 3])
    return pixels, tf.cast(features[keys.label], tf.int32) - form.label_offset


def _decoder(form: RecordFormat, image_size: int):  # type: ignore[no-untyped-def]  # TensorFlow ships no types
    return lambda serialized: decode_example(serialized, form, image_size)
