"""Facts about the coding of a file that Pillow does not give: whether it is lossless, and why it is unreadable.

Sources: ITU T.81 annex B (JPEG), ITU T.87 (JPEG-LS), RFC 9649 (WebP), ISO/IEC 23008-12 (the brands of HEIF). The first
bytes of the formats that are not read: the file of magic numbers of the program `file`.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image

from pipeline.images import heif
from pipeline.images.header import JPEG_MAGIC, PNG_MAGIC
from pipeline.images.pillow_internals import component_sampling
from pipeline.images.rejection import Rejection
from pipeline.sources.suffixes import OTHER_SUFFIXES, suffix_of

_TIFF_MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_LOSSLESS, _JPEG_LS, _SCAN = (0xC3, 0xC7, 0xCB, 0xCF), 0xF7, 0xDA
_NOT_FRAMES = (0xC4, 0xC8, 0xCC)
"""These markers lie between the codes of frames: Huffman tables, a reserved code, and arithmetic conditioning."""
_ALONE = (0x01, *range(0xD0, 0xD8))
"""These markers have no length."""
_GZIP = b"\x1f\x8b\x08"
CONVERT = "convert it to JPEG or PNG"
CAMERA_RAW = "camera raw"
_OTHER_FORMATS = {
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"\0\0\0\x0cJXL ": "JPEG XL",
    b"\xff\x0a": "JPEG XL",
    b"II\xbc\x01": "JPEG XR",
    b"8BPS": "Photoshop",
    b"gimp xcf": "GIMP",
    b"%!PS": "PostScript",
    b"\xc5\xd0\xd3\xc6": "PostScript",
    b"%PDF": "PDF",
    b"\0\0\1\0": "ICO",
    b"icns": "ICNS",
    b"DDS ": "DDS",
    b"v/1\x01": "OpenEXR",
    b"#?RADIANCE": "Radiance HDR",
    b"#?RGBE": "Radiance HDR",
    b"FUJIFILMCCD-RAW": CAMERA_RAW,
    b"II\x1a\0\0\0HEAPCCDR": CAMERA_RAW,
    b"IIRO": CAMERA_RAW,
    b"IIRS": CAMERA_RAW,
    b"MMOR": CAMERA_RAW,
    b"IIU\0": CAMERA_RAW,
    b"FOVb": CAMERA_RAW,
    b"\0MRM": CAMERA_RAW,
}
_CR3 = b"ftypcrx "
"""These bytes follow the first four of a raw file of newer Canon cameras."""
_XML, _SVG = b"<?xml", b"<svg"
_XML_BYTES = 4096
"""The first element of an XML file is searched in this many bytes."""


class _Frame(NamedTuple):
    code: int
    bits: int
    height: int


def is_lossless(form: str, encoded: bytes) -> bool:
    """Return whether a file holds exact pixels. Files of other formats than JPEG, WebP, AVIF and HEIF always do."""
    if form == "WEBP":
        return b"VP8L" in _webp_images(encoded)
    if form == "JPEG":
        frame = _jpeg_frame(encoded)
        return frame is not None and frame.code in _LOSSLESS
    return form not in ("AVIF", heif.FORMAT)


def has_full_chroma(image: Image.Image) -> bool:
    """Return whether a lossy image has more color samples than at half resolution in both directions.

    True if it is unknown (AVIF).
    """
    # Lossy WebP always has color at half the resolution in both directions (RFC 9649).
    if image.format == "WEBP":
        return False
    if image.format == heif.FORMAT:
        return heif.has_full_chroma(image)
    components = component_sampling(image)
    max_across, max_down = (max((factors[axis] for factors in components), default=1) for axis in (0, 1))
    is_halved = any(across < max_across and down < max_down for across, down in components)
    # A gray JPEG has one component and no color.
    return len(components) != 1 and not is_halved


def why_unreadable(encoded: bytes, key: str = "") -> Rejection:
    """Return why no decoder reads a file. If its content shows no format, the suffix of its key names one."""
    if encoded.startswith(JPEG_MAGIC) and (rejection := _why_unreadable_jpeg(_jpeg_frame(encoded))):
        return rejection
    if encoded.startswith(_GZIP):
        return Rejection("it is compressed with gzip", "store it as it is, without compression or Content-Encoding")
    if heif.is_heif(encoded):
        return heif.why_unreadable()
    if name := _name_of_other_format(encoded):
        return Rejection(f"{name} is not supported", CONVERT)
    if encoded.startswith(_TIFF_MAGICS):
        return Rejection(
            "a TIFF that is damaged or of a kind that is not supported", "save it again as PNG or as 8-bit RGB"
        )
    if encoded.startswith((JPEG_MAGIC, PNG_MAGIC)):
        return Rejection(f"damaged {'JPEG' if encoded.startswith(JPEG_MAGIC) else 'PNG'}: its header cannot be read")
    suffix = suffix_of(key)
    if suffix in OTHER_SUFFIXES:
        return Rejection(f"{suffix} images are not supported", CONVERT)
    return Rejection(f"not an image: it starts with {encoded[:8]!r}")


def _name_of_other_format(encoded: bytes) -> str:
    """Return the name of a format that is not read by the first bytes of a file; empty if they are not of one."""
    text = encoded[:_XML_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(_SVG) or (text.startswith(_XML) and _SVG in text):
        return "SVG"
    if encoded.startswith(_CR3, 4):
        return CAMERA_RAW
    return next((name for magic, name in _OTHER_FORMATS.items() if encoded.startswith(magic)), "")


def _why_unreadable_jpeg(frame: _Frame | None) -> Rejection | None:
    if frame is None:
        return None
    if frame.code == _JPEG_LS:
        return Rejection("JPEG-LS is not supported", CONVERT)
    if frame.bits != 8:
        return Rejection(
            f"a JPEG with {frame.bits} bits per sample is not supported", "save it with 8 bits, or as a 16-bit PNG"
        )
    if frame.height == 0:
        return Rejection("a JPEG with its height after its pixels (0 in its header) is not supported", "save it again")
    return None


def _jpeg_frame(encoded: bytes) -> _Frame | None:
    """Return the first frame of a JPEG; None if a segment before it is damaged."""
    offset = 2
    while offset + 9 <= len(encoded) and encoded[offset] == 0xFF:
        code = encoded[offset + 1]
        if code == _SCAN:
            return None
        if code == _JPEG_LS or (0xC0 <= code <= 0xCF and code not in _NOT_FRAMES):
            # The two bytes of the marker and the two of its length come first.
            bits, height = struct.unpack_from(">BH", encoded, offset + 4)
            return _Frame(code, bits, height)
        # A marker may be preceded by any number of fill bytes (0xff).
        offset += 1 if code == 0xFF else 2 if code in _ALONE else 2 + int.from_bytes(encoded[offset + 2 : offset + 4])
    return None


def _webp_images(encoded: bytes) -> Iterator[bytes]:
    """Yield the code of the first bitstream of a WebP, in an animation of its first frame: VP8 (lossy) or VP8L."""
    offset = 12
    while offset + 8 <= len(encoded):
        code, size = struct.unpack_from("<4sI", encoded, offset)
        if code == b"ANMF":  # An animation frame has 16 bytes of header, and then its own chunks.
            offset += 8 + 16
            continue
        if code in (b"VP8 ", b"VP8L"):
            yield code
            return
        # Chunks of an odd size are padded by one byte.
        offset += 8 + size + size % 2
