"""The pixels of files of every kind, as the exported model and as its training see them."""

import base64
import struct
import zlib
from collections.abc import Callable
from functools import cache

import imagecodecs
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from PIL import Image

from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.input.decode import Stored, decode_for_evaluation
from pipeline.input.options import CropMode
from pipeline.records.format import RecordFormat
from pipeline.training.served.file_pixels import decode_file
from tests.images.drawn import animated, encoded, scene, turned
from tests.images.icc import ADOBE_RGB, DISPLAY_P3, SRGB_CURVE, cmyk_profile, gray_profile, rgb_profile

SIDE = 64
PICTURE = scene(SIDE, SIDE)
ALPHA = Image.linear_gradient("L").resize((SIDE, SIDE))
FULL_CHROMA = {"quality": 95, "subsampling": 0}
WHOLE = Rules(prepare="raw", prepare_size=1 << 20)
"""The pixels that the preparation makes, before it encodes them again."""
ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1x"
    "eXBkeFxlZ2P/2wBDARESEhgVGC8aGi9jQjhCY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2P/yQAR"
    "CAAIAAwDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AGkEKl+hBWli/SDgCKF1qDCZOQ7IOeF2zTpg/9k="
)
"""A JPEG of 12 x 8 pixels with arithmetic coding, which neither Pillow nor imagecodecs writes."""
Files = Callable[[list[bytes]], NDArray[np.int16]]


def with_alpha(mode: str = "RGB") -> Image.Image:
    image = PICTURE.convert(mode)
    image.putalpha(ALPHA)
    return image


def levels_16(channels: int) -> NDArray[np.uint16]:
    shape = (SIDE, SIDE, channels) if channels > 1 else (SIDE, SIDE)
    return np.random.default_rng(0).integers(0, 1 << 16, shape, np.uint16)


def without_adobe(image: bytes) -> bytes:
    start = image.index(b"\xff\xee\x00\x0eAdobe")
    return image[:start] + image[start + 16 :]


def with_segments(image: bytes, *segments: tuple[int, bytes]) -> bytes:
    """Insert application segments, each preceded by a fill byte, into a JPEG."""
    data = b"".join(b"\xff\xff" + bytes([code]) + struct.pack(">H", len(each) + 2) + each for code, each in segments)
    return image[:2] + data + image[2:]


def with_chunk(image: bytes, kind: bytes, data: bytes) -> bytes:
    """Insert a chunk after the header of a PNG."""
    chunk = struct.pack(">I", len(data)) + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
    return image[:33] + chunk + image[33:]


def exif(order: str, orientation: int) -> bytes:
    """Return EXIF data in the byte order "<" or ">", whose first directory is not at its start."""
    mark = b"II" if order == "<" else b"MM"
    entries = [(0x010F, 2, 4, b"ACM\0"), (0x0112, 3, 1, struct.pack(order + "HH", orientation, 7))]
    directory = b"".join(struct.pack(order + "HHI", *entry[:3]) + entry[3] for entry in entries)
    return mark + struct.pack(order + "HI", 42, 12) + bytes(4) + struct.pack(order + "H", 2) + directory + bytes(4)


def xmp(orientation: int) -> bytes:
    return b'\xef\xbb\xbf<x:xmpmeta xmlns:x="adobe:ns:meta/">\xff<rdf tiff:Orientation="%d"/></x:xmpmeta>' % orientation


XMP_IN_JPEG, XMP_IN_PNG = b"http://ns.adobe.com/xap/1.0/\0", b"XML:com.adobe.xmp\0"
JPEG = encoded(PICTURE, "JPEG", **FULL_CHROMA)
PNG = encoded(PICTURE, "PNG")
PALETTE = PICTURE.quantize(200)
CMYK = encoded(PICTURE.convert("CMYK"), "JPEG", **FULL_CHROMA)
SQUARE_GRAY = encoded(PICTURE.convert("L"), "PNG")
EMPTY_CHUNK = with_chunk(b"", b"tEXt", b"a\0")
CORNER: tuple[int, int, int] = PICTURE.getpixel((0, 0))
KINDS = {
    "JPEG": JPEG,
    "JPEG, half chroma": encoded(PICTURE, "JPEG", quality=90),
    "JPEG, progressive": encoded(PICTURE, "JPEG", progressive=True, **FULL_CHROMA),
    "JPEG, arithmetic coding": ARITHMETIC,
    "JPEG, gray": encoded(PICTURE.convert("L"), "JPEG", quality=95),
    "JPEG, bytes after its end": JPEG + b"more",
    "JPEG, XMP orientation": with_segments(JPEG, (0xE1, XMP_IN_JPEG + xmp(8))),
    "JPEG, EXIF before XMP": with_segments(JPEG, (0xE1, XMP_IN_JPEG + xmp(8)), (0xE1, b"Exif\0\0" + exif(">", 6))),
    "JPEG, EXIF of one byte order": with_segments(JPEG, (0xE1, b"Exif\0\0" + exif("<", 6))),
    "JPEG, EXIF of the other": with_segments(JPEG, (0xE1, b"Exif\0\0" + exif(">", 7))),
    "CMYK": CMYK,
    "CMYK without a marker": without_adobe(CMYK),
    "CMYK without a marker, turned": with_segments(without_adobe(CMYK), (0xE1, b"Exif\0\0" + exif(">", 8))),
    "PNG": PNG,
    "PNG, gray": SQUARE_GRAY,
    "PNG, 1 bit": encoded(PICTURE.convert("1"), "PNG"),
    "PNG, palette": encoded(PALETTE, "PNG"),
    "PNG, palette of 4 bits": encoded(PICTURE.quantize(16), "PNG", bits=4),
    "PNG, palette with a transparent color": encoded(PALETTE, "PNG", transparency=3),
    "PNG, palette with alpha": encoded(PALETTE, "PNG", transparency=bytes(range(200))),
    "PNG, 4 bits with alpha": encoded(PICTURE.quantize(16), "PNG", bits=4, transparency=bytes(range(0, 256, 16))),
    "PNG, color key": encoded(PICTURE, "PNG", transparency=CORNER),
    "PNG, gray key": encoded(PICTURE.convert("L"), "PNG", transparency=PICTURE.convert("L").getpixel((5, 5))),
    "PNG, RGBA": encoded(with_alpha(), "PNG"),
    "PNG, LA": encoded(with_alpha("L"), "PNG"),
    "PNG, 16 bits": imagecodecs.png_encode(levels_16(1)),
    "PNG, 16 bits, LA": imagecodecs.png_encode(levels_16(2)),
    "PNG, 16 bits, RGB": imagecodecs.png_encode(levels_16(3)),
    "PNG, 16 bits, RGBA": imagecodecs.png_encode(levels_16(4)),
    "PNG, animated": animated(PICTURE, "PNG"),
    "PNG, turned RGBA": turned(with_alpha(), 6, "PNG"),
    "PNG, XMP orientation": with_chunk(PNG, b"iTXt", XMP_IN_PNG + bytes(4) + xmp(5).replace(b"\xff", b"")),
    "JPEG, sRGB": encoded(PICTURE, "JPEG", icc_profile=rgb_profile(), **FULL_CHROMA),
    "JPEG, Adobe RGB": encoded(PICTURE, "JPEG", icc_profile=rgb_profile(ADOBE_RGB, 2.2), **FULL_CHROMA),
    "JPEG, Display P3, turned": turned(PICTURE, 3, icc_profile=rgb_profile(DISPLAY_P3, SRGB_CURVE), subsampling=0),
    "JPEG, linear": encoded(PICTURE, "JPEG", icc_profile=rgb_profile(curve=[]), **FULL_CHROMA),
    "JPEG, a broken profile": encoded(PICTURE, "JPEG", icc_profile=rgb_profile(ADOBE_RGB)[:200], **FULL_CHROMA),
    "JPEG, a profile for gray": encoded(PICTURE, "JPEG", icc_profile=gray_profile(1.8), **FULL_CHROMA),
    "JPEG, gray, gamma 1.8": encoded(PICTURE.convert("L"), "JPEG", quality=95, icc_profile=gray_profile(1.8)),
    "JPEG, gray, gamma 2.2": encoded(PICTURE.convert("L"), "JPEG", quality=95, icc_profile=gray_profile(2.2)),
    "JPEG, gray, Adobe RGB": encoded(PICTURE.convert("L"), "JPEG", quality=95, icc_profile=rgb_profile(ADOBE_RGB, 1.8)),
    "PNG, Adobe RGB, RGBA": encoded(with_alpha(), "PNG", icc_profile=rgb_profile(ADOBE_RGB, 2.2)),
    **{f"JPEG, EXIF {orientation}": turned(PICTURE, orientation, subsampling=0) for orientation in range(1, 9)},
    **{f"PNG, EXIF {orientation}": turned(PICTURE, orientation, "PNG") for orientation in range(1, 9)},
}
REFUSED = {
    "no image": (b"no image", "neither a JPEG nor a PNG"),
    "nothing": (b"", "neither a JPEG nor a PNG"),
    "WebP": (encoded(PICTURE, "WEBP"), "convert it to one of them"),
    "GIF": (animated(PICTURE, "GIF"), "neither a JPEG nor a PNG"),
    "BMP": (encoded(PICTURE, "BMP"), "neither a JPEG nor a PNG"),
    "TIFF": (encoded(PICTURE, "TIFF"), "neither a JPEG nor a PNG"),
    "the start of a JPEG": (JPEG[:40], "an image is damaged, or a JPEG that"),
    "the start of a PNG": (PNG[:20], "an image is damaged"),
    "lossless JPEG": (imagecodecs.jpeg8_encode(np.asarray(PICTURE), lossless=True), "a JPEG that is lossless"),
    "a large packed profile": (with_chunk(PNG, b"iCCP", b"name\0\0" + bytes(70_000)), "save it without metadata"),
    "very many chunks": (PNG[:33] + 20_000 * EMPTY_CHUNK + PNG[33:], "very many chunks"),
    "a profile for CMYK": (
        encoded(PICTURE.convert("CMYK"), "JPEG", icc_profile=cmyk_profile()),
        "convert the image to",
    ),
    "a profile in parts": (encoded(PICTURE, "JPEG", icc_profile=rgb_profile() + bytes(70_000)), "convert it to sRGB"),
    "a transparent level of 16 bits": (
        with_chunk(imagecodecs.png_encode(levels_16(3)), b"tRNS", bytes(6)),
        "not 8 bits",
    ),
    "EXIF as text": (with_chunk(PNG, b"tEXt", b"Raw profile type exif\0\nexif\n 0\n"), "save it without metadata"),
}


def prepared(image: bytes, rules: Rules) -> UsableImage:
    found = examine(image, rules)
    assert isinstance(found, UsableImage), found
    return found


def trained(image: UsableImage, crop: CropMode = "whole", side: int = SIDE) -> NDArray[np.int16]:
    """Return the pixels that an evaluation in the training sees of a record."""
    stored = Stored(tf.constant(image.encoded), tf.constant(image.height), tf.constant(image.width), tf.constant(0))
    form = RecordFormat(pixels="raw" if image.format == "RAW" else "encoded")
    return decode_for_evaluation(stored, form, crop, side).numpy().astype(np.int16)


@cache
def served_by(crop: CropMode, side: int) -> Files:
    """Return what the exported model does with files before its layers."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def decoded(files: tf.Tensor) -> tf.Tensor:
        numbered = (files, tf.range(tf.size(files)))
        return tf.map_fn(lambda file: decode_file(*file, crop, side), numbered, fn_output_signature=tf.uint8)

    return lambda files: decoded(tf.constant(files, tf.string)).numpy().astype(np.int16)


@pytest.fixture
def served() -> Files:
    return served_by("whole", SIDE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_exported_model_sees_the_pixels_of_the_training(served: Files, kind: str):
    [seen] = served([KINDS[kind]])
    assert np.abs(seen - trained(prepared(KINDS[kind], WHOLE))).max() <= 1
    # The record of a converted image may be a JPEG, whose encoding changes levels.
    assert np.abs(seen - trained(prepared(KINDS[kind], Rules()))).mean() < 8


def test_files_of_all_kinds_can_be_in_one_request(served: Files):
    together = served(list(KINDS.values()))
    for file, seen in zip(KINDS.values(), together, strict=True):
        assert (seen == served([file])[0]).all()
    assert served([]).shape == (0, SIDE, SIDE, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_the_crop_of_a_turned_image_is_that_of_the_upright_one(orientation: int, form: str):
    """Of 17 free columns or rows, 8 are on one side and 9 on the other."""
    image = turned(scene(SIDE + 17, SIDE), orientation, form, **({"subsampling": 0} if form == "JPEG" else {}))
    [seen] = served_by("random", SIDE)([image])
    assert np.abs(seen - trained(prepared(image, WHOLE), "random")).max() <= 1


def test_colors_are_converted_before_pixels_are_averaged():
    """The mean of two levels depends on the curve."""
    stripes = Image.fromarray(np.tile(np.uint8([[0, 255]]), (4 * SIDE, 2 * SIDE))).convert("RGB")
    image = encoded(stripes, "PNG", icc_profile=rgb_profile(ADOBE_RGB, 1.8))
    [seen] = served_by("whole", SIDE)([image])
    assert np.abs(seen - trained(prepared(image, WHOLE))).max() <= 1


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_would_be_another_image_is_refused_by_its_position_and_told_what_to_do(served: Files, kind: str):
    file, why = REFUSED[kind]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{why}.*position in the request, from 0:\] \[1\]"):
        served([JPEG, file])


def test_a_header_that_ends_anywhere_is_an_error_and_no_crash(served: Files):
    whole = (with_segments(JPEG, (0xE1, b"Exif\0\0" + exif(">", 6))), turned(with_alpha(), 6, "PNG"))
    for file in [each[:end] for each in whole for end in range(3, 300, 11)]:
        with pytest.raises(tf.errors.OpError):
            served([file])
