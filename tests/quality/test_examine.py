import io
import warnings

import numpy as np
import pytest
from PIL import Image

from pipeline.quality.examine import Rejection, UsableImage, examine
from tests.conftest import jpeg

MAX_PIXELS = 1_000_000


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def picture(mode: str = "RGB") -> Image.Image:
    """8 high and 12 wide, red on the left and blue on the right."""
    pixels = np.zeros((8, 12, 3), np.uint8)
    pixels[:, :6, 0] = pixels[:, 6:, 2] = 200
    return Image.fromarray(pixels).convert(mode)


def pixels_of(usable: UsableImage) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(usable.encoded)))


def sixteen_bit() -> bytes:
    return encoded(Image.fromarray(np.full((8, 12), 40_000, np.uint16)), "PNG")


def exif_rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: upright is 90 degrees clockwise
    return encoded(picture(), "JPEG", exif=exif, quality=95)


def animated() -> bytes:
    return encoded(picture(), "GIF", save_all=True, append_images=[Image.new("RGB", (12, 8))])


@pytest.mark.parametrize("image", [jpeg(1), encoded(picture(), "PNG"), jpeg(1) + b"trailing bytes"])
def test_what_needs_no_change_keeps_its_bytes(image: bytes):
    usable = examine(image, MAX_PIXELS)
    assert isinstance(usable, UsableImage)
    assert usable.encoded == image


@pytest.mark.parametrize(
    ("image", "form"),
    [
        (encoded(picture("L"), "JPEG"), "JPEG"),
        (encoded(picture("CMYK"), "JPEG"), "JPEG"),
        (encoded(picture("P"), "PNG"), "PNG"),
        (encoded(picture("RGBA"), "PNG"), "PNG"),
        (encoded(picture("1"), "PNG"), "PNG"),
        (sixteen_bit(), "PNG"),
        (encoded(picture(), "BMP"), "PNG"),
        (encoded(picture(), "WEBP", lossless=True), "JPEG"),
        (encoded(picture(), "TIFF"), "PNG"),
        (animated(), "PNG"),
    ],
    ids=["grey", "cmyk", "palette", "alpha", "bilevel", "16-bit", "bmp", "webp", "tiff", "gif"],
)
def test_odd_images_become_8_bit_rgb_that_tensorflow_decodes(image: bytes, form: str):
    import tensorflow as tf

    usable = examine(image, MAX_PIXELS)
    assert isinstance(usable, UsableImage)
    assert (usable.format, usable.height, usable.width) == (form, 8, 12)
    assert Image.open(io.BytesIO(usable.encoded)).mode == "RGB"
    assert tf.io.decode_image(usable.encoded, expand_animations=False).shape == (8, 12, 3)


def test_a_rotated_photograph_is_turned_upright():
    usable = examine(exif_rotated(), MAX_PIXELS)
    assert isinstance(usable, UsableImage)
    assert (usable.height, usable.width) == (12, 8)
    top, bottom = pixels_of(usable)[1, 4], pixels_of(usable)[-2, 4]
    assert top[0] > 150 > 50 > top[2]  # what was left is now on top
    assert bottom[2] > 150 > 50 > bottom[0]


def test_16_bits_are_scaled_and_not_clipped():
    usable = examine(sixteen_bit(), MAX_PIXELS)
    assert isinstance(usable, UsableImage)
    assert pixels_of(usable)[0, 0].tolist() == [155, 155, 155]  # 40,000 of 65,535


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_of_32_bits_are_rejected_and_not_made_black(mode: str):
    rejection = examine(encoded(Image.new(mode, (4, 4), 1), "TIFF"), MAX_PIXELS)
    assert isinstance(rejection, Rejection)
    assert "no known range" in rejection.reason


def test_odd_exif_stops_nothing():
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "words"
    image = encoded(picture(), "JPEG", exif=exif).replace(b"words", b"\xff\xfe\xfd\xfc\xfb")
    assert isinstance(examine(image, MAX_PIXELS), UsableImage)


def test_what_is_transparent_becomes_white():
    usable = examine(encoded(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG"), MAX_PIXELS)
    assert isinstance(usable, UsableImage)
    assert pixels_of(usable)[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (b"", "the file is empty"),
        (b"<html>no image</html>", "not an image: it starts with b'<html>no'"),
        (bytes(1000), "not an image"),
        (jpeg(1, (300, 200))[:-400], "cannot be decoded"),
        (jpeg(1)[:30], "cannot be decoded|not an image"),
        (encoded(picture(), "PNG")[:-30], "cannot be decoded"),
        (b"\xff\xd8\xff\xd9", "not an image"),
    ],
    ids=["empty", "html", "zeros", "half", "header", "png", "markers"],
)
def test_broken_images_are_rejected_in_words(image: bytes, words: str):
    import re

    rejection = examine(image, MAX_PIXELS)
    assert isinstance(rejection, Rejection)
    assert re.search(words, rejection.reason)
    assert rejection.advice


@pytest.mark.parametrize(
    ("size", "max_pixels", "usable"),
    [((20, 10), 200, True), ((20, 10), 199, False), ((15_000, 15_000), 50_000_000, False)],
)
def test_too_many_pixels_are_rejected_from_the_header(size: tuple[int, int], max_pixels: int, usable: bool):
    image = encoded(Image.new("1", size), "PNG")
    with warnings.catch_warnings(action="error"):
        found = examine(image, max_pixels)
    assert isinstance(found, UsableImage) == usable
    if isinstance(found, Rejection):
        assert found.reason.startswith(f"{size[0]} x {size[1]} pixels are more than")
