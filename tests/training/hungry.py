"""A test model that runs out of memory with more than two examples. It raises the error, because no device is small."""

SMALL_MEMORY = """
import keras
import tensorflow as tf

class Hungry(keras.layers.Layer):
    def call(self, images):
        taken = tf.numpy_function(self.take, [tf.shape(images)[0]], tf.float32, stateful=True)
        return images * tf.ensure_shape(taken, ())

    @staticmethod
    def take(examples):
        if examples > 2:
            raise MemoryError("there is memory for two examples only")
        return tf.ones((), tf.float32).numpy()

def model(size, classes):
    inputs = keras.Input((size, size, 3))
    pixels = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(Hungry()(inputs)))
    return keras.Model(inputs, keras.layers.Dense(classes)(pixels))
"""
