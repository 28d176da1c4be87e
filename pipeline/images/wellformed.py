"""Check the structure of a JPEG or PNG, segment by segment.

Pillow is lenient: it accepts a missing end, a wrong checksum inside a PNG, and a foreign segment. TensorFlow is not,
and one such file ends every epoch. So only a file whose structure is sound keeps its bytes. The pixels of any other
file are encoded again. Sources: ITU T.81 annex B for JPEG, RFC 2083 for PNG.
"""

import re
import struct
import zlib

from pipeline.images.header import END, KNOWN, PNG_CRITICAL, SCAN

# A marker is 0xff, which may be repeated, and a code that is neither stuffing (00) nor a restart (d0 to d7).
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)
# A marker, for the search through a scan. Without the group and the repetition, the search is sixteen times faster.
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7]", re.DOTALL)
# Offset of the first pixel and distance of the pixels of each pass, across and down: one pass, or the seven of Adam7.
_PASSES = (
    ((0, 0, 1, 1),),
    ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_CHUNK = 1 << 20
"""At most this many bytes are inflated at once."""
_OF_PIXELS = PNG_CRITICAL | {b"tRNS"}
"""These chunks of a PNG decide its pixels."""


def is_whole_jpeg(encoded: bytes) -> bool:
    """Whether every segment is known and whole, and the scans run up to the end marker. What follows it is ignored."""
    offset = 2
    while marker := _MARKER.match(encoded, offset):
        code, offset = marker[1][0], marker.end()
        if code == END:
            return True
        length = int.from_bytes(encoded[offset : offset + 2], "big")
        offset += length
        # A length includes its own two bytes, so a smaller one is damage.
        if code not in KNOWN or length < 2 or offset > len(encoded):
            return False
        if code == SCAN:
            after = _AFTER_SCAN.search(encoded, offset)
            offset = after.start() if after else len(encoded)
    return False


def is_whole_png(encoded: bytes) -> bool:
    """Whether every chunk is whole with a right checksum, in order, and the data holds as many bytes as the pixels.

    Supports only 8-bit RGB and 8-bit gray.
    """
    offset = 8
    data: list[bytes] = []
    while offset + 12 <= len(encoded):
        length, kind = struct.unpack_from(">I4s", encoded, offset)
        checked = encoded[offset + 4 : offset + 8 + length]
        if zlib.crc32(checked).to_bytes(4, "big") != encoded[offset + 8 + length : offset + 12 + length]:
            return False
        critical = not kind[0] & 0x20
        # The header must be the first chunk, and the only one of its kind.
        if (kind == b"IHDR") != (offset == 8) or (critical and kind not in PNG_CRITICAL):
            return False
        if kind == b"IEND":
            size = _pixel_bytes(encoded)
            return _inflated_size(data, size) == size
        if kind == b"IDAT":
            data.append(checked[4:])
        offset += 12 + length
    return False


def has_sound_pixels(encoded: bytes) -> bool:
    """Whether all chunks of a PNG that decide its pixels have a right checksum. Pillow does not look at that of IDAT.

    A decoder notices if one is missing or cut.
    """
    offset = 8
    while offset + 12 <= len(encoded):
        length, kind = struct.unpack_from(">I4s", encoded, offset)
        if kind in _OF_PIXELS and offset + 12 + length <= len(encoded):
            checksum = zlib.crc32(memoryview(encoded)[offset + 4 : offset + 8 + length])
            if checksum.to_bytes(4, "big") != encoded[offset + 8 + length : offset + 12 + length]:
                return False
        if kind == b"IEND":
            break
        offset += 12 + length
    return True


def _inflated_size(parts: list[bytes], max_size: int) -> int:
    """Return the size of the inflated parts of one zlib stream, or -1 if the stream is damaged.

    Stops after `max_size` bytes, because half a megabyte may inflate to hundreds of megabytes.
    """
    inflate, size = zlib.decompressobj(), 0
    try:
        for part in parts:
            while part:
                size += len(inflate.decompress(part, _CHUNK))
                if size > max_size:
                    return -1
                part = inflate.unconsumed_tail
        size += len(inflate.flush())
    except zlib.error:
        return -1
    # `eof` is true only after the checksum of the stream was verified. Data after its end is foreign.
    return size if inflate.eof and not inflate.unused_data else -1


def _pixel_bytes(encoded: bytes) -> int:
    """Return the size of the pixels by the header: 3 bytes (gray: 1) per pixel, and 1 per row of each pass."""
    width, height, _, color = struct.unpack_from(">IIBB", encoded, 16)
    interlaced = encoded[28] == 1
    channels = 1 if color == 0 else 3
    total = 0
    for left, top, across, down in _PASSES[interlaced]:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        total += rows * (1 + channels * columns) if columns > 0 and rows > 0 else 0
    return total
