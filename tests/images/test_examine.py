import re
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from pipeline.images.examine import Examiner, Rules, UsableImage, examine, is_misnamed
from pipeline.images.rejection import Rejection
from pipeline.sources import Box
from tests.conftest import jpeg
from tests.images.drawn import animated, decoded, encoded, picture, rejection, scene, turned, usable
from tests.images.icc import ADOBE_RGB, rgb_profile

STRICT, HEADER = Rules(), Rules(check="header")
both_checks = pytest.mark.parametrize("rules", [STRICT, HEADER], ids=["strict", "header"])


def sixteen_bit() -> bytes:
    return encoded(Image.fromarray(np.full((8, 12), 40_000, np.uint16)), "PNG")


def broken_scan() -> bytes:
    """Return a JPEG with an intact header and end, and with damage in between that no decoder accepts."""
    image = bytearray(encoded(scene(64, 48), "JPEG"))
    middle = len(image) * 3 // 4
    image[middle : middle + 200] = b"\xff\xc5" * 100
    return bytes(image)


@both_checks
@pytest.mark.parametrize(
    "image",
    [
        jpeg(1),
        encoded(picture(), "PNG"),
        jpeg(1) + b"trailing bytes",
        encoded(picture("L"), "JPEG"),
        encoded(picture("L"), "JPEG", progressive=True),
        encoded(picture("L"), "PNG"),
    ],
)
def test_an_image_that_needs_no_change_keeps_its_bytes(image: bytes, rules: Rules):
    assert usable(image, rules).encoded == image


@both_checks
@pytest.mark.parametrize(
    ("image", "form", "found"),
    [
        (encoded(picture("CMYK"), "JPEG"), "JPEG", "JPEG"),
        (encoded(picture("P"), "PNG"), "PNG", "PNG"),
        (encoded(picture("RGBA"), "PNG"), "PNG", "PNG"),
        (encoded(picture("1"), "PNG"), "PNG", "PNG"),
        (encoded(picture(), "PNG", transparency=(200, 0, 0)), "PNG", "PNG"),
        (sixteen_bit(), "PNG", "PNG"),
        (encoded(picture(), "BMP"), "PNG", "BMP"),
        (encoded(picture(), "WEBP"), "JPEG", "WEBP"),
        (encoded(picture(), "WEBP", lossless=True), "PNG", "WEBP"),
        (encoded(picture(), "AVIF"), "JPEG", "AVIF"),
        (encoded(picture(), "TIFF"), "PNG", "TIFF"),
        (animated(picture(), "GIF"), "PNG", "GIF"),
        (animated(picture(), "PNG"), "PNG", "PNG"),
    ],
    ids=[
        *("cmyk", "palette", "alpha", "bilevel", "transparent color", "16-bit", "bmp", "webp", "lossless webp"),
        *("avif", "tiff", "gif", "animated png"),
    ],
)
def test_other_formats_and_modes_become_8_bit_rgb_that_tensorflow_decodes(
    image: bytes, form: str, found: str, rules: Rules
):
    import tensorflow as tf

    odd = usable(image, rules)
    assert (odd.format, odd.height, odd.width, odd.source_format) == (form, 8, 12, found)
    assert odd.encoded != image
    assert decoded(odd).shape == (8, 12, 3)
    assert tf.io.decode_image(odd.encoded, expand_animations=False).shape == (8, 12, 3)


@both_checks
def test_an_mpo_keeps_its_bytes_and_counts_as_jpeg(rules: Rules):
    image = animated(picture(), "MPO")
    found = usable(image, rules)
    assert (found.encoded, found.format, found.source_format) == (image, "JPEG", "JPEG")


@both_checks
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_rotated_photograph_is_turned_upright(form: str, rules: Rules):
    upright = usable(turned(picture(), 6, form), rules)
    assert (upright.height, upright.width) == (12, 8)
    top, bottom = decoded(upright)[1, 4], decoded(upright)[-2, 4]
    assert top[0] > 150 > 50 > top[2]  # The left side is now on top.
    assert bottom[2] > 150 > 50 > bottom[0]


@both_checks
def test_an_upside_down_photograph_is_turned_upright(rules: Rules):
    upright = usable(turned(picture(), 3), rules)
    assert (upright.height, upright.width) == (8, 12)
    left, right = decoded(upright)[4, 1], decoded(upright)[4, -2]
    assert left[2] > 150 > 50 > left[0]
    assert right[0] > 150 > 50 > right[2]


def test_16_bits_are_scaled_and_not_clipped():
    assert decoded(usable(sixteen_bit(), STRICT))[0, 0].tolist() == [156, 156, 156]  # 40,000 of 65,535


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_of_32_bits_are_rejected_and_not_made_black(mode: str):
    assert "no known range" in rejection(encoded(Image.new(mode, (4, 4), 1), "TIFF"), STRICT).reason


@both_checks
def test_exif_with_invalid_text_is_accepted(rules: Rules):
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "words"
    usable(encoded(picture(), "JPEG", exif=exif).replace(b"words", b"\xff\xfe\xfd\xfc\xfb"), rules)


def test_transparent_pixels_become_white():
    clear = usable(encoded(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG"), STRICT)
    assert decoded(clear)[0, 0].tolist() == [255, 255, 255]


@both_checks
@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"", "the file is empty"),
        (b"<html>no image</html>", "not an image: it starts with b'<html>no'"),
        (bytes(1000), "not an image"),
        (jpeg(1, (300, 200))[:-400], "cannot be decoded|damaged JPEG: Premature end"),
        (jpeg(1)[:30], "cannot be decoded|not an image|damaged JPEG"),
        (encoded(picture(), "PNG")[:-30], "cannot be decoded"),
        (b"\xff\xd8\xff\xd9", "damaged JPEG"),
    ],
    ids=["empty", "html", "zeros", "half", "header", "png", "markers"],
)
def test_broken_images_are_rejected_with_a_reason_and_advice(image: bytes, message: str, rules: Rules):
    found = rejection(image, rules)
    assert re.search(message, found.reason)
    assert found.advice


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (jpeg(1)[:3] + bytes(100), "damaged JPEG"),
        (encoded(picture(), "PNG")[:8] + bytes(100), "damaged PNG"),
        (bytes(100), ".raf images are not supported"),
    ],
)
def test_the_content_of_a_broken_file_says_more_than_its_suffix(image: bytes, reason: str):
    found = examine(image, STRICT, key="a/1.raf")
    assert isinstance(found, Rejection)
    assert found.reason.startswith(reason)


def test_damage_in_the_body_is_a_reason_for_rejection_unless_only_the_header_is_checked():
    assert "cannot be decoded" in rejection(broken_scan(), STRICT).reason
    trusted = usable(broken_scan(), HEADER)
    assert (trusted.encoded, trusted.height, trusted.width) == (broken_scan(), 48, 64)


@both_checks
@pytest.mark.parametrize(
    ("size", "max_pixels", "accepted"),
    [((20, 10), 200, True), ((20, 10), 199, False), ((15_000, 15_000), 50_000_000, False)],
)
@pytest.mark.parametrize("mode", ["1", "RGB"])
def test_too_many_pixels_are_rejected_from_the_header(
    size: tuple[int, int], max_pixels: int, accepted: bool, mode: str, rules: Rules
):
    image = encoded(Image.new("1", size), "PNG") if mode == "1" else png_header(*size)
    if not accepted:
        image = image[:60]  # its pixels cannot be decoded
    with warnings.catch_warnings(action="error"):
        found = examine(image, Rules(check=rules.check, max_pixels=max_pixels))
    if not accepted:
        assert rejection(image, Rules(check=rules.check, max_pixels=max_pixels)) == found
        assert found.reason.startswith(f"{size[0]} x {size[1]} pixels are above the limit of")
    else:
        assert isinstance(found, UsableImage)


def png_header(width: int, height: int) -> bytes:
    """Return an 8-bit RGB PNG with the data of at most 10 rows of 20 pixels."""
    data = zlib.compress(bytes(min(height, 10) * (1 + 3 * min(width, 20))))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", data), (b"IEND", b""))
    framed = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@pytest.mark.parametrize(
    ("key", "found", "misnamed"),
    [
        ("cats/a.jpg", "JPEG", False),
        ("cats/a.JPEG", "JPEG", False),
        ("cats/a.jpg", "MPO", False),
        ("cats/a.jpg", "PNG", True),
        ("cats/a.JPG", "PNG", True),
        ("cats/a.png", "JPEG", True),
        ("cats/a.tif", "TIFF", False),
        ("cats/a.webp", "WEBP", False),
        ("cats/a.avif", "AVIF", False),
        ("cats/a.avif", "JPEG", True),
        ("cats/a.gif", "WEBP", True),
        ("cats.png/a", "JPEG", False),
        ("cats/a.dat", "JPEG", False),
        ("cats/a.heic", "HEIF", False),
        ("cats/a.HEIC", "JPEG", True),
        ("cats/a.jpg", "HEIF", True),
        ("cats/a.jp2", "PNG", True),
    ],
)
def test_is_misnamed_compares_the_suffix_with_the_format(key: str, found: str, misnamed: bool):
    assert is_misnamed(key, found) == misnamed


def test_cached_headers_do_not_change_the_result():
    """Each image is examined with the cached headers of the images before it, and again when all are cached."""
    sound = [encoded(picture(), "JPEG", quality=quality, progressive=p) for quality in (50, 90) for p in (False, True)]
    larger = encoded(picture().resize((120, 80)), "JPEG", quality=50)
    odd = [
        encoded(picture("L"), "JPEG"),
        encoded(picture("CMYK"), "JPEG"),
        encoded(picture(), "PNG"),
        turned(picture(), 6),
        *(encoded(picture(), "JPEG", icc_profile=profile) for profile in (rgb_profile(), rgb_profile(ADOBE_RGB, 2.2))),
        encoded(picture(), "JPEG", icc_profile=rgb_profile(curve=2.2) + bytes(4000)),
    ]
    broken = [b"", b"\xff\xd8\xff", b"words", b"words\xff\xd9", sound[0][:-2], sound[0][:300] + b"\xff\xd9"]
    images = [*sound, larger, sound[0], *odd, *broken, sound[0] + b"more", larger]
    for rules in (Rules("header"), Rules("header", max_pixels=100), Rules("strict"), Rules("header", prepare="resize")):
        examiner = Examiner(rules)
        for image in images * 2:
            assert examiner.examine(image) == examine(image, rules)
        assert examiner.examine(larger, [Box(0, 0, 60, 40)]) == examine(larger, rules, [Box(0, 0, 60, 40)])
