"""Raw JPEG files -> batches, as articles show it: kept for the comparison with shards, never used for training.

What is slow about it: each file is opened on its own; the label comes from Python, one image at a time under its lock,
which also keeps TensorFlow from running the serial `map` in parallel; every image is decoded whole, however small it is
wanted; and float32 is four times the bytes of uint8 on their way to the accelerator.
"""

import glob
from pathlib import Path

import tensorflow as tf

from pipeline.errors import SourceError

SUFFIXES = ("jpg", "jpeg", "JPG", "JPEG")


def raw_file_batches(folder: Path, *, image_size: int, batch_size: int) -> tf.data.Dataset:
    """Return batches of the JPEG files of a local folder, one sub-folder a class, in a new order in each epoch.

    Batches are (images, labels): float32 of shape (batch, image_size, image_size, 3), RGB from 0 to 1, and int32 of
    shape (batch,). Ids of labels begin at 0, in the order of the names of the sub-folders. The last batch may be
    smaller.

    For the comparison only; the module says what is slow about it.

    Raises:
        SourceError: If the sub-folders hold no JPEG.
    """
    # A bracket in the name of the folder must not act as a pattern.
    patterns = [f"{glob.escape(str(folder))}/*/*.{suffix}" for suffix in SUFFIXES]
    if not any(map(glob.glob, patterns)):
        raise SourceError(
            f"{folder} has no JPEG files in its sub-folders: name a folder with one sub-folder for each class"
        )
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    return (
        tf.data.Dataset.list_files(patterns)
        .map(lambda path: load_image(path, classes, image_size))
        .batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )


def load_image(path: tf.Tensor, classes: list[str], image_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return image (float32 from 0 to 1, image_size x image_size x 3) and label (int32, scalar) of a JPEG file."""
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    label = tf.py_function(lambda path: classes.index(Path(path.numpy().decode()).parent.name), [path], tf.int32)
    resized = tf.image.resize(image, [image_size, image_size])
    return tf.ensure_shape(resized, [image_size, image_size, 3]) / 255.0, tf.ensure_shape(label, [])
