"""TensorFlow decodes every image that keeps its bytes, as shown with thousands of damaged files."""

import io
import random
import struct
import zlib

import pytest
from PIL import Image

from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.images.wellformed import is_whole_jpeg, is_whole_png
from tests.conftest import jpeg
from tests.images.drawn import encoded

NOISE = Image.frombytes("RGB", (40, 30), random.Random(0).randbytes(3 * 40 * 30))
PNG = encoded(NOISE, "PNG")
WHOLE = {
    "baseline": encoded(NOISE, "JPEG"),
    "progressive": encoded(NOISE, "JPEG", progressive=True),
    "restart markers": encoded(NOISE, "JPEG", restart_marker_rows=1),
    "trailing bytes": jpeg(1) + b"more",
    "png": PNG,
}


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of_rows(rows: int) -> bytes:
    header = struct.pack(">IIBBBBB", 4, 3, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(rows * (1 + 3 * 4)))
    return PNG[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


BROKEN_PNGS = {
    "no end": PNG[:-12],
    "half an end": PNG[:-6],
    "checksum of the data": PNG[:60] + bytes([PNG[60] ^ 1]) + PNG[61:],
    "checksum of the end": PNG[:-1] + bytes([PNG[-1] ^ 1]),
    "foreign critical chunk": PNG[:33] + chunk(b"ABCD", b"") + PNG[33:],
    "two headers": PNG[:33] + PNG[8:],
    "a row short": png_of_rows(2),
    "a row too many": png_of_rows(4),
}


@pytest.mark.parametrize("image", WHOLE.values(), ids=WHOLE)
def test_a_whole_image_keeps_its_bytes(image: bytes):
    assert is_whole_png(image) if image[:1] == b"\x89" else is_whole_jpeg(image)
    usable = examine(image, Rules())
    assert isinstance(usable, UsableImage)
    assert usable.encoded == image
    assert usable.format == ("PNG" if image[:1] == b"\x89" else "JPEG")
    assert (usable.width, usable.height) == Image.open(io.BytesIO(image)).size


def test_an_interlaced_png_is_whole():
    # Pillow cannot write an interlaced PNG. The seven passes of a 1 x 1 image hold one pixel.
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 1)
    image = PNG[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b"")
    assert is_whole_png(image)


@pytest.mark.parametrize("image", BROKEN_PNGS.values(), ids=BROKEN_PNGS)
def test_a_png_that_tensorflow_refuses_does_not_keep_its_bytes(image: bytes):
    assert not is_whole_png(image)
    assert_tensorflow_decodes(image)


@pytest.mark.parametrize("image", [WHOLE["baseline"][:-2], WHOLE["progressive"][:-2], jpeg(1)[:-1]])
def test_a_jpeg_without_its_end_does_not_keep_its_bytes(image: bytes):
    assert not is_whole_jpeg(image)
    assert_tensorflow_decodes(image)


@pytest.mark.parametrize("name", WHOLE)
def test_a_randomly_damaged_image_is_rejected_or_decoded_by_tensorflow(name: str):
    rng = random.Random(name)
    for _ in range(300):
        image = bytearray(WHOLE[name])
        for _ in range(rng.randint(1, 3)):
            image[rng.randrange(2, len(image))] = rng.randrange(256)
        assert_tensorflow_decodes(bytes(image[: rng.choice([None, rng.randrange(20, len(image))])]))


def assert_tensorflow_decodes(image: bytes) -> None:
    """Check that TensorFlow decodes the image if `examine` accepts it."""
    import tensorflow as tf

    found = examine(image, Rules())
    if isinstance(found, UsableImage):
        decoded = tf.io.decode_image(found.encoded, channels=3, expand_animations=False)
        assert decoded.shape == (found.height, found.width, 3)
