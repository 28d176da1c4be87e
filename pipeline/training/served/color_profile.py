"""Colors of an image with an ICC profile in sRGB, with operations of TensorFlow alone.

This computes what `pipeline.images.profiles` lets LittleCMS compute when it prepares an image for training, for
profiles of three colorants and tone curves, and for gray. These are the profiles of cameras, phones and displays.
Source: ICC.1:2022.
"""

import numpy as np
import tensorflow as tf

from pipeline.images.profiles import TOLERANCE, known_colors
from pipeline.training.served.file_bytes import RefuseUnless, first, numbers, part, seldom

_COLORANTS = ((0.43607, 0.38515, 0.14307), (0.22249, 0.71687, 0.06061), (0.01392, 0.09708, 0.71410))
"""The colorants of sRGB, adapted to D50: a row for each of X, Y and Z."""
_GRAYS = 256
"""The known colors begin with this many grays."""
_STEPS = 1 << 14
"""Steps of linear light in a table of levels. Near black, a step is a fifth of a level."""
_TABLES = (b"A2B0", b"A2B1", b"D2B1")
"""LittleCMS prefers these tags to the colorants."""
_NEEDS_TABLES = "an image has a color profile of tables, such as one for CMYK, which this model does not apply: "
_CONVERT = "convert the image to sRGB"


def to_srgb(image: tf.Tensor, profile: tf.Tensor, channels: tf.Tensor, refuse_unless: RefuseUnless) -> tf.Tensor:
    """Return an image (uint8, height x width x 3) in sRGB.

    If the profile counts as sRGB, is broken, or does not fit the image, the levels stay as they are.

    Args:
        image: Gray and CMYK are already stored as red, green and blue.
        profile: The ICC profile, a scalar string; empty if there is none.
        channels: Channels of the file: 1 for gray, 3 for colors, 4 for CMYK.
        refuse_unless: Refuses the file.
    """
    return tf.cond(
        tf.strings.length(profile) > 0,
        seldom(lambda: _converted(image, profile, channels, refuse_unless)),
        lambda: image,
    )


def _converted(image: tf.Tensor, profile: tf.Tensor, channels: tf.Tensor, refuse_unless: RefuseUnless) -> tf.Tensor:
    space, connection = part(profile, 16, 4), part(profile, 20, 4)
    count = tf.clip_by_value(numbers(profile, 128, tf.int32, 1)[0], 0, (tf.strings.length(profile) - 132) // 12)
    # Name, offset and size of each tag.
    table = tf.io.decode_raw(part(profile, 132, 12 * count), tf.int32, little_endian=False)
    table = tf.reshape(table, [-1, 3])

    def tag(name: bytes) -> tf.Tensor:
        found = tf.boolean_mask(table[:, 1:], table[:, 0] == int.from_bytes(name, "big"))
        return part(profile, *tf.unstack(first(found, [0, 0])))

    is_gray = (space == b"GRAY") & (channels == 1)
    fits = is_gray | ((space == b"RGB ") & (channels != 4))
    has_tables = tf.reduce_any([tf.strings.length(tag(name)) > 0 for name in _TABLES])
    needs_tables = (fits & has_tables) | (is_gray & (connection != b"XYZ ")) | ((channels == 4) & (space == b"CMYK"))
    image = refuse_unless(~needs_tables, _NEEDS_TABLES + _CONVERT, image)

    curves = [_curve(tf.where(is_gray, tag(b"kTRC"), tag(name))) for name in (b"rTRC", b"gTRC", b"bTRC")]
    colorants = [tag(name) for name in (b"rXYZ", b"gXYZ", b"bXYZ")]
    of_colors = tf.stack([_fixed(each, 8, 3) for each in colorants], 1)
    to_linear_srgb = tf.constant(np.linalg.inv(_COLORANTS), tf.float32) @ of_colors
    matrix = tf.where(is_gray, tf.eye(3), to_linear_srgb)

    is_whole = is_gray | tf.reduce_all([tf.strings.length(each) >= 20 for each in colorants])
    is_whole &= tf.reduce_all(tf.math.is_finite(curves))
    curves = [tf.where(tf.math.is_finite(each), each, 0.0) for each in curves]

    def converted(pixels: tf.Tensor) -> tf.Tensor:
        levels = tf.cast(pixels, tf.int32)
        light = tf.stack([tf.gather(curve, levels[..., channel]) for channel, curve in enumerate(curves)], -1)
        return _encoded(tf.tensordot(light, tf.transpose(matrix), 1))

    known = np.asarray(known_colors("RGB"))[0]
    change = tf.reduce_max(tf.abs(tf.cast(converted(tf.constant(known)), tf.int32) - known.astype(np.int32)), 1)
    # Of an image in gray, only grays count.
    change = tf.reduce_max(tf.where((channels == 1) & (tf.range(len(known)) >= _GRAYS), 0, change))
    is_srgb = change <= tf.where(is_gray, TOLERANCE["L"], TOLERANCE["RGB"])
    return tf.cond(fits & is_whole & ~is_srgb, lambda: converted(image), lambda: image)


def _encoded(light: tf.Tensor) -> tf.Tensor:
    """Return linear light, 0 to 1, in levels of sRGB (IEC 61966-2-1)."""
    # A table, because the power of each pixel would take longer than decoding it.
    steps = np.linspace(0, 1, _STEPS)
    levels = np.where(steps <= 0.0031308, 12.92 * steps, 1.055 * steps ** (1 / 2.4) - 0.055)
    place = tf.cast(tf.clip_by_value(light, 0.0, 1.0) * (_STEPS - 1) + 0.5, tf.int32)
    return tf.gather(tf.constant((255 * levels + 0.5).astype(np.uint8)), place)


def _curve(tag: tf.Tensor) -> tf.Tensor:
    """Return the light (float32, (256,), 0 to 1) of each level; NaN if the tag is no curve."""
    kind, levels = part(tag, 0, 4), tf.range(256, dtype=tf.float32) / 255
    light = tf.case(
        [(kind == b"curv", lambda: _sampled(tag, levels)), (kind == b"para", lambda: _parametric(tag, levels))],
        default=lambda: tf.fill([256], float("nan")),
    )
    return tf.clip_by_value(light, 0.0, 1.0)


def _sampled(tag: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
    count = tf.clip_by_value(numbers(tag, 8, tf.int32, 1)[0], 0, (tf.strings.length(tag) - 12) // 2)
    values = tf.cast(tf.io.decode_raw(part(tag, 12, 2 * count), tf.uint16, little_endian=False), tf.float32)

    def interpolated() -> tf.Tensor:
        place = levels * tf.cast(count - 1, tf.float32)
        before = tf.cast(place, tf.int32)
        low, high = tf.gather(values, before), tf.gather(values, tf.minimum(before + 1, count - 1))
        return (low + (high - low) * (place - tf.cast(before, tf.float32))) / 65535

    # No value stands for the identity, and one for an exponent with 8 binary places.
    return tf.switch_case(tf.minimum(count, 2), [lambda: levels, lambda: levels ** (values[0] / 256), interpolated])


def _parametric(tag: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
    """Return (a x + b) ** g + e from x = d on, and c x + f below: the most general of the five forms."""
    g, a, b, c, d, e, f = tf.unstack(_fixed(tag, 12, 7))
    forms = [
        [g, 1.0, 0.0, 0.0, -1.0, 0.0, 0.0],
        [g, a, b, 0.0, -b / a, 0.0, 0.0],
        [g, a, b, 0.0, -b / a, c, c],
        [g, a, b, c, d, 0.0, 0.0],
        [g, a, b, c, d, e, f],
    ]
    form = tf.minimum(numbers(tag, 8, tf.uint16, 1)[0], len(forms) - 1)
    g, a, b, c, d, e, f = tf.unstack(tf.gather(tf.stack([tf.stack(each) for each in forms]), form))
    return tf.where(levels >= d, tf.maximum(a * levels + b, 0.0) ** g + e, c * levels + f)


def _fixed(content: tf.Tensor, start: int, count: int) -> tf.Tensor:
    """Return numbers with 16 binary places."""
    return tf.cast(numbers(content, start, tf.int32, count), tf.float32) / 2**16
