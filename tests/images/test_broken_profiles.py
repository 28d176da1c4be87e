"""ICC profiles that make Pillow refuse a file, and color profiles on gray images. No image is lost or changed."""

import io
import zlib

import imagecodecs
import numpy as np
import pytest
from PIL import Image

from pipeline.images.examine import Rules
from pipeline.images.header import read_header, without_profile
from tests.images.drawn import encoded, scene, usable
from tests.images.icc import ADOBE_RGB, DISPLAY_P3, SRGB, in_srgb, rgb_profile

both_checks = pytest.mark.parametrize("rules", [Rules(), Rules(check="header")], ids=["strict", "header"])
IMAGE = scene(36, 20, seed=3)
PIXELS = np.asarray(IMAGE)
PNG = encoded(IMAGE, "PNG")
JPEG = encoded(IMAGE, "JPEG", quality=95, subsampling=0)
ADOBE = rgb_profile(ADOBE_RGB, 2.2)


def png_with(data: bytes, kind: bytes = b"iCCP") -> bytes:
    chunk = len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
    return PNG[:33] + chunk + PNG[33:]


def jpeg_with(*parts: bytes) -> bytes:
    segments = (b"\xff\xe2" + (14 + len(part)).to_bytes(2, "big") + b"ICC_PROFILE\0" + part for part in parts)
    return JPEG[:2] + b"".join(segments) + JPEG[2:]


BROKEN = {
    "png, unknown method": png_with(b"name\0\1" + zlib.compress(ADOBE)),
    "png, no data": png_with(b"name\0\0"),
    "png, nothing": png_with(b""),
    "png, no name": png_with(b"name"),
    "png, not deflated": png_with(b"name\0\0words"),
    "png, cut": png_with(b"name\0\0" + zlib.compress(ADOBE)[:-20]),
    "png, of 6 MB": png_with(b"name\0\0" + zlib.compress(ADOBE + bytes(6 << 20))),
    "jpeg, without a number": jpeg_with(b""),
    "jpeg, without a count": jpeg_with(b"\1"),
    "jpeg, 300 segments": jpeg_with(*(bytes((number % 256, 44)) for number in range(300))),
}


@both_checks
@pytest.mark.parametrize("name", BROKEN)
def test_an_image_with_a_broken_profile_is_usable(name: str, rules: Rules):
    found = usable(BROKEN[name], rules)
    assert found.profile == "ignored"
    if name.startswith("png"):
        assert (imagecodecs.png_decode(found.encoded) == PIXELS).all()
    else:
        off = imagecodecs.jpeg8_decode(found.encoded).astype(int) - imagecodecs.jpeg8_decode(JPEG)
        assert np.abs(off).mean() < 2


@both_checks
def test_a_long_profile_of_a_png_is_used(rules: Rules):
    """Pillow refuses a profile of more than 1 MB."""
    found = usable(png_with(b"name\0\0" + zlib.compress(ADOBE + bytes(2 << 20))), rules)
    assert found.profile == "converted"
    assert np.abs(imagecodecs.png_decode(found.encoded).astype(int) - in_srgb(PIXELS, ADOBE_RGB, 2.2)).max() <= 1


@pytest.mark.parametrize("image", [png_with(b"name\0\0" + zlib.compress(ADOBE)), jpeg_with(b"\1\1" + ADOBE)])
def test_without_profile_removes_only_the_profile(image: bytes):
    header = read_header(image)
    assert header is not None
    assert header.profile == ADOBE
    with Image.open(io.BytesIO(image)) as before, Image.open(io.BytesIO(without_profile(image))) as after:
        assert before.info.get("icc_profile") == ADOBE
        assert after.info.get("icc_profile") is None
        assert before.tobytes() == after.tobytes()


def test_without_profile_removes_all_profiles_of_a_png_and_no_data():
    twice = png_with(b"name\0\0" + zlib.compress(ADOBE))
    twice = twice[:33] + twice[33 : 33 + len(twice) - len(PNG)] * 2 + PNG[33:]
    assert without_profile(twice) == PNG
    assert without_profile(PNG) == PNG


@both_checks
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("colorants", [SRGB, DISPLAY_P3])
def test_gray_with_a_color_profile_keeps_its_bytes_if_the_curves_are_srgb(
    form: str, colorants: tuple[tuple[float, ...], ...], rules: Rules
):
    """The primaries do not affect gray."""
    image = encoded(IMAGE.convert("L"), form, icc_profile=rgb_profile(colorants))
    assert usable(image, rules).encoded == image


@both_checks
def test_color_with_the_curves_of_srgb_and_other_primaries_is_converted(rules: Rules):
    assert usable(encoded(IMAGE, "PNG", icc_profile=rgb_profile(DISPLAY_P3)), rules).profile == "converted"


@both_checks
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_avif_is_turned_once(orientation: int, rules: Rules):
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth = scene(9, 5, seed=5).resize((36, 20), Image.Resampling.BICUBIC)
    image = encoded(smooth, "AVIF", quality=100, subsampling="4:4:4", exif=exif)
    stored = imagecodecs.avif_decode(image)[..., :3]
    expected = stored.swapaxes(0, 1) if orientation > 4 else stored
    expected = expected[:, ::-1] if orientation in (2, 3, 6, 7) else expected
    expected = expected[::-1] if orientation in (3, 4, 7, 8) else expected
    found = usable(image, rules)
    pixels = imagecodecs.jpeg8_decode(found.encoded)
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).mean() < 4
