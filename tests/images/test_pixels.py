"""Stored pixels, compared with those of a decoder that is not Pillow (imagecodecs) and with definitions in NumPy."""

import io
import zlib
from collections.abc import Callable

import imagecodecs
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pipeline.images.examine import Rules, UsableImage
from pipeline.images.pillow_internals import tiff_tags
from pipeline.sources import Box
from tests.images.drawn import encoded, rejection, scene, usable
from tests.images.tiff import tiff

Pixels = NDArray[np.uint8]
SCENE = np.asarray(scene(9, 5, seed=5).resize((36, 20), Image.Resampling.BICUBIC))
DECODERS = {
    "JPEG": imagecodecs.jpeg8_decode,
    "PNG": imagecodecs.png_decode,
    "WEBP": imagecodecs.webp_decode,
    "TIFF": imagecodecs.tiff_decode,
}
UPRIGHT: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.transpose(1, 0, 2),
    6: lambda stored: stored[::-1].transpose(1, 0, 2),
    7: lambda stored: stored[::-1, ::-1].transpose(1, 0, 2),
    8: lambda stored: stored[:, ::-1].transpose(1, 0, 2),
}
"""The meaning of each orientation: CIPA DC-008 defines the first row and the first column in the file."""


def decoded(image: UsableImage) -> Pixels:
    pixels = np.asarray(DECODERS[image.format](image.encoded))
    return pixels if pixels.ndim == 3 else np.stack([pixels] * 3, -1)


def by_pillow(form: str, **options: object) -> Callable[[int], bytes]:
    def turned(orientation: int) -> bytes:
        exif = Image.Exif()
        exif[0x0112] = orientation
        return encoded(Image.fromarray(SCENE), form, exif=exif, **options)

    return turned


TURNED: dict[str, Callable[[int], bytes]] = {
    "TIFF, little-endian": lambda orientation: tiff(SCENE, 2, orientation=orientation),
    "TIFF, big-endian": lambda orientation: tiff(SCENE, 2, ">", orientation=orientation),
    "TIFF, LZW": by_pillow("TIFF", compression="tiff_lzw"),
    "JPEG": by_pillow("JPEG", quality=95, subsampling=0),
    "PNG": by_pillow("PNG"),
    "WEBP": by_pillow("WEBP", quality=90),
    "WEBP, lossless": by_pillow("WEBP", lossless=True),
}


@pytest.mark.parametrize("kind", TURNED)
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_an_image_is_turned_upright_once_with_its_boxes(kind: str, orientation: int):
    image = TURNED[kind](orientation)
    expected = UPRIGHT[orientation](DECODERS[kind.partition(",")[0]](image)[..., :3]).astype(int)
    found = usable(image, Rules(), [Box(2, 3, 12, 9)])
    assert (found.height, found.width) == expected.shape[:2]
    assert np.abs(decoded(found) - expected).mean() < 4
    assert found.format != "PNG" or (decoded(found) == expected).all()
    height, width = expected.shape[:2]
    assert found.boxes[0][:4] == pytest.approx((2 / width, 3 / height, 12 / width, 9 / height))

    crop = usable(image, Rules(crop_to_box=True), [Box(2, 3, 12, 9)])
    assert np.abs(decoded(crop) - expected[3:9, 2:12]).mean() < 10


def test_a_tiff_without_an_orientation_tag_is_turned_by_its_xmp():
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'
    found = usable(tiff(SCENE, 2, xmp=xmp), Rules(), [Box(2, 3, 12, 9)])
    assert (found.height, found.width) == (36, 20)
    assert (decoded(found) == UPRIGHT[6](SCENE)).all()
    assert found.boxes[0][:4] == pytest.approx((2 / 20, 3 / 36, 12 / 20, 9 / 36))


GRAY = np.arange(20 * 36).reshape(20, 36) * 65535 // 719
GRAY_16, GRAY_8, GRAY_12 = GRAY.astype(np.uint16), (GRAY // 257).astype(np.uint8), (GRAY // 16).astype(np.uint16)


def packed(samples: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Pack 12-bit samples into rows of whole bytes."""
    bits = np.unpackbits(samples.astype(">u2").view(np.uint8).reshape(*samples.shape, 2), axis=-1)[..., 4:]
    return np.packbits(bits.reshape(len(samples), -1), axis=-1)


def compressed(image: bytes) -> bytes:
    """Return the same TIFF with LZW compression, which makes Pillow decode it with libtiff."""
    with Image.open(io.BytesIO(image)) as opened:
        return encoded(opened, "TIFF", compression="tiff_lzw", tiffinfo={262: tiff_tags(opened)[262]})


@pytest.mark.parametrize(
    ("image", "levels"),
    [
        (tiff(GRAY_16, 1), GRAY_16 / 257),
        (tiff(GRAY_16, 1, ">"), GRAY_16 / 257),
        (tiff(GRAY_16, 0), 255 - GRAY_16 / 257),
        (tiff(GRAY_16, 0, ">"), 255 - GRAY_16 / 257),
        (tiff(GRAY_8, 1), GRAY_8),
        (tiff(GRAY_8, 0), 255 - GRAY_8.astype(float)),
        (tiff(GRAY_8, 0, ">"), 255 - GRAY_8.astype(float)),
        (tiff(packed(GRAY_12), 1, bits=12, width=36), GRAY_12 / 4095 * 255),
        (tiff(np.stack([GRAY_16] * 3, -1), 2), GRAY_16 / 257),
        (tiff(np.stack([GRAY_16] * 3, -1), 2, ">"), GRAY_16 / 257),
        (imagecodecs.png_encode(GRAY_16), GRAY_16 / 257),
        (imagecodecs.png_encode(np.stack([GRAY_16] * 3, -1)), GRAY_16 / 257),
        (imagecodecs.png_encode(np.stack([GRAY_16, np.full_like(GRAY_16, 65535)], -1)), GRAY_16 / 257),
        (imagecodecs.png_encode(np.stack([GRAY_16] * 3 + [np.full_like(GRAY_16, 65535)], -1)), GRAY_16 / 257),
    ],
    ids=[
        *("16 bits", "16 bits, big-endian", "16 bits, white is 0", "16 bits, white is 0, big-endian", "8 bits"),
        "8 bits, white is 0",
        *("8 bits, white is 0, big-endian", "12 bits", "RGB of 16 bits", "RGB of 16 bits, big-endian"),
        *("PNG of 16 bits", "RGB PNG", "gray and alpha", "RGB and alpha"),
    ],
)
def test_samples_of_any_depth_are_scaled_to_8_bits(image: bytes, levels: NDArray[np.float64]):
    pixels = decoded(usable(image, Rules()))
    assert pixels.shape == (20, 36, 3)
    assert np.abs(pixels - levels[..., None]).max() <= 1


@pytest.mark.parametrize("photometric", [0, 1])
def test_a_bilevel_tiff_can_have_0_as_black_or_white(photometric: int):
    bits = np.packbits(GRAY_8 > 99, axis=-1)
    pixels = decoded(usable(tiff(bits, photometric, bits=1, width=36), Rules()))
    assert ((pixels[..., 0] == 255) == ((GRAY_8 > 99) == (photometric == 1))).all()


def test_a_transparent_16_bit_gray_becomes_white():
    image = imagecodecs.png_encode(GRAY_16)
    chunk = b"tRNS" + int(GRAY_16[7, 7]).to_bytes(2, "big")
    image = image[:33] + (2).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big") + image[33:]
    pixels = decoded(usable(image, Rules()))
    assert pixels[7, 7].tolist() == [255, 255, 255]
    assert np.abs(pixels[:7, :, 0] - GRAY_16[:7] / 257).max() <= 1


@pytest.mark.parametrize("bits", [8, 16])
def test_signed_samples_are_rejected_and_not_wrapped(bits: int):
    samples = (GRAY_16 >> 1).astype(np.int16) if bits == 16 else (GRAY_8 >> 1).astype(np.int8)
    assert "signed samples" in rejection(tiff(samples, 1, sample_format=2), Rules()).reason


def test_premultiplied_gray_and_alpha_are_blended_over_white():
    pixels = decoded(usable(tiff(np.full((4, 4, 2), 128, np.uint8), 1, extra_samples=1), Rules()))
    assert np.abs(pixels.astype(int) - 255).max() <= 1


@pytest.mark.parametrize("image", [encoded(scene(36, 20).convert("CMYK"), "JPEG", quality=95, subsampling=0)])
def test_cmyk_without_a_profile_is_converted_by_its_inks(image: bytes):
    inks = 255 - np.asarray(imagecodecs.jpeg8_decode(image)).astype(float)  # Adobe's are inverted in the file
    left = (255 - inks[..., :3]) * (255 - inks[..., 3:]) / 255
    assert np.abs(decoded(usable(image, Rules())) - left).mean() < 4
