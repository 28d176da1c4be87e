"""A serialized example -> the part of its image that the model sees, decoding no more than that part.

All functions take and give tensors, and run alike eagerly and within `Dataset.map`.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.dataset.manifest import Dataset
from pipeline.input.options import CENTER, BatchOptions, CropMode
from pipeline.records.format import RecordFormat

_MAX_CROP_RATIO = 4 / 3
"""The longer side of a random crop is at most this many times the shorter one."""
_SLACK = 1.25
"""An image is cropped without resampling if its shorter side is at most this many times that of the model's images."""
_MAX_CACHED_RATIO = 2
"""The longer side of a cached image is at most this many times the shorter one."""
_SCALES = (1, 2, 4, 8)
"""libjpeg can decode a JPEG at these fractions of its size: 1, 1/2, 1/4 and 1/8."""


class Stored(NamedTuple):
    """What a record holds of an image."""

    content: tf.Tensor
    """A JPEG or PNG file, or the pixels; a scalar string."""
    height: tf.Tensor
    width: tf.Tensor
    label: tf.Tensor
    """int32, from 0: a scalar, or (k,) where an image may have several."""


def parse(serialized: tf.Tensor, form: RecordFormat) -> Stored:
    """Return the features of a record that training needs; height and width are int32 scalars."""
    keys = form.keys
    features = tf.io.parse_single_example(
        serialized,
        {
            keys.encoded: tf.io.FixedLenFeature([], tf.string),
            keys.height: tf.io.FixedLenFeature([], tf.int64),
            keys.width: tf.io.FixedLenFeature([], tf.int64),
            keys.label: _label_feature(form),
        },
    )
    height, width = (tf.cast(features[key], tf.int32) for key in (keys.height, keys.width))
    return Stored(features[keys.encoded], height, width, _label(features, form))


def parse_label(serialized: tf.Tensor, form: RecordFormat) -> tf.Tensor:
    """Return the label of a record."""
    features = {form.keys.label: _label_feature(form)}
    return _label(tf.io.parse_single_example(serialized, features), form)


def _label_feature(form: RecordFormat) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    return tf.io.RaggedFeature(tf.int64) if form.multi_label else tf.io.FixedLenFeature([], tf.int64)


def _label(features: Mapping[str, tf.Tensor], form: RecordFormat) -> tf.Tensor:
    return tf.cast(features[form.keys.label], tf.int32) - form.label_offset


def target(label: tf.Tensor, dataset: Dataset) -> tf.Tensor:
    """Return the target of a label: its id, or for several labels uint8 of (classes,), 1 for each of them.

    TensorFlow raises InvalidArgumentError for a label that is not in dataset.json.
    """
    classes = len(dataset.labels)
    # To gather from a list of all ids is one operation, which refuses any other id. A step on a GPU would learn a wrong
    # label without an error.
    label = tf.gather(np.arange(classes, dtype=np.int32), label)
    return multi_hot(label, classes) if dataset.records.multi_label else label


def multi_hot(ids: tf.Tensor, classes: int) -> tf.Tensor:
    """Return uint8 of (classes,): 1 at these ids, else 0."""
    return tf.reduce_max(tf.one_hot(ids, classes, dtype=tf.uint8), axis=0)


def random_crop(stored: Stored, options: BatchOptions, numbers: tf.Tensor) -> tf.Tensor:
    """Return the crop (top, left, height, width; int32) that training sees, from five random numbers (0 to 1)."""
    size = tf.stack([stored.height, stored.width])
    if options.crop == "whole":
        return tf.concat([[0, 0], size], 0)
    is_resized = options.crop == "random_resized"
    side = _random_size(size, options.min_crop_area, numbers) if is_resized else _side(size, options.image_size)
    return placed_crop(side, size, numbers)


def center_crop(stored: Stored, mode: CropMode, image_size: int) -> tf.Tensor:
    """Return the crop (top, left, height, width; int32) for an evaluation, if training crops by `mode`."""
    size = tf.stack([stored.height, stored.width])
    crop = size if mode == "whole" else _side(size, image_size)
    return tf.concat([(size - crop) // 2, crop], 0)


def decode_for_evaluation(stored: Stored, form: RecordFormat, mode: CropMode, image_size: int) -> tf.Tensor:
    """Return the image for an evaluation, uint8 of (image_size, image_size, 3). Nothing of it is random."""
    image = decode_crop(stored, center_crop(stored, mode, image_size), form, tf.constant([image_size] * 2))
    return tf.ensure_shape(image, [image_size, image_size, 3])


def cached_crop(stored: Stored, mode: CropMode, image_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the crop of an image that is cached and cropped again in each epoch, and its height and width there."""
    size = tf.stack([stored.height, stored.width])
    if mode == "whole":
        return tf.concat([[0, 0], size], 0), tf.constant([image_size, image_size])
    crop = tf.minimum(size, _MAX_CACHED_RATIO * tf.reduce_min(size))  # A panorama would fill the memory.
    scale = tf.cast(image_size, tf.float32) / tf.cast(_side(size, image_size)[0], tf.float32)
    # Rounded up, and at least the size of the model: rounding must not leave a side a pixel too short for the crop.
    cached = tf.cast(tf.math.ceil(tf.cast(crop, tf.float32) * scale), tf.int32)
    return tf.concat([(size - crop) // 2, crop], 0), tf.maximum(cached, image_size)


def placed_crop(crop_size: tf.Tensor, size: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Return a crop of the given height and width at a random place within `size`."""
    # The numbers are below 1. With one more than the free pixels, all places are equally frequent, the last one too.
    free = tf.cast(size - crop_size + 1, tf.float32)
    return tf.concat([tf.cast(numbers[2:4] * free, tf.int32), crop_size], 0)


def _side(size: tf.Tensor, image_size: int) -> tf.Tensor:
    """Return height and width of a square crop: `image_size` if the image is hardly larger, to avoid resampling."""
    shorter = tf.reduce_min(size)
    fits = (shorter >= image_size) & (shorter <= int(image_size * _SLACK))
    share = tf.maximum(tf.cast(tf.round(tf.cast(shorter, tf.float32) * CENTER), tf.int32), 1)
    return tf.repeat(tf.where(fits, image_size, share), 2)


def _random_size(size: tf.Tensor, min_area: float, numbers: tf.Tensor) -> tf.Tensor:
    """Return height and width of a random share of the image's area, in a random shape, cut off at the image."""
    sides = tf.cast(size, tf.float32)
    area = tf.reduce_prod(sides) * (min_area + (1 - min_area) * numbers[0])
    # Uniform in the logarithm: a third wider is as frequent as a third higher.
    ratio = tf.exp((2 * numbers[1] - 1) * math.log(_MAX_CROP_RATIO))
    crop_size = tf.minimum(tf.sqrt(tf.stack([area / ratio, area * ratio])), sides)
    return tf.maximum(tf.cast(crop_size, tf.int32), 1)


def decode_crop(stored: Stored, crop: tf.Tensor, form: RecordFormat, size: tf.Tensor) -> tf.Tensor:
    """Return the crop as an image (uint8, height x width x 3) of the height and width `size`."""
    return resampled(decoded_crop(stored, crop, form, size), size)


def decoded_crop(stored: Stored, crop: tf.Tensor, form: RecordFormat, size: tf.Tensor) -> tf.Tensor:
    """Return the crop as the decoder gives it (uint8, height x width x 3), before it is resampled to `size`."""
    if form.pixels == "raw":
        pixels = tf.reshape(tf.io.decode_raw(stored.content, tf.uint8), tf.stack([stored.height, stored.width, 3]))
        return crop_of(pixels, crop)
    return tf.cond(
        tf.io.is_jpeg(stored.content),
        lambda: decode_jpeg_crop(stored.content, crop, size),
        # No animations: they would come out with rank 4. The shards hold none, but others' may.
        lambda: crop_of(tf.io.decode_image(stored.content, channels=3, expand_animations=False), crop),
    )


def crop_of(image: tf.Tensor, crop: tf.Tensor) -> tf.Tensor:
    """Return the crop of an image."""
    return tf.slice(image, tf.concat([crop[:2], [0]], 0), tf.concat([crop[2:], [3]], 0))


def decode_jpeg_crop(content: tf.Tensor, crop: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Decode the crop of a JPEG, at the smallest scale that still has a pixel for each one of `size`.

    The decoder skips what lies outside, and shrinks by averaging, which costs nothing: resampling a photograph of many
    megapixels would take longer than decoding it.
    """
    # Rounded down: a crop of 1.9 times the size, decoded at a half, would have to be enlarged again.
    enough = tf.reduce_min(crop[2:] // size)
    index = tf.add_n([tf.cast(enough >= scale, tf.int32) for scale in _SCALES[1:]])
    return tf.switch_case(index, [partial(_at_scale, content, crop, scale) for scale in _SCALES])


def _at_scale(content: tf.Tensor, crop: tf.Tensor, scale: int) -> tf.Tensor:
    # The decoder shrinks before it crops, so the crop is in pixels of the shrunk image.
    # TensorFlow's default is a rougher inverse DCT, which makes photographs darker by 0.8 of 255 on average.
    return tf.image.decode_and_crop_jpeg(content, crop // scale, channels=3, ratio=scale, dct_method="INTEGER_ACCURATE")


def resampled(image: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return an image (uint8, height x width x 3) in the height and width `size`; the image itself if it has them."""
    has_size = tf.reduce_all(tf.shape(image)[:2] == size)
    return tf.cond(has_size, lambda: image, lambda: _resized(image, size))


def _resized(image: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(image)[:2]
    # A mean uses every pixel of a side that gets shorter (antialiasing). TensorFlow's own antialiasing takes three
    # times as long. Enlarging by a mean would show squares, so a side that gets longer is interpolated.
    shorter = tf.minimum(shape, size)
    shrunk = tf.cond(
        tf.reduce_all(shorter == shape),
        lambda: tf.cast(image, tf.float32),
        lambda: tf.image.resize(image, shorter, "area"),
    )
    resized = tf.cond(tf.reduce_all(shorter == size), lambda: shrunk, lambda: tf.image.resize(shrunk, size, "bilinear"))
    return tf.cast(resized + 0.5, tf.uint8)  # to the nearest, as casting cuts off


def flipped(image: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    """Return the image, with left and right exchanged if `mirrored` (bool, scalar)."""
    return tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
