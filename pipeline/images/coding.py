"""Facts about the coding of a file that Pillow does not give: whether it is lossless, and why it is unreadable.

Sources: ITU T.81 annex B (JPEG), ITU T.87 (JPEG-LS), RFC 9649 (WebP).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image

from pipeline.images.pillow_internals import component_sampling

JPEG_MAGIC, _TIFF_MAGICS = b"\xff\xd8\xff", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_LOSSLESS, _JPEG_LS, _SCAN = (0xC3, 0xC7, 0xCB, 0xCF), 0xF7, 0xDA
_NOT_FRAMES = (0xC4, 0xC8, 0xCC)
"""These markers lie between the codes of frames: Huffman tables, a reserved code, and arithmetic conditioning."""
_ALONE = (0x01, *range(0xD0, 0xD8))
"""These markers have no length."""
_GZIP = b"\x1f\x8b\x08"
_CONVERT = "convert it to JPEG or PNG"
_OTHER_FORMATS = {
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"\0\0\0\x0cJXL ": "JPEG XL",
    b"\xff\x0a": "JPEG XL",
}
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"hevx", b"mif1", b"msf1")


class _Frame(NamedTuple):
    code: int
    bits: int
    height: int


def is_lossless(form: str, encoded: bytes) -> bool:
    """Return whether a file holds exact pixels. Files of other formats than JPEG, WebP and AVIF always do."""
    if form == "WEBP":
        return b"VP8L" in _webp_images(encoded)
    if form == "JPEG":
        frame = _jpeg_frame(encoded)
        return frame is not None and frame.code in _LOSSLESS
    return form != "AVIF"


def has_full_chroma(image: Image.Image) -> bool:
    """Return whether a lossy image has more color samples than at half resolution in both directions.

    True if it is unknown (AVIF).
    """
    # Lossy WebP always has color at half the resolution in both directions (RFC 9649).
    if image.format == "WEBP":
        return False
    components = component_sampling(image)
    max_across, max_down = (max((factors[axis] for factors in components), default=1) for axis in (0, 1))
    is_halved = any(across < max_across and down < max_down for across, down in components)
    # A gray JPEG has one component and no color.
    return len(components) != 1 and not is_halved


def why_unreadable(encoded: bytes) -> tuple[str, str] | None:
    """Return the reason why no decoder reads this image, and advice; None if the file does not seem to be an image."""
    if encoded.startswith(JPEG_MAGIC):
        return _why_unreadable_jpeg(_jpeg_frame(encoded))
    if encoded.startswith(_GZIP):
        return "it is compressed with gzip", "store it as it is, without compression or Content-Encoding"
    for magic, name in _OTHER_FORMATS.items():
        if encoded.startswith(magic):
            return f"{name} is not supported", _CONVERT
    if encoded[4:8] == b"ftyp" and encoded[8:12] in _HEIF_BRANDS:
        return "HEIC is not supported", _CONVERT
    if encoded.startswith(_TIFF_MAGICS):
        return "a TIFF that is damaged or of a kind that is not supported", "save it again as PNG or as 8-bit RGB"
    return None


def _why_unreadable_jpeg(frame: _Frame | None) -> tuple[str, str] | None:
    if frame is None:
        return None
    if frame.code == _JPEG_LS:
        return "JPEG-LS is not supported", _CONVERT
    if frame.bits != 8:
        return f"a JPEG with {frame.bits} bits per sample is not supported", "save it with 8 bits, or as a 16-bit PNG"
    if frame.height == 0:
        return "a JPEG with its height after its pixels (0 in its header) is not supported", "save it again"
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
