"""How files are encoded: lossless images stay lossless, color keeps its samples, unsupported formats are named."""

import io
import time

import imagecodecs
import numpy as np
import pytest
from PIL import Image

from pipeline.images import heif
from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.images.pillow_internals import component_sampling
from pipeline.sources import Box
from tests.conftest import jpeg
from tests.images.drawn import animated, encoded, picture, rejection, scene, turned, usable
from tests.images.icc import ADOBE_RGB, cmyk_profile, gray_profile, rgb_profile
from tests.images.tiff import tiff
from tests.waiting import until

STRICT, HEADER = Rules(), Rules(check="header")
both_checks = pytest.mark.parametrize("rules", [STRICT, HEADER], ids=["strict", "header"])
IMAGE = scene(36, 20, seed=3)
PIXELS = np.asarray(IMAGE)
BOX = Box(2, 3, 12, 9)


@both_checks
@pytest.mark.parametrize(
    "image",
    [
        encoded(IMAGE, "WEBP", lossless=True),
        encoded(IMAGE, "WEBP", lossless=True, exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"),
        animated(IMAGE, "WEBP", lossless=True),
        imagecodecs.jpeg8_encode(PIXELS, lossless=True),
        encoded(IMAGE, "BMP"),
    ],
    ids=["webp", "extended webp", "animated webp", "jpeg", "bmp"],
)
def test_lossless_images_keep_every_level(image: bytes, rules: Rules):
    found = usable(image, rules)
    assert found.format == "PNG"
    assert (imagecodecs.png_decode(found.encoded) == PIXELS).all()


def subsampling(image: UsableImage) -> tuple[int, int]:
    """Return how many pixels across and down share a color sample of a JPEG."""
    with Image.open(io.BytesIO(image.encoded)) as opened:
        (across, down), (color_across, color_down), _ = component_sampling(opened)
    return across // color_across, down // color_down


@pytest.mark.parametrize(
    ("image", "boxes", "expected"),
    [
        (encoded(IMAGE.convert("CMYK"), "JPEG", subsampling=0), (), (1, 1)),
        (turned(IMAGE, 6, subsampling=0), (), (1, 1)),
        (turned(IMAGE, 6, subsampling=1), (), (1, 1)),
        (turned(IMAGE, 6, subsampling=2), (), (2, 2)),
        (turned(IMAGE, 1, subsampling=0), [BOX], (1, 1)),
        (encoded(IMAGE, "JPEG", subsampling=0, icc_profile=rgb_profile(ADOBE_RGB, 2.2)), (), (1, 1)),
        (encoded(IMAGE, "WEBP"), (), (2, 2)),
        (encoded(IMAGE, "WEBP", lossless=True), [BOX], (1, 1)),
        (encoded(IMAGE, "PNG"), [BOX], (1, 1)),
        (encoded(IMAGE, "AVIF", subsampling="4:4:4"), (), (1, 1)),
    ],
    ids=[
        *(
            "CMYK",
            "turned 4:4:4",
            "turned 4:2:2",
            "turned 4:2:0",
            "crop of 4:4:4",
            "profile",
            "WebP",
            "crop of lossless",
        ),
        *("crop of PNG", "AVIF"),
    ],
)
def test_color_keeps_its_resolution(image: bytes, boxes: list[Box], expected: tuple[int, int]):
    assert subsampling(usable(image, Rules(crop_to_box=True), boxes)) == expected


def test_shrunk_images_are_stored_with_4_2_0_subsampling():
    image = turned(scene(80, 60), 1, subsampling=0)
    assert subsampling(usable(image, Rules(prepare="resize", prepare_size=32))) == (2, 2)


def without_height(image: bytes) -> bytes:
    frame = image.index(b"\xff\xc0")
    return image[: frame + 5] + b"\0\0" + image[frame + 7 :]


@pytest.fixture(autouse=True)
def _without_heif(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heif, "installed_version", lambda: None)


UNREADABLE = {
    "12 bits": (
        imagecodecs.jpeg8_encode(PIXELS.astype(np.uint16) * 16, bitspersample=12),
        "12 bits per sample",
        "8 bits",
    ),
    "lossless of 16 bits": (imagecodecs.ljpeg_encode(PIXELS[..., 0].astype(np.uint16)), "16 bits per sample", "PNG"),
    "height 0": (without_height(jpeg(1)), "with its height after its pixels", "save it again"),
    "JPEG-LS": (imagecodecs.jpegls_encode(PIXELS), "JPEG-LS is not supported", "convert it to JPEG or PNG"),
    "JPEG 2000": (encoded(IMAGE, "JPEG2000"), "JPEG 2000 is not supported", "convert it to JPEG or PNG"),
    "JPEG 2000, bare": (
        encoded(IMAGE, "JPEG2000", no_jp2=True),
        "JPEG 2000 is not supported",
        "convert it to JPEG or PNG",
    ),
    "HEIC": (
        b"\0\0\0\x18ftypheic" + bytes(100),
        "HEIC is not supported without the package pillow-heif",
        "install pillow-heif on all machines that write shards, or convert it to JPEG or PNG",
    ),
    "HEIC of any codec": (
        b"\0\0\0\x1cftypmif1\0\0\0\0mif1heicmiaf" + bytes(100),
        "HEIC is not supported without",
        "install pillow-heif",
    ),
    "camera raw": (b"IIU\0" + bytes(100), "camera raw is not supported", "convert it to JPEG or PNG"),
    "raw of Canon": (b"\0\0\0\x18ftypcrx " + bytes(100), "camera raw is not supported", "convert it to JPEG or PNG"),
    "SVG": (b'<?xml version="1.0"?>\n<svg width="4"/>', "SVG is not supported", "convert it to JPEG or PNG"),
    "Photoshop": (b"8BPS\0\1" + bytes(100), "Photoshop is not supported", "convert it to JPEG or PNG"),
    "JPEG XL": (b"\xff\x0a" + bytes(100), "JPEG XL is not supported", "convert it to JPEG or PNG"),
}


@both_checks
@pytest.mark.parametrize(("image", "reason", "advice"), UNREADABLE.values(), ids=UNREADABLE)
def test_an_unsupported_image_is_named_with_advice(image: bytes, reason: str, advice: str, rules: Rules):
    found = rejection(image, rules)
    assert reason in found.reason
    assert advice in found.advice


ODD = {
    "CMYK": encoded(IMAGE.convert("CMYK"), "JPEG", icc_profile=cmyk_profile()),
    "LAB": encoded(Image.new("LAB", (12, 8), (150, 140, 120)), "TIFF"),
    "turned": turned(IMAGE, 6),
    "turned TIFF": tiff(PIXELS, 2, orientation=6),
    "Adobe RGB": encoded(IMAGE, "JPEG", icc_profile=rgb_profile(ADOBE_RGB, 2.2)),
    "Adobe RGB, PNG": encoded(IMAGE, "PNG", icc_profile=rgb_profile(ADOBE_RGB, 2.2)),
    "sRGB, WebP": encoded(IMAGE, "WEBP", icc_profile=rgb_profile()),
    "dot gain": encoded(IMAGE.convert("L"), "JPEG", icc_profile=gray_profile(1.8)),
    "comment": encoded(IMAGE.convert("CMYK"), "JPEG", comment=b"words"),
    "palette": encoded(IMAGE.convert("P"), "PNG"),
    "alpha": encoded(IMAGE.convert("RGBA"), "PNG"),
    "16 bits": tiff(np.arange(96, dtype=np.uint16).reshape(8, 12) * 600, 1),
    "gray": encoded(IMAGE.convert("L"), "JPEG"),
    "gif": encoded(picture(), "GIF"),
    "bmp": encoded(picture(), "BMP"),
    "avif": encoded(IMAGE, "AVIF"),
}


def test_converted_images_have_the_same_bytes_at_any_time():
    """The runs are in different seconds, because LittleCMS writes the second into the profiles that it makes."""

    def all_encoded() -> dict[str, bytes]:
        rules = (Rules(), Rules(prepare="resize", prepare_size=8), Rules(prepare="raw"))
        return {f"{name}, {each.prepare}": usable(image, each).encoded for name, image in ODD.items() for each in rules}

    first = all_encoded()
    second = int(time.time())
    until(lambda: int(time.time()) - second)
    assert [name for name, content in all_encoded().items() if content != first[name]] == []
    assert [name for name, content in first.items() if b"words" in content or b"ICC_PROFILE" in content] == []


def test_a_truncated_header_raises_no_error():
    for image in (*(image for image, _, _ in UNREADABLE.values()), animated(IMAGE, "WEBP", lossless=True)):
        for length in range(0, min(len(image), 300), 7):
            examine(image[:length], STRICT)
