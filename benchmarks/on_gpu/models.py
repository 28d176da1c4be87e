"""Small vision transformers, as a user's own models."""

import keras

PATCH = 16
"""Side of a patch, in pixels."""


@keras.saving.register_keras_serializable("benchmarks")
class Positions(keras.layers.Layer):
    """Adds a learned vector to each token, (batch, tokens, width)."""

    def build(self, shape: tuple[int, ...]) -> None:
        """Make the vectors."""
        self.vectors = self.add_weight(shape=shape[1:], initializer=keras.initializers.RandomNormal(stddev=0.02))

    def call(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """Return the tokens with their positions."""
        return tokens + self.vectors


def small_vit(image_size: int, classes: int) -> keras.Model:
    """Return ViT-S/16: 22 million weights."""
    return _vit(image_size, classes, width=384, heads=6, blocks=12)


def tiny_vit(image_size: int, classes: int) -> keras.Model:
    """Return a model of the same kind for a machine without a GPU."""
    return _vit(image_size, classes, width=32, heads=2, blocks=1)


def _vit(image_size: int, classes: int, *, width: int, heads: int, blocks: int) -> keras.Model:
    layers = keras.layers
    images = keras.Input((image_size, image_size, 3))
    scaled = layers.Rescaling(1 / 127.5, offset=-1, dtype="float32")(images)
    x = Positions()(layers.Reshape((-1, width))(layers.Conv2D(width, PATCH, strides=PATCH)(scaled)))
    for _ in range(blocks):
        normal = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(heads, width // heads)(normal, normal)
        normal = layers.LayerNormalization()(x)
        x += layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(normal))
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(images, layers.Dense(classes, dtype="float32")(pooled))
