"""Mirrored training images, on the device that trains: the input pipeline has no core to spare for them."""

import tensorflow as tf


def flipped(images: tf.Tensor, mirrored: tf.Tensor, on_gpu: bool = False) -> tf.Tensor:
    """Return the images, with left and right exchanged in those that are `mirrored`.

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
