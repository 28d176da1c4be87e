"""A serialized example -> the part of its image that the model sees, decoding no more than that part.

All functions take and give tensors, and run alike eagerly and within `Dataset.map`.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from pipeline.dataset.manifest import Dataset
from pipeline.input.options import CENTER, BatchOptions, Crop
from pipeline.records.format import RecordFormat

_LONGEST = 4 / 3
"""Width over height of a random window, or height over width, at most."""
_SLACK = 1.25
"""An image whose shorter side is at most so many times the model's is cropped without resampling."""
_ANTIALIASED = 3
"""How many times smaller an image is made before resampling looks at every pixel of it."""
_MAX_KEPT = 2
"""Longer over shorter side of what is kept of an image, at most."""
_SCALES = (1, 2, 4, 8)
"""Fractions of its size that a JPEG can be decoded at."""


class Stored(NamedTuple):
    """What a record holds of an image."""

    content: tf.Tensor
    """A JPEG or PNG file, or the pixels; a scalar string."""
    height: tf.Tensor
    width: tf.Tensor
    label: tf.Tensor
    """int32, from 0: a scalar, or (k,) where an image may have several."""


def parse(serialized: tf.Tensor, form: RecordFormat) -> Stored:
    """The features that training needs; height and width are int32 scalars."""
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
    """The label alone."""
    features = {form.keys.label: _label_feature(form)}
    return _label(tf.io.parse_single_example(serialized, features), form)


def _label_feature(form: RecordFormat) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    return tf.io.RaggedFeature(tf.int64) if form.multi_label else tf.io.FixedLenFeature([], tf.int64)


def _label(features: Mapping[str, tf.Tensor], form: RecordFormat) -> tf.Tensor:
    return tf.cast(features[form.keys.label], tf.int32) - form.label_offset


def target(label: tf.Tensor, dataset: Dataset) -> tf.Tensor:
    """What a model is to say of an image with this label: its id, or of several uint8 of (classes,), 1 for those."""
    return multi_hot(label, len(dataset.labels)) if dataset.records.multi_label else label


def multi_hot(ids: tf.Tensor, classes: int) -> tf.Tensor:
    """uint8 of (classes,): 1 at these ids, else 0."""
    return tf.reduce_max(tf.one_hot(ids, classes, dtype=tf.uint8), axis=0)


def random_window(stored: Stored, crop: Crop, options: BatchOptions, numbers: tf.Tensor) -> tf.Tensor:
    """The window (top, left, height, width; int32) of an image that training sees, by five random numbers."""
    size = tf.stack([stored.height, stored.width])
    if crop == "whole":
        return tf.concat([[0, 0], size], 0)
    if crop == "random":
        return _placed(_side(size, options.image_size), size, numbers)
    return _placed(_random_size(size, options.min_crop_area, numbers), size, numbers)


def window_within(image: tf.Tensor, side: int, numbers: tf.Tensor) -> tf.Tensor:
    """A square window of an image at a random place."""
    return _placed(tf.constant([side, side]), tf.shape(image)[:2], numbers)


def center_window(stored: Stored, crop: Crop, image_size: int) -> tf.Tensor:
    """The window (top, left, height, width; int32) that is evaluated, where `crop` is what training does."""
    size = tf.stack([stored.height, stored.width])
    window = size if crop == "whole" else _side(size, image_size)
    return tf.concat([(size - window) // 2, window], 0)


def evaluated(stored: Stored, form: RecordFormat, crop: Crop, image_size: int) -> tf.Tensor:
    """The image as a model is evaluated on it, uint8 of (image_size, image_size, 3); nothing of it is random."""
    image = pixels_of(stored, center_window(stored, crop, image_size), form, tf.constant([image_size] * 2))
    return tf.ensure_shape(image, [image_size, image_size, 3])


def evaluated_file(content: tf.Tensor, crop: Crop, image_size: int) -> tf.Tensor:
    """The same of a JPEG or PNG file, a scalar string, that is in no record."""
    # TensorFlow reads the size of a JPEG from its header; others have to be decoded for it.
    shape = tf.cond(
        tf.io.is_jpeg(content),
        lambda: tf.image.extract_jpeg_shape(content),
        lambda: tf.shape(tf.io.decode_image(content, channels=3, expand_animations=False)),
    )
    return evaluated(Stored(content, shape[0], shape[1], tf.constant(0)), RecordFormat(), crop, image_size)


def kept_part(stored: Stored, crop: Crop, image_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Of an image that is to be cropped again and again: the window, and the height and width to keep it in."""
    size = tf.stack([stored.height, stored.width])
    if crop == "whole":
        return tf.concat([[0, 0], size], 0), tf.constant([image_size, image_size])
    window = tf.minimum(size, _MAX_KEPT * tf.reduce_min(size))  # else a panorama would fill the memory
    scale = tf.cast(image_size, tf.float32) / tf.cast(_side(size, image_size)[0], tf.float32)
    kept = tf.cast(tf.math.ceil(tf.cast(window, tf.float32) * scale), tf.int32)
    return tf.concat([(size - window) // 2, window], 0), tf.maximum(kept, image_size)


def _placed(window: tf.Tensor, size: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """A window of the given height and width at a random place within `size`."""
    free = tf.cast(size - window + 1, tf.float32)
    return tf.concat([tf.cast(numbers[2:4] * free, tf.int32), window], 0)


def _side(size: tf.Tensor, image_size: int) -> tf.Tensor:
    """Height and width of a square window: `image_size` where the image is hardly larger, as that is not resampled."""
    shorter = tf.reduce_min(size)
    fits = (shorter >= image_size) & (shorter <= int(image_size * _SLACK))
    share = tf.maximum(tf.cast(tf.round(tf.cast(shorter, tf.float32) * CENTER), tf.int32), 1)
    return tf.repeat(tf.where(fits, image_size, share), 2)


def _random_size(size: tf.Tensor, min_area: float, numbers: tf.Tensor) -> tf.Tensor:
    """Height and width of a random share of the image's area, in a random shape; cut off where it does not fit in."""
    sides = tf.cast(size, tf.float32)
    area = tf.reduce_prod(sides) * (min_area + (1 - min_area) * numbers[0])
    # Uniform in the logarithm: a third wider is as frequent as a third higher.
    shape = tf.exp((2 * numbers[1] - 1) * math.log(_LONGEST))
    window = tf.minimum(tf.sqrt(tf.stack([area / shape, area * shape])), sides)
    return tf.maximum(tf.cast(window, tf.int32), 1)


def pixels_of(stored: Stored, window: tf.Tensor, form: RecordFormat, size: tf.Tensor) -> tf.Tensor:
    """The window as an image (uint8, height x width x 3) of the height and width `size`."""
    if form.pixels == "raw":
        return resampled(cut(_raw(stored), window), size)
    part = tf.cond(
        tf.io.is_jpeg(stored.content),
        lambda: _decode_jpeg(stored.content, window, size),
        # No animations: they would come out with rank 4. The shards hold none, but others' may.
        lambda: cut(tf.io.decode_image(stored.content, channels=3, expand_animations=False), window),
    )
    return resampled(part, size)


def _raw(stored: Stored) -> tf.Tensor:
    return tf.reshape(tf.io.decode_raw(stored.content, tf.uint8), tf.stack([stored.height, stored.width, 3]))


def cut(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """The window of an image."""
    return tf.slice(image, tf.concat([window[:2], [0]], 0), tf.concat([window[2:], [3]], 0))


def _decode_jpeg(content: tf.Tensor, window: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """The window of a JPEG, at the smallest scale that still has a pixel for each one of `size`.

    The decoder skips what lies outside, and shrinks by averaging, which costs nothing: resampling a photograph of many
    megapixels would take longer than decoding it.
    """
    enough = tf.reduce_min(window[2:] // size)
    index = tf.add_n([tf.cast(enough >= scale, tf.int32) for scale in _SCALES[1:]])
    return tf.switch_case(index, [partial(_at_scale, content, window, scale) for scale in _SCALES])


def _at_scale(content: tf.Tensor, window: tf.Tensor, scale: int) -> tf.Tensor:
    return tf.image.decode_and_crop_jpeg(content, window // scale, channels=3, ratio=scale)


def resampled(image: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """An image (uint8, height x width x 3) in the height and width `size`; the same one where it has that size."""
    is_that = tf.reduce_all(tf.shape(image)[:2] == size)
    return tf.cond(is_that, lambda: image, lambda: _bilinear(image, size))


def _bilinear(image: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    # Antialiasing takes longer than decoding, and up to here the eye finds no difference.
    shrinks = tf.reduce_any(tf.shape(image)[:2] >= _ANTIALIASED * size)
    resized = tf.cond(
        shrinks,
        lambda: tf.clip_by_value(tf.image.resize(image, size, antialias=True), 0, 255),
        lambda: tf.image.resize(image, size),
    )
    return tf.cast(resized + 0.5, tf.uint8)  # to the nearest, as casting cuts off


def flipped(image: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    """The image, with left and right exchanged where it is to be `mirrored` (bool, scalar)."""
    return tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
