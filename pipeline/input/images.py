"""The input pipeline of images: one straight line from shard files to batches.

Batches are (images, labels): uint8 of shape (batch, size, size, 3), RGB, and int32 of shape (batch,). The last batch of
an epoch may be smaller. Order follows from (seed, epoch) alone.
"""

import hashlib
from collections.abc import Iterator

import tensorflow as tf

from pipeline.dataset import Dataset, Split
from pipeline.records import RecordFormat
from pipeline.shard_reader import ShardReader
from pipeline.storage import Place

CYCLE = 8  # files read at once: enough to mix shards and to hide the latency of one


def training_batches(
    folder: Place,
    dataset: Dataset,
    *,
    epoch: int,
    image_size: int,
    batch_size: int,
    shuffle_bytes: int,
    seed: int,
    reader: ShardReader | None = None,
) -> tf.data.Dataset:
    """Every training example of a data set once, in an order of this epoch's own.

    :param reader: hands out local copies of the shards; without it TensorFlow opens them where they are
    """
    split = dataset.splits["train"]
    names = shuffled_names(split, seed, epoch)
    buffer = shuffle_elements(split, shuffle_bytes)
    return (
        (_interleaved_copies(reader, names, dataset) if reader else _interleaved(_files(folder, names), dataset))
        # Before decoding: an element is then the encoded image, a tenth of its pixels' memory.
        .shuffle(buffer, seed=seed + epoch)
        .map(_decoder(dataset.records, image_size), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(batch_size)
        # Last: the next batches are made while the accelerator works on this one.
        .prefetch(tf.data.AUTOTUNE)
    )


def validation_batches(
    folder: Place, dataset: Dataset, *, image_size: int, batch_size: int, reader: ShardReader | None = None
) -> tf.data.Dataset:
    """Every validation example of a data set once, in the order of the shards.

    :param reader: as for `training_batches`
    """
    names = [shard.name for shard in dataset.splits["validation"].shards]
    records = _copies(reader, names, dataset) if reader else records_of(_files(folder, names), dataset.records)
    return (
        records.map(_decoder(dataset.records, image_size), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )


def order_of_need(dataset: Dataset, seed: int, epochs: range) -> Iterator[str]:
    """The names of the shards as these epochs read them: for training, then for validation, in each."""
    for epoch in epochs:
        yield from shuffled_names(dataset.splits["train"], seed, epoch)
        yield from (shard.name for shard in dataset.splits["validation"].shards)


def shuffled_names(split: Split, seed: int, epoch: int) -> list[str]:
    """The shards of a split in the order of a salted hash of their names: the same anywhere, new each epoch."""
    salt = f"{seed}/{epoch}/"
    return sorted(
        (shard.name for shard in split.shards), key=lambda name: hashlib.sha256((salt + name).encode()).digest()
    )


def _files(folder: Place, names: list[str]) -> list[str]:
    return [str(folder / name) for name in names]


def _interleaved(files: list[str], dataset: Dataset) -> tf.data.Dataset:
    """Records of several files at once: one file's batches would repeat its neighbours in every epoch.

    Deterministic, since the first file to answer would otherwise decide the order.
    """
    return tf.data.Dataset.from_tensor_slices(files).interleave(
        lambda file: records_of(file, dataset.records),
        cycle_length=CYCLE,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _interleaved_copies(reader: ShardReader, names: list[str], dataset: Dataset) -> tf.data.Dataset:
    """The same order from local copies, by one thread, which asks for a shard when one before it has ended.

    A parallel interleave waits for shards far beyond those it reads, with all of TensorFlow's threads, and reads
    nothing meanwhile. One thread reads about a gigabyte a second from a local disk.
    """
    return tf.data.Dataset.from_tensor_slices(names).interleave(
        lambda name: _records_of_copy(reader, name, dataset.records), cycle_length=CYCLE
    )


def _copies(reader: ShardReader, names: list[str], dataset: Dataset) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(names).flat_map(
        lambda name: _records_of_copy(reader, name, dataset.records)
    )


def _records_of_copy(reader: ShardReader, name: tf.Tensor, form: RecordFormat) -> tf.data.Dataset:
    def take(name: bytes) -> bytes:
        return str(reader.take(name.decode())).encode()

    def release(name: bytes) -> bool:
        reader.release(name.decode())
        return False

    path = tf.ensure_shape(tf.numpy_function(take, [name], tf.string), [])
    # Behind the records something that yields none: it is asked for when they have been read.
    end = tf.data.Dataset.from_tensors(name).filter(
        lambda name: tf.ensure_shape(tf.numpy_function(release, [name], tf.bool), [])
    )
    return records_of(path, form).concatenate(end)


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
