"""The undocumented parts and the global setting of Pillow that this project uses are still as they were in 13.0.0."""

import io

import numpy as np
import pytest
from PIL import Image

from pipeline.images.examine import Rules, examine
from pipeline.images.pillow_internals import (
    component_sampling,
    icc_profile,
    read_white_is_zero,
    tiff_tags,
    without_pixel_limit,
)
from pipeline.images.rejection import Rejection
from tests.images.drawn import encoded, picture, usable
from tests.images.icc import rgb_profile
from tests.images.tiff import tiff

PROFILE = rgb_profile()


def opened(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file))


# --- the limit of pixels ----------------------------------------------------------------------------------------------

LIMIT = 1_000_000


def test_the_limit_is_read_from_a_global_variable_when_an_image_is_opened(monkeypatch: pytest.MonkeyPatch):
    file = encoded(picture(), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(Image.DecompressionBombError):
        opened(file)
    with without_pixel_limit():
        opened(file).load()
    with pytest.raises(Image.DecompressionBombError):
        opened(file)


def test_the_limit_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", LIMIT)
    with pytest.raises(KeyError), without_pixel_limit():
        raise KeyError
    assert Image.MAX_IMAGE_PIXELS == LIMIT


def test_examining_an_image_does_not_change_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", LIMIT)
    usable(encoded(picture("I;16"), "PNG"), Rules())
    assert isinstance(examine(b"no image", Rules()), Rejection)
    assert Image.MAX_IMAGE_PIXELS == LIMIT


# --- attributes and values of single formats --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (encoded(picture(), "JPEG", subsampling=0), [(1, 1), (1, 1), (1, 1)]),
        (encoded(picture(), "JPEG", subsampling=1), [(2, 1), (1, 1), (1, 1)]),
        (encoded(picture(), "JPEG", subsampling=2), [(2, 2), (1, 1), (1, 1)]),
        (encoded(picture("L"), "JPEG"), [(1, 1)]),
        (encoded(picture(), "PNG"), []),
        (encoded(picture(), "WEBP"), []),
        (encoded(picture(), "AVIF"), []),
    ],
    ids=["4:4:4", "4:2:2", "4:2:0", "gray", "png", "webp", "avif"],
)
def test_a_jpeg_has_the_sampling_of_its_components(file: bytes, expected: list[tuple[int, int]]):
    assert component_sampling(opened(file)) == expected


def without_a_segment(file: bytes) -> bytes:
    """Mark the only segment of a profile as the first of two."""
    return file.replace(b"ICC_PROFILE\0\1\1", b"ICC_PROFILE\0\1\2")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (encoded(picture(), "JPEG", icc_profile=PROFILE), PROFILE),
        (encoded(picture(), "JPEG"), b""),
        (without_a_segment(encoded(picture(), "JPEG", icc_profile=PROFILE)), None),
        (encoded(picture(), "PNG", icc_profile=PROFILE), PROFILE),
        (encoded(picture(), "PNG"), b""),
        (tiff(np.zeros((4, 4), np.uint8), 1, profile=PROFILE), PROFILE),
        (tiff(np.zeros((4, 4), np.uint8), 1), b""),
    ],
    ids=["jpeg", "jpeg, none", "jpeg, part missing", "png", "png, none", "tiff", "tiff, none"],
)
def test_a_broken_profile_is_none_and_no_profile_is_empty(file: bytes, expected: bytes | None):
    assert icc_profile(opened(file)) == expected


def test_a_tiff_has_its_tags_by_number_and_other_formats_have_none():
    tags = tiff_tags(opened(tiff(np.zeros((4, 6), np.uint16), 1, sample_format=2)))
    assert (tags[256], tags[257], tags[258], tags[262], tags[339]) == (6, 4, (16,), 1, (2,))
    assert tiff_tags(opened(encoded(picture(), "PNG"))) == {}


def test_gray_of_16_bits_in_which_0_is_white_is_opened_and_not_inverted():
    """In big-endian order, Pillow opens it only with our entry. In the other order, it does not invert it, either."""
    read_white_is_zero()
    levels = np.arange(0, 6000, 250, np.uint16).reshape(4, 6)
    for order in "<>":
        assert (np.asarray(opened(tiff(levels, 0, order))) == levels).all()
