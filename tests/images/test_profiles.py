"""ICC profiles with the numbers of the standards: which keep an image's bytes, and how others are converted."""

import struct
import zlib
from collections.abc import Sequence

import imagecodecs
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pipeline.images.examine import Rules, UsableImage
from tests.images.drawn import encoded, picture, scene, usable
from tests.images.icc import (
    ADOBE_RGB,
    DISPLAY_P3,
    SRGB,
    SRGB_CURVE,
    cmyk_profile,
    from_linear,
    gray_profile,
    in_srgb,
    lab_in_srgb,
    rgb_profile,
)
from tests.images.tiff import tiff

STRICT, HEADER = Rules(), Rules(check="header")
both_checks = pytest.mark.parametrize("rules", [STRICT, HEADER], ids=["strict", "header"])
IMAGE = scene(9, 5, seed=5).resize((36, 20), Image.Resampling.BICUBIC)
PIXELS = np.asarray(IMAGE)
FORMATS = {
    "JPEG": {"quality": 100, "subsampling": 0},
    "PNG": {},
    "WEBP": {"lossless": True},
    "TIFF": {},
    "AVIF": {"quality": 100, "subsampling": "4:4:4"},
}


def stored(image: UsableImage) -> NDArray[np.uint8]:
    """Return the RGB pixels, read by a decoder other than Pillow."""
    pixels = np.asarray((imagecodecs.png_decode if image.format == "PNG" else imagecodecs.jpeg8_decode)(image.encoded))
    return pixels if pixels.ndim == 3 else np.stack([pixels] * 3, -1)


def has_profile(image: UsableImage) -> bool:
    return b"ICC_PROFILE" in image.encoded or b"iCCP" in image.encoded


@both_checks
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("colorants", "gamma"), [(ADOBE_RGB, 2.2), (DISPLAY_P3, 2.2)], ids=["Adobe RGB", "P3"])
def test_colors_are_converted_to_srgb(form: str, colorants: Sequence[Sequence[float]], gamma: float, rules: Rules):
    profile = rgb_profile(colorants, gamma, "sRGB IEC61966-2.1")  # The name must not matter.
    found = usable(encoded(IMAGE, form, icc_profile=profile, **FORMATS[form]), rules)
    off = np.abs(stored(found).astype(int) - in_srgb(PIXELS, colorants, gamma))
    assert off.mean() < 2.5
    assert found.format != "PNG" or off.max() <= 1
    assert np.abs(stored(found).astype(int) - PIXELS).mean() > 5
    assert found.profile == "converted"
    assert not has_profile(found)


@both_checks
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_an_image_in_srgb_keeps_its_bytes_whatever_the_name_of_its_profile(form: str, rules: Rules):
    image = encoded(IMAGE, form, icc_profile=rgb_profile(name="Adobe RGB (1998)"))
    found = usable(image, rules)
    assert (found.encoded, found.profile) == (image, "")


@pytest.mark.parametrize("form", ["WEBP", "TIFF"])
def test_srgb_pixels_of_another_format_are_stored_unchanged_without_a_profile(form: str):
    found = usable(encoded(IMAGE, form, icc_profile=rgb_profile(), **FORMATS[form]), STRICT)
    assert (stored(found) == PIXELS).all()
    assert not has_profile(found)
    assert found.profile == ""


@both_checks
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("profile", [gray_profile(2.2), gray_profile(SRGB_CURVE), rgb_profile()])
def test_gray_with_a_common_tone_curve_keeps_its_bytes(form: str, profile: bytes, rules: Rules):
    image = encoded(IMAGE.convert("L"), form, icc_profile=profile)
    assert usable(image, rules).encoded == image


@both_checks
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("gamma", [1.0, 1.8])
def test_gray_with_another_tone_curve_is_converted(form: str, gamma: float, rules: Rules):
    gray = np.asarray(IMAGE.convert("L"))
    found = usable(encoded(IMAGE.convert("L"), form, icc_profile=gray_profile(gamma), **FORMATS[form]), rules)
    expected = from_linear((gray / 255) ** gamma) * 255
    assert np.abs(stored(found) - expected[..., None]).max() <= (1 if form == "PNG" else 6)
    assert (found.profile, has_profile(found)) == ("converted", False)


def test_gray_with_a_profile_for_color_is_converted_as_gray():
    gray = np.asarray(IMAGE.convert("L"))
    found = usable(encoded(IMAGE.convert("L"), "PNG", icc_profile=rgb_profile(SRGB, 1.8)), STRICT)
    expected = from_linear((gray / 255) ** 1.8) * 255
    assert np.abs(stored(found) - expected[..., None]).max() <= 1


@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "1"])
def test_palettes_and_transparency_are_converted_too(mode: str):
    profile = rgb_profile(ADOBE_RGB, 2.2)
    image = IMAGE.convert("L").convert(mode) if mode in ("LA", "1") else IMAGE.convert(mode)
    found = usable(encoded(image, "PNG", icc_profile=profile), STRICT)
    expected = in_srgb(np.asarray(image.convert("RGB")), ADOBE_RGB, 2.2)
    assert np.abs(stored(found).astype(int) - expected).max() <= 1


def test_16_bits_are_converted_too():
    gray = np.linspace(0, 65535, 720).reshape(20, 36).astype(np.uint16)
    found = usable(tiff(gray, 1, profile=gray_profile(1.8)), STRICT)
    assert np.abs(stored(found)[..., 0] - from_linear((gray / 65535) ** 1.8) * 255).max() <= 2


def test_cmyk_is_converted_by_its_profile():
    cyan = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    found = usable(encoded(cyan, "JPEG", quality=100, icc_profile=cmyk_profile(cyan=(60, 40, 20))), STRICT)
    assert np.abs(stored(found)[8, 8] - lab_in_srgb(60, 40, 20)).max() <= 4
    assert found.profile == "converted"
    plain = usable(encoded(cyan, "JPEG", quality=100), STRICT)
    assert np.abs(stored(plain)[8, 8].astype(int) - [0, 255, 255]).max() <= 4


def with_parts(image: bytes, parts: Sequence[bytes]) -> bytes:
    """Return a JPEG with these segments of a profile."""
    segments = [b"\xff\xe2" + (2 + 12 + len(part)).to_bytes(2, "big") + b"ICC_PROFILE\0" + part for part in parts]
    return image[:2] + b"".join(segments) + image[2:]


@both_checks
def test_the_segments_of_a_profile_are_joined_by_their_numbers(rules: Rules):
    image, profile = encoded(IMAGE, "JPEG", quality=100, subsampling=0), rgb_profile(ADOBE_RGB, 2.2)
    parts = [
        bytes((number + 1, 3)) + profile[number * 200 : number * 200 + 200 if number < 2 else None]
        for number in range(3)
    ]
    found = usable(with_parts(image, [parts[2], parts[0], parts[1]]), rules)
    assert found.profile == "converted"
    assert np.abs(stored(found).astype(int) - in_srgb(PIXELS, ADOBE_RGB, 2.2)).mean() < 2.5


BAD = {
    "words": b"profile",
    "cut": rgb_profile(ADOBE_RGB, 2.2)[:300],
    "for gray": gray_profile(1.8),
    "for ink": cmyk_profile(),
}


@both_checks
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("profile", BAD.values(), ids=BAD)
def test_an_unusable_profile_is_ignored_and_reported(form: str, profile: bytes, rules: Rules):
    found = usable(encoded(IMAGE, form, icc_profile=profile, **FORMATS[form]), rules)
    assert (found.profile, has_profile(found)) == ("ignored", False)
    assert np.abs(stored(found).astype(int) - PIXELS).mean() < 2


@both_checks
def test_a_profile_with_a_missing_segment_is_ignored(rules: Rules):
    image = with_parts(encoded(IMAGE, "JPEG", quality=100, subsampling=0), [b"\x01\x02" + rgb_profile(ADOBE_RGB, 2.2)])
    found = usable(image, rules)
    assert found.profile == "ignored"
    assert np.abs(stored(found).astype(int) - PIXELS).mean() < 2


@both_checks
def test_a_gamma_chunk_is_ignored(rules: Rules):
    image = encoded(picture(), "PNG")
    chunk = b"gAMA" + struct.pack(">I", 100_000)
    image = image[:33] + struct.pack(">I", 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + image[33:]
    assert usable(image, rules).encoded == image
