"""The colors of a batch depend only on a seed, so that a resumed training sees the same. Mirrored images are exact."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.config.settings import settings_from
from pipeline.input.augmentation import flipped, jittered, seed_of_batch
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import load_result
from pipeline.training.job import run_job
from pipeline.training.state.checkpoint import Checkpoints, Position
from pipeline.training.step.steps import StepOptions, Steps
from tests.published import publish_case

Jitter = Callable[[tf.Tensor, float, tf.Tensor], tf.Tensor]
Flip = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def jittered_in_a_map(images: tf.Tensor, strength: float, seed: tf.Tensor) -> tf.Tensor:
    batches = tf.data.Dataset.from_tensors(images).map(lambda batch: jittered(batch, strength, seed))
    return next(iter(batches))


@pytest.fixture(params=[jittered, tf.function(jittered), jittered_in_a_map], ids=["eager", "function", "map"])
def jitter(request: pytest.FixtureRequest) -> Jitter:
    """The function in each way of calling it."""
    return request.param


def seed(number: int) -> tf.Tensor:
    return seed_of_batch(3, tf.constant(number))


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (4, 9, 7, 3), np.uint8)


@pytest.mark.long
@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float16])
def test_jitter_keeps_shape_and_range_and_returns_float32(jitter: Jitter, noise: np.ndarray, kind: type):
    seen = jitter(tf.constant(noise.astype(kind)), 1.0, seed(0)).numpy()
    assert (seen.shape, seen.dtype) == (noise.shape, np.float32)
    assert (seen.min(), seen.max()) == (0, 255)
    assert np.abs(seen - noise).mean() > 10


def test_strength_zero_changes_nothing(jitter: Jitter, noise: np.ndarray):
    assert np.array_equal(jitter(noise, 0.0, seed(0)), noise.astype(np.float32))


def test_jitter_depends_only_on_the_seed(jitter: Jitter, noise: np.ndarray):
    first = jitter(noise, 0.4, seed(0)).numpy()
    assert np.array_equal(jitter(noise, 0.4, seed(0)), first)
    assert np.allclose(jittered(noise, 0.4, seed(0)), first, atol=1e-3)  # in every way of calling it
    assert not np.allclose(jitter(noise, 0.4, seed(1)), first, atol=1)
    assert not np.allclose(jitter(noise, 0.4, seed_of_batch(4, tf.constant(0))), first, atol=1)


def test_every_image_is_changed_differently(noise: np.ndarray):
    same = np.repeat(noise[:1], 4, axis=0)
    seen = jittered(same, 0.4, seed(0)).numpy()
    assert all(np.abs(seen[0] - other).mean() > 1 for other in seen[1:])


def test_gray_stays_gray():
    gray = np.repeat(np.random.default_rng(0).integers(0, 256, (8, 9, 7, 1), np.uint8), 3, axis=-1)
    seen = jittered(gray, 1.0, seed(0)).numpy()
    assert np.ptp(seen, axis=-1).max() == 0


def test_brightness_changes_stay_within_the_strength():
    """In images of one gray level, contrast and saturation change nothing, so that only brightness varies."""
    factors = jittered(np.full((1000, 2, 2, 3), 100, np.uint8), 0.2, seed(0)).numpy()[:, 0, 0, 0] / 100
    assert 0.8 <= factors.min() < 0.81
    assert 1.19 < factors.max() <= 1.2001


def test_contrast_and_saturation_change_too():
    black, white, red = (np.full((50, 2, 1, 3), color, np.uint8) for color in (0, 100, (100, 0, 0)))
    stripes = jittered(np.concatenate([black, white], axis=2), 0.3, seed(0)).numpy()
    assert np.ptp((stripes[:, :, 1] - stripes[:, :, 0]) / stripes.mean(axis=2)) > 0.3
    reds = jittered(red, 0.3, seed(0)).numpy()[:, 0, 0]
    assert np.ptp((reds[:, 0] - reds[:, 1]) / reds.sum(axis=-1)) > 0.1


def test_seeds_of_colors_differ_from_seeds_of_crops():
    """The input draws its crops and flips with the seed of the settings and the number of the batch."""
    crops = {(3, number) for number in range(100)}
    assert crops.isdisjoint({tuple(seed(number).numpy().tolist()) for number in range(100)})


GO_ON = tf.constant(0.0)
"""No stop is requested."""


def trained(folder: Path, steps: int, color_jitter: float = 0.4, seed: int = 3) -> list[float]:
    """Return the losses of `steps` steps after the checkpoint in `folder`, and then the loss of an evaluation."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        logits = keras.layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(seed=0))
        scaled = keras.layers.Rescaling(1 / 255)
        inputs = keras.Input((9, 7, 3))
        model = keras.Model(inputs, logits(keras.layers.Flatten()(scaled(inputs))))
        optimizer = keras.optimizers.Adam(1e-3)
        checkpoints = Checkpoints(folder, model, optimizer)
    checkpoints.restore()
    compiled = Steps(strategy, model, optimizer, StepOptions(color_jitter=color_jitter, seed=seed))
    images = tf.constant(np.random.default_rng(0).integers(0, 256, (4, 9, 7, 3), np.uint8))
    batch = images, tf.constant([0, 1, 0, 1]), tf.ones(4)
    losses = [float(compiled.train(*batch, tf.zeros(4, tf.bool), GO_ON)[0]) for _ in range(steps)]
    assert compiled.train.experimental_get_tracing_count() == 1
    checkpoints.save(Position(step=int(optimizer.iterations)))
    checkpoints.wait()
    return [*losses, float(compiled.evaluate(*batch, GO_ON)[0])]


@pytest.mark.long
def test_a_resumed_training_sees_the_same_colors(tmp_path: Path):
    whole = trained(tmp_path / "whole", 5)
    first, second = trained(tmp_path / "parts", 2), trained(tmp_path / "parts", 3)
    assert np.allclose(first[:2] + second, whole, rtol=1e-6)
    assert not np.allclose(trained(tmp_path / "other", 1, seed=4)[0], whole[0], rtol=1e-4)
    assert not np.allclose(trained(tmp_path / "plain", 1, color_jitter=0.0)[0], whole[0], rtol=1e-4)


def test_evaluated_images_keep_their_colors(tmp_path: Path):
    assert trained(tmp_path / "colors", 1, color_jitter=1e-9)[1] == trained(tmp_path / "plain", 1, color_jitter=0.0)[1]


def loss_of_a_job(workspace: Path, dataset: Path, color_jitter: float) -> float:
    values = {"workspace": str(workspace), "image_size": 32, "batch_size": 4, "epochs": 1}
    run = prepare_run(settings_from({**values, "color_jitter": color_jitter}), dataset, "some run")
    run_job(run, lambda: False)
    result = load_result(run.folder)
    assert result is not None
    return result["metrics"]["loss"]


@pytest.mark.long
def test_a_job_trains_with_color_jitter(tmp_path: Path):
    dataset, _ = publish_case("keep", tmp_path)
    plain, colored = (loss_of_a_job(tmp_path, dataset, strength) for strength in (0.0, 1.0))
    assert abs(colored / plain - 1) > 0.01


# --- mirrored images -------------------------------------------------------------------------------------------------

on_gpu = partial(flipped, on_gpu=True)
"""The operations for a GPU, which a CPU has, too."""


def flipped_in_a_map(images: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    return next(iter(tf.data.Dataset.from_tensors((images, mirrored)).map(flipped)))


@pytest.fixture(
    params=[
        flipped,
        tf.function(flipped),
        tf.function(flipped, jit_compile=True),
        flipped_in_a_map,
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
