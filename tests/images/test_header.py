"""Headers of generated files, compared with Pillow, and of patched files, compared with literal values."""

import io
import re

import pytest
from PIL import Image

from pipeline.images.header import Header, read_header
from tests.images.drawn import encoded, picture, turned
from tests.images.icc import ADOBE_RGB, gray_profile, rgb_profile

JPEG = encoded(picture(), "JPEG", subsampling=0)
GRAY = encoded(picture("L"), "JPEG")
PNG = encoded(picture(), "PNG")
LONG = rgb_profile() + bytes(150_000)
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'


def replaced(image: bytes, old: bytes, new: bytes) -> bytes:
    assert image.count(old) == 1
    return image.replace(old, new)


def with_segment(code: int, data: bytes) -> bytes:
    return JPEG[:2] + bytes([0xFF, code]) + (2 + len(data)).to_bytes(2, "big") + data + JPEG[2:]


def exif(order: str, orientation: int, kind: int = 3) -> bytes:
    """An Exif segment with one directory of one entry."""

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, "little" if order == "II" else "big")

    entry = number(0x0112, 2) + number(kind, 2) + number(1, 4)
    entry += number(orientation, 2) + bytes(2) if kind == 3 else number(orientation, 4)
    return with_segment(
        0xE1, b"Exif\0\0" + order.encode() + number(42, 2) + number(8, 4) + number(1, 2) + entry + bytes(4)
    )


PLAIN = {
    "baseline": JPEG,
    "progressive": encoded(picture(), "JPEG", progressive=True),
    "4:2:0": encoded(picture(), "JPEG", subsampling=2),
    "trailing bytes": JPEG + b"more",
    "fill bytes": JPEG[:2] + b"\xff\xff" + JPEG[2:],
    "thumbnail in a comment": with_segment(0xFE, JPEG),
    "upright, little-endian": exif("II", 1),
    "upright, big-endian": exif("MM", 1),
    "Adobe, as RGB": with_segment(0xEE, b"Adobe\0\x64\0\0\0\0\0"),
    "4:2:0 of twice the samples": replaced(JPEG, b"\x03\x01\x11\0\x02\x11\x01", b"\x03\x01\x42\0\x02\x21\x01"),
    "gray": GRAY,
    "gray of twice the samples": replaced(GRAY, b"\x0c\x01\x01\x11", b"\x0c\x01\x01\x22"),
    "in sRGB": encoded(picture(), "JPEG", icc_profile=rgb_profile()),
    "in sRGB, in several segments": encoded(picture(), "JPEG", icc_profile=LONG),
    "gray, in sRGB": encoded(picture("L"), "JPEG", icc_profile=rgb_profile()),
    "gray, of gamma 2.2": encoded(picture("L"), "JPEG", icc_profile=gray_profile(2.2)),
    "png": PNG,
    "gray png": encoded(picture("L"), "PNG"),
    "png in sRGB": encoded(picture(), "PNG", icc_profile=rgb_profile()),
    "png with words": encoded(picture(), "PNG", dpi=(72, 72)),
}
ODD = {
    "cmyk": encoded(picture("CMYK"), "JPEG"),
    "12 bits": replaced(JPEG, b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
    "two components": replaced(GRAY, b"\x08\0\x08\0\x0c\x01", b"\x08\0\x08\0\x0c\x02"),
    "in Adobe RGB": encoded(picture(), "JPEG", icc_profile=rgb_profile(ADOBE_RGB, 2.2)),
    "with a part of a profile missing": with_segment(0xE2, b"ICC_PROFILE\0\x01\x02" + rgb_profile()),
    "with a broken profile": with_segment(0xE2, b"ICC_PROFILE\0\x01\x01profile"),
    "gray, with a dot gain": encoded(picture("L"), "JPEG", icc_profile=gray_profile(1.8)),
    "in color, with a profile for gray": encoded(picture(), "JPEG", icc_profile=gray_profile(2.2)),
    "samples that do not divide": replaced(JPEG, b"\x03\x01\x11\0\x02\x11\x01", b"\x03\x01\x31\0\x02\x21\x01"),
    "no samples": replaced(JPEG, b"\x03\x01\x11\0\x02\x11\x01", b"\x03\x01\x11\0\x02\x01\x01"),
    "Adobe, as YCCK": with_segment(0xEE, b"Adobe\0\x64\0\0\0\0\x02"),
    "palette": encoded(picture("P"), "PNG"),
    "gray and alpha": encoded(picture("LA"), "PNG"),
    "gray of 1 bit": encoded(picture("1"), "PNG"),
    "gray with a transparent level": encoded(picture("L"), "PNG", transparency=0),
    "png in Adobe RGB": encoded(picture(), "PNG", icc_profile=rgb_profile(ADOBE_RGB, 2.2)),
    "png with a broken profile": encoded(picture(), "PNG", icc_profile=b"profile"),
    "alpha": encoded(picture("RGBA"), "PNG"),
    "a transparent color": encoded(picture(), "PNG", transparency=(0, 0, 0)),
    "16 bits": replaced(PNG, b"\x08\x02\0\0\0", b"\x10\x02\0\0\0"),
    "unknown compression": replaced(PNG, b"\x08\x02\0\0\0", b"\x08\x02\1\0\0"),
    "unknown interlacing": replaced(PNG, b"\x08\x02\0\0\0", b"\x08\x02\0\0\2"),
    "animated": encoded(picture(), "PNG", save_all=True, append_images=[Image.new("RGB", (12, 8))]),
}
TURNED = {
    "little-endian": exif("II", 6),
    "big-endian": exif("MM", 6),
    "as a long": exif("MM", 6, kind=4),
    "by Pillow": turned(picture(), 3),
    "neither order": with_segment(0xE1, b"Exif\0\0??"),
    "xmp": with_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP),
    "png": turned(picture(), 6, "PNG"),
}
NONE = {
    "empty": b"",
    "another format": encoded(picture(), "BMP"),
    "two frames": replaced(
        JPEG, b"\xff\xc0", b"\xff\xc0\0\x11\x08\0\x08\0\x0c\x03\x01\x11\0\x02\x11\x01\x03\x11\x01\xff\xc0"
    ),
    "no height": replaced(JPEG, b"\x11\x08\0\x08", b"\x11\x08\0\0"),
    "no width": replaced(PNG, b"IHDR\0\0\0\x0c", b"IHDR\0\0\0\0"),
    "no frame": replaced(JPEG, b"\xff\xc0", b"\xff\xfe"),
    "arithmetic coding": replaced(JPEG, b"\xff\xc0", b"\xff\xc9"),
    "a segment of no length": JPEG[:2] + b"\xff\xfe\0\0" + JPEG[2:],
    "a segment of length 1": JPEG[:2] + b"\xff\xfe\0\x01" + JPEG[2:],
    "junk between segments": JPEG[:2] + b"\0" + JPEG[2:],
    "cut in a segment": JPEG[:100],
    "cut in the header of the scan": JPEG[: JPEG.index(b"\xff\xda") + 6],
    "png without its end": PNG[:-12],
    "half its end": PNG[:-6],
    "its end without a checksum": PNG[:-4],
    "cut in its data": PNG[:-20],
    "without data": PNG[:33] + PNG[-12:],
    "a critical chunk of another kind": PNG[:33] + b"\0\0\0\0ABCD\0\0\0\0" + PNG[33:],
}


@pytest.mark.parametrize("image", PLAIN.values(), ids=PLAIN)
def test_plain_images_are_recognized_by_their_header(image: bytes):
    form = "PNG" if image.startswith(b"\x89") else "JPEG"
    header = read_header(image)
    assert header is not None
    assert header._replace(profile=b"", tables=None) == Header(form, 8, 12, is_plain=True, may_be_turned=False)
    if form == "JPEG":
        scans = [scan.end() for scan in re.finditer(b"\xff\xda", image)]
        ends = [scan + int.from_bytes(image[scan : scan + 2], "big") for scan in scans]
        end = next(end for end in ends if read_header(image[:end]))  # A scan of a thumbnail may come before.
        assert read_header(image[:end]) == header
        assert read_header(image[: end - 1]) is None
    with Image.open(io.BytesIO(image)) as opened:
        assert (opened.format, opened.size) == (form, (12, 8))
        assert opened.mode in ("RGB", "L")
        assert header.profile == (opened.info.get("icc_profile", b"") if form == "JPEG" else b"")
        assert opened.getexif().get(0x0112, 1) == 1


@pytest.mark.parametrize("image", ODD.values(), ids=ODD)
def test_images_that_decoders_read_differently_are_not_plain(image: bytes):
    header = read_header(image)
    assert header is not None
    assert (header.height, header.width, header.is_plain) == (8, 12, False)


@pytest.mark.parametrize("image", TURNED.values(), ids=TURNED)
def test_images_with_an_orientation_may_be_turned(image: bytes):
    header = read_header(image)
    assert header is not None
    assert header.may_be_turned


@pytest.mark.parametrize("image", NONE.values(), ids=NONE)
def test_truncated_and_unknown_files_have_no_header(image: bytes):
    assert read_header(image) is None


def test_known_tables_of_another_file_change_no_header():
    scan = JPEG.index(b"\xff\xda")
    late = {
        "turned after the tables": JPEG[:scan] + exif("II", 6)[2 : -len(JPEG) + 2] + JPEG[scan:],
        "a second frame after the tables": JPEG[:scan] + JPEG[JPEG.index(b"\xff\xc0") :],
        "cut after the tables": JPEG[:scan],
    }
    images = [*(PLAIN | ODD | TURNED | NONE | late).values()]
    headers = [read_header(image) for image in images]
    known = {header.tables for header in headers if header and header.tables}
    assert len(known) > 5
    for tables in known:
        for image, header in zip(images, headers, strict=True):
            found = read_header(image, tables)
            assert (found and found._replace(tables=None)) == (header and header._replace(tables=None))
            if found and header and header.tables:
                assert found.tables == header.tables
