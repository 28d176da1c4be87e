"""Every function that is mapped over examples, eagerly and within `Dataset.map`."""

import gzip
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.images.examine import UsableImage
from pipeline.input import decode
from pipeline.input.decode import Stored
from pipeline.input.options import BatchOptions
from pipeline.records import tfrecord
from pipeline.records.format import ImageEncoder, RecordFormat

RAW = RecordFormat(pixels="raw")


@pytest.fixture(params=["eagerly", "mapped"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Calls a function with tensors of its arguments, directly or within a map."""

    def eagerly(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*map(tf.convert_to_tensor, arguments))

    def mapped(function: Callable[..., Any], *arguments: Any) -> Any:
        return next(iter(tf.data.Dataset.from_tensors(tuple(map(tf.convert_to_tensor, arguments))).map(function)))

    return eagerly if request.param == "eagerly" else mapped


def file_of(image: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, quality=95)
    return buffer.getvalue()


def record_of(encoded: bytes, form: str, image: Image.Image, records: RecordFormat) -> bytes:
    usable = UsableImage(encoded, form, image.height, image.width, (), "JPEG", None, None)
    return ImageEncoder(records, list("abcdef"), {}).encode(usable, ("f",), b"name") + encoded


def gradient(width: int, height: int) -> Image.Image:
    """Draw an image whose red grows to the right and green downwards, so that a color gives its position."""
    red, green = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([red, green, np.zeros_like(red)], -1).astype(np.uint8))


def seen(content: bytes, size: tuple[int, int], crop: list[int], form: RecordFormat, target: list[int]) -> Callable:
    def look(content: tf.Tensor, crop: tf.Tensor) -> tf.Tensor:
        width, height = (tf.constant(side) for side in size)
        return decode.decode_crop(Stored(content, height, width, tf.constant(0)), crop, form, tf.constant(target))

    return look


@pytest.mark.parametrize("form", [RecordFormat(), RecordFormat(feature_keys="plain", label_offset=1)])
def test_parse_returns_the_stored_image_and_its_label(run: Callable[..., Any], form: RecordFormat):
    image = gradient(30, 20)
    record = record_of(file_of(image, "PNG"), "PNG", image, form)
    stored = run(lambda each: decode.parse(each, form), record)
    assert (int(stored.height), int(stored.width), int(stored.label)) == (20, 30, 5)
    assert stored.content.numpy() == file_of(image, "PNG")
    assert int(run(lambda each: decode.parse_label(each, form), record)) == 5


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "RAW"])
@pytest.mark.parametrize("crop", [[0, 0, 200, 300], [10, 20, 64, 64], [40, 0, 160, 200], [199, 299, 1, 1]])
@pytest.mark.parametrize("target", [[64, 64], [50, 75]])
def test_a_crop_matches_the_same_crop_by_pillow(run: Callable[..., Any], kind: str, crop: list[int], target: list[int]):
    image = gradient(300, 200)
    content = image.tobytes() if kind == "RAW" else file_of(image, kind)
    form = RAW if kind == "RAW" else RecordFormat()
    pixels = run(seen(content, image.size, crop, form, target), content, crop).numpy()
    top, left, height, width = crop
    expected = image.resize(target[::-1], Image.Resampling.BILINEAR, (left, top, left + width, top + height))
    assert (pixels.shape, pixels.dtype) == ((*target, 3), np.uint8)
    assert np.abs(pixels.astype(int) - np.asarray(expected)).mean() < 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "RAW"])
def test_a_crop_of_the_target_size_is_not_resampled(run: Callable[..., Any], kind: str):
    image = Image.effect_noise((90, 80), 90).convert("RGB")
    content = image.tobytes() if kind == "RAW" else file_of(image, kind)
    form = RAW if kind == "RAW" else RecordFormat()
    crop = [16, 16, 64, 64]
    pixels = run(seen(content, image.size, crop, form, [64, 64]), content, crop).numpy()
    decoded = np.asarray(image if kind == "RAW" else Image.open(io.BytesIO(content)))[16:80, 16:80]
    assert (pixels == decoded).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "RAW"])
def test_a_large_image_is_averaged_and_not_subsampled(run: Callable[..., Any], kind: str):
    """Columns alternate between 0 and 255. Subsampling would make some columns black and some white."""
    stripes = Image.fromarray(np.tile(np.uint8([[0, 255]]), (640, 320)).repeat(3).reshape(640, 640, 3))
    content = stripes.tobytes() if kind == "RAW" else file_of(stripes, kind)
    form = RAW if kind == "RAW" else RecordFormat()
    pixels = run(seen(content, stripes.size, [0, 0, 640, 640], form, [32, 32]), content, [0, 0, 640, 640]).numpy()
    assert 110 < pixels[4:-4, 4:-4].mean() < 145
    assert pixels[4:-4, 4:-4].std() < 10


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "RAW"])
@pytest.mark.parametrize("side", [280, 224, 180, 160])
def test_a_slightly_smaller_image_is_averaged_as_by_pillow(run: Callable[..., Any], kind: str, side: int):
    """Without averaging, noise would keep its contrast: 52 of 255 instead of 28, made 300 to 160 pixels wide."""
    noise = Image.effect_noise((300, 300), 90).convert("RGB")
    content = noise.tobytes() if kind == "RAW" else file_of(noise, kind)
    form = RAW if kind == "RAW" else RecordFormat()
    whole = [0, 0, 300, 300]
    pixels = run(seen(content, noise.size, whole, form, [side, side]), content, whole).numpy().astype(int)
    decoded = noise if kind == "RAW" else Image.open(io.BytesIO(content))
    expected = np.asarray(decoded.resize((side, side), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(pixels - expected).mean() < 9
    assert pixels.std() < expected.std() * 1.3


@pytest.mark.parametrize(("width", "height"), [(1200, 16), (16, 1200), (300, 60)])
def test_a_side_that_gets_shorter_is_averaged_if_the_other_gets_longer(
    run: Callable[..., Any], width: int, height: int
):
    noise = Image.effect_noise((width, height), 90).convert("RGB")
    whole = [0, 0, height, width]
    pixels = run(seen(noise.tobytes(), noise.size, whole, RAW, [96, 96]), noise.tobytes(), whole).numpy().astype(int)
    expected = np.asarray(noise.resize((96, 96), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(pixels - expected).mean() < 9
    assert pixels.std() < expected.std() * 1.4


def test_jpegs_are_decoded_at_the_smallest_sufficient_scale(monkeypatch: pytest.MonkeyPatch):
    scales: list[int] = []
    monkeypatch.setattr(
        decode, "_at_scale", lambda _, crop, scale: (scales.append(scale), tf.zeros((9, 9, 3), tf.uint8))[1]
    )
    for side in (64, 127, 128, 256, 511, 512, 5120):
        decode.decode_jpeg_crop(tf.constant(b""), tf.constant([0, 0, side, side]), tf.constant([64, 64]))
    assert scales == [1, 1, 2, 4, 4, 8, 8]


@pytest.mark.parametrize("mode", ["random", "random_resized", "whole"])
@pytest.mark.parametrize("size", [(300, 200), (31, 500), (40, 36), (36, 40), (1, 1)])
def test_random_crops_stay_within_the_image_and_reach_every_edge(
    run: Callable[..., Any], mode: Any, size: tuple[int, int]
):
    width, height = size
    options = BatchOptions(image_size=32, batch_size=1, crop=mode, min_crop_area=0.3)
    stored = Stored(tf.constant(b""), tf.constant(height), tf.constant(width), tf.constant(0))
    numbers = np.random.default_rng(0).random((30, 5), np.float32)
    numbers[0], numbers[1] = 0, np.nextafter(np.float32(1), np.float32(0))

    def crops_of(each: tf.Tensor) -> tf.Tensor:
        crop = partial(decode.random_crop, stored, options)
        return tf.map_fn(crop, each, fn_output_signature=tf.int32)

    crops = run(crops_of, numbers).numpy()  # One map for all crops, because one for each takes ten times as long.
    tops, lefts, heights, widths = crops.T
    assert (crops[:, :2] >= 0).all()
    assert (crops[:, 2:] >= 1).all()
    assert ((tops + heights <= height) & (lefts + widths <= width)).all()
    assert (tops.min(), lefts.min()) == (0, 0)
    assert ((tops + heights).max(), (lefts + widths).max()) == (height, width)


def crop_of(width: int, height: int, mode: Any, image_size: int) -> list[int]:
    stored = Stored(tf.constant(b""), tf.constant(height), tf.constant(width), tf.constant(0))
    return decode.center_crop(stored, mode, image_size).numpy().tolist()


@pytest.mark.parametrize(
    ("size", "mode", "crop"),
    [
        ((341, 256), "random", [16, 58, 224, 224]),  # prepared for it: not resampled
        ((224, 224), "random", [0, 0, 224, 224]),
        ((280, 300), "random_resized", [38, 28, 224, 224]),
        ((800, 400), "random", [25, 225, 350, 350]),  # 7/8 of the shorter side
        ((100, 64), "random", [4, 22, 56, 56]),  # smaller than the model's input, so it is enlarged
        ((800, 400), "whole", [0, 0, 400, 800]),
    ],
)
def test_center_crop_takes_the_middle(size: tuple[int, int], mode: Any, crop: list[int]):
    assert crop_of(*size, mode, 224) == crop


@pytest.mark.parametrize(
    ("size", "mode", "crop", "cached"),
    [
        ((341, 256), "random", [0, 0, 256, 341], [256, 341]),
        ((800, 400), "random", [0, 0, 400, 800], [256, 512]),
        (
            (3000, 100),
            "random",
            [0, 1400, 100, 200],
            [255, 510],
        ),  # no more than twice as long as high; 7/8 of 100 is 88
        ((800, 400), "whole", [0, 0, 400, 800], [224, 224]),
    ],
)
def test_cached_crop_of_an_image(size: tuple[int, int], mode: Any, crop: list[int], cached: list[int]):
    width, height = size
    stored = Stored(tf.constant(b""), tf.constant(height), tf.constant(width), tf.constant(0))
    assert [each.numpy().tolist() for each in decode.cached_crop(stored, mode, 224)] == [crop, cached]


@pytest.mark.parametrize("mirrored", [True, False])
def test_an_image_is_mirrored_if_requested(run: Callable[..., Any], mirrored: bool):
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    result = run(decode.flipped, image, np.array(mirrored)).numpy()
    assert (result == (image[:, ::-1] if mirrored else image)).all()


@pytest.mark.parametrize("form", [RAW, RecordFormat(pixels="raw", feature_keys="plain", compression="gzip")])
def test_raw_pixels_are_read_unchanged(run: Callable[..., Any], tmp_path: Path, form: RecordFormat):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 48, 3), np.uint8)
    record = record_of(pixels.tobytes(), "RAW", Image.fromarray(pixels), form)
    path = tmp_path / f"some{form.ending}"
    path.write_bytes((gzip.compress if form.ending.endswith("gz") else bytes)(tfrecord.frame(record)))
    [read] = tf.data.TFRecordDataset(str(path), "GZIP" if form.compression == "gzip" else "")

    def look(serialized: tf.Tensor) -> tf.Tensor:
        return decode.decode_crop(
            decode.parse(serialized, form), tf.constant([0, 0, 64, 48]), form, tf.constant([64, 48])
        )

    assert (run(look, read).numpy() == pixels).all()
