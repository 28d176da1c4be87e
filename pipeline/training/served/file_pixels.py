"""The pixels of a JPEG or PNG file as the exported model sees them: those that its training would have seen.

What `pipeline.images` does once to an image on its way into a record, this does in the graph of the exported model: it
turns the image upright, puts transparency on white, reads CMYK, and converts color profiles to sRGB. A file that it
cannot read in the same way is refused.
"""

from functools import partial

import tensorflow as tf

from pipeline.images.header import PNG_MAGIC
from pipeline.input.autograph import without_autograph
from pipeline.input.decode import Stored, center_crop, crop_of, decode_jpeg_crop, resampled
from pipeline.input.options import CropMode
from pipeline.training.served import file_bytes
from pipeline.training.served.color_profile import to_srgb
from pipeline.training.served.file_bytes import RefuseUnless, part, seldom
from pipeline.training.served.file_header import FileHeader, read_jpeg, read_png

_MIRRORED_DOWN, _MIRRORED_ACROSS, _FIRST_ON_ITS_SIDE = (3, 4, 6, 7), (2, 3, 7, 8), 5
"""The EXIF orientations whose rows, and whose columns, are in reverse order. From 5 on, rows are columns, too."""
_NEITHER = "an image is neither a JPEG nor a PNG, which this model takes: convert it to one of them, in 8-bit sRGB"


@without_autograph
def decode_file(content: tf.Tensor, position: tf.Tensor, mode: CropMode, image_size: int) -> tf.Tensor:
    """Return the image for an evaluation, uint8 of (image_size, image_size, 3), from a file, a scalar string.

    In a graph, running it raises InvalidArgumentError for a file that it refuses. The error says what to do, and names
    the position of the file in the request, from 0.
    """
    refuse_unless: RefuseUnless = partial(file_bytes.refuse_unless, position)
    is_jpeg, is_png = tf.io.is_jpeg(content), part(content, 0, len(PNG_MAGIC)) == PNG_MAGIC
    content = refuse_unless(is_jpeg | is_png, _NEITHER, content)
    header = FileHeader(
        *tf.cond(
            is_jpeg,
            lambda: tuple(read_jpeg(content, refuse_unless)),
            seldom(lambda: tuple(read_png(content, refuse_unless))),
        )
    )
    size = tf.constant([image_size] * 2)
    crop = _stored_crop(header, mode, image_size)
    image = tf.cond(
        is_jpeg,
        lambda: decode_jpeg_crop(header.content, crop, size),
        seldom(lambda: crop_of(_png_pixels(header), crop)),
    )
    # Before the image is resampled: a mean of levels of another curve is up to 50 of 255 apart.
    in_srgb = to_srgb(image, header.profile, header.channels, refuse_unless)
    upright = _turned(resampled(in_srgb, size), header.orientation)
    return tf.ensure_shape(upright, [image_size, image_size, 3])


def _is_on_its_side(orientation: tf.Tensor) -> tf.Tensor:
    return (orientation >= _FIRST_ON_ITS_SIDE) & (orientation <= 8)


def _mirrored(orientation: tf.Tensor) -> tf.Tensor:
    """Return whether rows, and whether columns, are in reverse order (bool, (2,))."""
    return tf.stack([tf.reduce_any(orientation == each) for each in (_MIRRORED_DOWN, _MIRRORED_ACROSS)])


def _stored_crop(header: FileHeader, mode: CropMode, image_size: int) -> tf.Tensor:
    """Return the crop (top, left, height, width) of the stored pixels that is the center crop of the upright image."""
    height, width, orientation = header.height, header.width, header.orientation

    def center(height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
        return center_crop(Stored(header.content, height, width, tf.constant(0)), mode, image_size)

    def turned() -> tf.Tensor:
        top_left = tf.gather(center(width, height), [1, 0, 3, 2])
        crop = tf.where(_is_on_its_side(orientation), top_left, center(height, width))
        # The center of an odd number of free pixels is nearer to the first edge of the upright image.
        from_end = tf.stack([height, width]) - crop[2:] - crop[:2]
        return tf.concat([tf.where(_mirrored(orientation), from_end, crop[:2]), crop[2:]], 0)

    return tf.cond(orientation == 1, lambda: center(height, width), seldom(turned))


def _turned(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Return a square image upright."""

    def turned() -> tf.Tensor:
        axes = tf.where(_mirrored(orientation))[:, 0]
        return tf.transpose(tf.reverse(image, axes), tf.where(_is_on_its_side(orientation), [1, 0, 2], [0, 1, 2]))

    return tf.cond(orientation == 1, lambda: image, seldom(turned))


def _png_pixels(header: FileHeader) -> tf.Tensor:
    """Return the pixels of a PNG, transparency on white."""
    # An alpha channel that TensorFlow adds to a PNG without one is wrong for fewer than 8 bits.
    return tf.cond(
        header.has_alpha,
        lambda: _on_white(tf.io.decode_png(header.content, channels=4)),
        lambda: tf.io.decode_png(header.content, channels=3),
    )


def _on_white(pixels: tf.Tensor) -> tf.Tensor:
    levels = tf.cast(pixels, tf.int32)
    color, alpha = levels[..., :3], levels[..., 3:]
    # To the nearest level, as Pillow rounds.
    return tf.cast((color * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)
