"""Mirroring of the images in a batch."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from pipeline.input.augmentation import flipped

Flip = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


on_gpu = partial(flipped, on_gpu=True)
"""The operations for a GPU, which a CPU has, too."""


def in_a_map(images: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    return next(iter(tf.data.Dataset.from_tensors((images, mirrored)).map(flipped)))


@pytest.fixture(
    params=[
        flipped,
        tf.function(flipped),
        tf.function(flipped, jit_compile=True),
        in_a_map,
        on_gpu,
        tf.function(on_gpu, jit_compile=True),
    ],
    ids=["eager", "function", "xla", "map", "gpu", "gpu-xla"],
)
def flip(request: pytest.FixtureRequest) -> Flip:
    """The function in each way of calling it."""
    return request.param


@pytest.mark.long
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(4, 3, 5, 3), (4, 1, 6, 3), (4, 5, 1, 3), (4, 2, 4, 1)])
@pytest.mark.parametrize("mirrored", [(True, False, False, True), (True,) * 4, (False,) * 4])
def test_only_the_marked_images_are_mirrored(
    flip: Flip, kind: type, shape: tuple[int, ...], mirrored: tuple[bool, ...]
):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(kind)
    expected = [image[:, ::-1] if is_mirrored else image for image, is_mirrored in zip(images, mirrored, strict=True)]
    found = flip(tf.constant(images), tf.constant(mirrored))
    assert (found.shape, found.dtype) == (shape, kind)
    assert np.array_equal(found.numpy(), np.stack(expected))
