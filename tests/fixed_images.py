"""Images whose bytes do not depend on an encoder: small handmade PNGs, and three tiny JPEGs stored as text."""

import base64
import struct
import zlib

_RGB = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQ"
    "YEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//wAARCAAQABgD"
    "ASIAAhEBAxEB/8QAFwABAQEBAAAAAAAAAAAAAAAABgAFB//EABQQAQAAAAAAAAAAAAAAAAAAAAD/xAAWAQEBAQAAAAAAAAAAAAAAAAAEBQf/xAAm"
    "EQAAAwQLAQAAAAAAAAAAAAAAERIFFBVhAwYTISJBUWJxcqHh/9oADAMBAAIRAxEAPwA+XFzCQWdRRRV6UlMzPjQDrk0HixwkSs+shyNFaanEtvvw"
    "MdJj/9k="
)
_GRAY = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQ"
    "YEpRUk//wAALCAAQABgBAREA/8QAFgABAQEAAAAAAAAAAAAAAAAABgcF/8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQAAPwA+XJovLCDn/9k="
)
_CMYK = (
    "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwANCQoLCggNCwoLDg4NDxMgFRMSEhMnHB4XIC4pMTAuKS0sMzpKPjM2RjcsLUBXQUZMTlJTUjI+WmFaUGBK"
    "UVJP/8AAFAgAEAAYBEMRAE0RAFkRAEsRAP/EABcAAQEBAQAAAAAAAAAAAAAAAAgABwb/xAAUEAEAAAAAAAAAAAAAAAAAAAAA/9oADgRDAE0AWQBL"
    "AAA/ANOZgzBpwxE6khiJ1E6ToxIYkTqaewpzqf/Z"
)
RGB, GRAY, CMYK = (base64.b64decode(text) for text in (_RGB, _GRAY, _CMYK))
"""JPEGs of 24 x 16 pixels."""

GRAYSCALE, TRUECOLOR, TRUECOLOR_ALPHA = 0, 2, 6
_SAMPLES = {GRAYSCALE: 1, TRUECOLOR: 3, TRUECOLOR_ALPHA: 4}


def jpeg(number: int, base: bytes = RGB, orientation: int = 1) -> bytes:
    """Return a JPEG with the pixels of `base`. A comment with the number makes its bytes unique."""
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + struct.pack(">HH", orientation, 0) + bytes(4)
    segments = _segment(0xE1, exif) if orientation != 1 else b""
    return base[:2] + segments + _segment(0xFE, b"%d" % number) + base[2:]


def png(number: int, color: int = TRUECOLOR, bits: int = 8, size: tuple[int, int] = (12, 10)) -> bytes:
    """Return a PNG of one color that depends on the number. `size` is (width, height) in pixels."""
    width, height = size
    sample = (number * 37 % 256).to_bytes(1, "big") * (bits // 8)
    pixels = b"".join(b"\0" + width * (sample + (_SAMPLES[color] - 1) * len(sample) * b"\x80") for _ in range(height))
    # One stored block, because the compressed bytes differ between versions of zlib.
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(pixels), len(pixels) ^ 0xFFFF) + pixels
    data = stored + struct.pack(">I", zlib.adler32(pixels))
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _segment(code: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, code, len(content) + 2) + content


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
