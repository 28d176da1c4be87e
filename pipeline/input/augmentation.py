"""Mirrored training images and other colors, on the device that trains: the input pipeline has no core to spare."""

import tensorflow as tf

_LUMA = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in the brightness that people see (ITU-R BT.601)."""


def flipped(images: tf.Tensor, mirrored: tf.Tensor, on_gpu: bool = False) -> tf.Tensor:
    """Return the images, with left and right exchanged in each image that is `mirrored`.

    Args:
        images: (batch, height, width, channels).
        mirrored: (batch,), bool.
        on_gpu: Whether a GPU does it. The result is the same.
    """
    if on_gpu:
        # TensorFlow has no `gather` of uint8 for GPUs: each step would copy its batch to the host and back.
        return tf.where(mirrored[:, tf.newaxis, tf.newaxis, tf.newaxis], tf.reverse(images, [2]), images)
    shape = tf.shape(images)
    # The batch is reversed as one image of many rows, because on a CPU, TensorFlow reverses three dimensions four times
    # as fast as four. Whole images are then picked by `gather`, because `tf.where` takes five times as long.
    rows = tf.reshape(images, tf.stack([-1, shape[2], shape[3]]))
    others = tf.reshape(tf.reverse(rows, [1]), shape)
    index = tf.range(shape[0]) + tf.where(mirrored, shape[0], 0)
    return tf.ensure_shape(tf.gather(tf.concat([images, others], axis=0), index), images.shape)


def jittered(images: tf.Tensor, strength: float, seed: tf.Tensor) -> tf.Tensor:
    """Return the images with their brightness, contrast and saturation changed at random, and clipped to 0 to 255.

    Each of the three is multiplied by a number of its own from `1 - strength` to `1 + strength`.

    Args:
        images: (batch, height, width, 3), uint8 or float, RGB, 0 to 255. The result is float32 of the same shape.
        strength: From 0 (no change) to 1.
        seed: (2,), int64. It alone decides the random numbers.
    """
    pixels = tf.cast(images, tf.float32)
    # Philox by name: by default each kind of device has a generator of its own.
    changes = tf.random.stateless_uniform(
        [3, tf.shape(pixels)[0], 1, 1, 1], seed, -strength, strength, alg=tf.random.Algorithm.PHILOX
    )
    brightness, contrast, saturation = tf.unstack(changes)
    pixels += brightness * pixels
    pixels += contrast * (pixels - tf.reduce_mean(_gray(pixels), axis=[1, 2], keepdims=True))
    pixels += saturation * (pixels - _gray(pixels))
    return tf.clip_by_value(pixels, 0.0, 255.0)


def seed_of_batch(seed: int, number: tf.Tensor) -> tf.Tensor:
    """Return the seed (int64, (2,)) of the colors of a batch, by its number in the training, from 0.

    Numbers count downwards from -1: those from 0 on are the seeds of crops and flips, and colors would go with them.
    """
    return tf.stack([tf.constant(seed, tf.int64), -1 - tf.cast(number, tf.int64)])


def _gray(pixels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(pixels * _LUMA, axis=-1, keepdims=True)
