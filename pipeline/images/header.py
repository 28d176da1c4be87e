"""Read the header of a JPEG or PNG, without decoding a pixel.

It takes a few microseconds per image. With `check: header`, nothing else is checked between reading a file and writing
its record. Sources: ITU T.81 annex B and the JFIF and Adobe markers for JPEG, RFC 2083 for PNG, CIPA DC-008 for EXIF.
"""

import struct
from functools import lru_cache
from typing import Literal, NamedTuple

from pipeline.images import profiles

JPEG_MAGIC, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
# Codes of JPEG markers. KNOWN has the baseline, extended and progressive frames, tables, comments and application data.
SCAN, END, FILL = 0xDA, 0xD9, 0xFF
KNOWN = frozenset({0xC0, 0xC1, 0xC2, 0xC4, SCAN, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})
_LAST_FRAME, _EXIF, _ICC, _ADOBE = 0xC2, 0xE1, 0xE2, 0xEE
# Tables, comments and other data of applications. Nothing in them matters here. The number is that of both bytes.
_PASSED = frozenset(FILL << 8 | code for code in KNOWN - {0xC0, 0xC1, _LAST_FRAME, SCAN, _EXIF, _ICC, _ADOBE})
_FIRST_TABLE, _FIRST_DATA = 0xFFC0, 0xFFE0
"""Tables and frames have markers from the first number on, data of applications and comments from the second one on."""
ICC_MARK = b"ICC_PROFILE\0"
PNG_CRITICAL = frozenset({b"IHDR", b"PLTE", b"IDAT", b"IEND"})
# Bits, color type (gray or RGB), compression and filter. The standard has one compression and one filter.
_PLAIN_PNG = ([8, 0, 0, 0], [8, 2, 0, 0])
_NOT_PLAIN = frozenset({b"tRNS", b"acTL"})
"""These chunks of a PNG mean transparency and animation."""
_MAY_TURN = frozenset({b"eXIf", b"tEXt", b"zTXt", b"iTXt"})
_PROFILES = (b"Raw profile type", b"XML:com.adobe.xmp")
# The entry of the first EXIF directory for an upright image (tag, type, count, value), by the order of its bytes.
_UPRIGHT = {b"II": b"\x12\x01\x03\0\x01\0\0\0\x01\0", b"MM": b"\x01\x12\0\x03\0\0\0\x01\0\x01"}
_segment = struct.Struct(">HH").unpack_from
_frame = struct.Struct(">BHHB").unpack_from
_chunk = struct.Struct(">I4s").unpack_from


class Tables(NamedTuple):
    """The last segments of a JPEG before its scan: its tables and its frame, and no data of applications.

    Files of one program and one size often share them, although their EXIF data and comments differ.
    """

    segments: bytes
    frame: int
    """Offset of the content of the frame."""


class Header(NamedTuple):
    """The header of an image, if it is complete. `height` and `width` are in pixels, as stored."""

    format: Literal["JPEG", "PNG"]
    height: int
    width: int
    is_plain: bool
    """Whether it is 8-bit RGB or gray in sRGB without transparency, which all decoders read in the same way."""
    may_be_turned: bool
    """Whether its metadata may contain an orientation. False is certain."""
    profile: bytes = b""
    """The ICC profile. Empty if there is none, or if a PNG is in sRGB. UNREADABLE if it is broken."""
    tables: Tables | None = None
    """None for a PNG, and for a JPEG that has data of applications after its first table."""


def read_header(encoded: bytes, known: Tables | None = None) -> Header | None:
    """Return the header of a JPEG or PNG; None for another format, or if a part of it is missing or unknown.

    Of a JPEG, this reads the segments before the first scan; of a PNG, the lengths of all chunks. If a JPEG has the
    `known` tables of another one, they are not read again.
    """
    try:
        if encoded.startswith(JPEG_MAGIC):
            return _read_jpeg(encoded, known)
        return _read_png(encoded) if encoded.startswith(PNG_MAGIC) else None
    except (struct.error, IndexError):  # The file ends in the middle of a field.
        return None


def without_profile(encoded: bytes) -> bytes:
    """Return a JPEG or PNG without its ICC profile, because Pillow refuses files with a broken profile.

    The header of the file must be complete.
    """
    if encoded.startswith(JPEG_MAGIC):
        # The segments keep their lengths. Without the name, no decoder takes them for a profile.
        return encoded.replace(ICC_MARK, bytes(len(ICC_MARK)))
    offset = 8
    while offset < len(encoded):
        length, kind = _chunk(encoded, offset)
        after = offset + 12 + length
        if kind == b"IDAT":
            break
        if kind == b"iCCP":
            # The next chunk moves to the offset of the removed one.
            encoded, after = encoded[:offset] + encoded[after:], offset
        offset = after
    return encoded


def _read_jpeg(encoded: bytes, known: Tables | None) -> Header | None:
    offset, frame, odd_colors, may_be_turned = 2, 0, False, False
    tables = last_data = 0
    found: Tables | None = None
    profile_parts: list[bytes] = []
    while True:
        marker, length = _segment(encoded, offset)
        if not tables and _FIRST_TABLE <= marker < _FIRST_DATA:
            tables = offset
            if known and encoded.startswith(known.segments, offset):
                found, frame = known, offset + known.frame
                offset += len(known.segments)
                continue
        if marker in _PASSED:
            offset += 2 + length  # After a length below 2, there is no marker.
            continue
        mark, code = marker >> 8, marker & 0xFF
        if mark != FILL:
            return None
        if code == SCAN:
            break
        if code not in KNOWN:
            # A fill byte may precede any marker.
            if code != FILL:
                return None
            offset += 1
            continue
        if code <= _LAST_FRAME:
            if frame:
                return None
            frame = offset + 4
            offset += 2 + length
            continue
        last_data = offset
        if code == _EXIF:
            segment = encoded[offset + 4 : offset + 2 + length]
            is_exif = segment.startswith(b"Exif\0\0")  # Otherwise, it is XMP.
            may_be_turned |= _exif_may_turn(segment[6:]) if is_exif else b"tiff:Orientation" in segment
        elif code == _ICC:
            if encoded.startswith(ICC_MARK, offset + 4):
                profile_parts.append(encoded[offset + 16 : offset + 2 + length])
        elif code == _ADOBE:
            odd_colors |= encoded.startswith(b"Adobe", offset + 4) and encoded[offset + 15] > 1
        offset += 2 + length
    if not frame or offset + 2 + length > len(encoded):
        return None
    bits, height, width, components = _frame(encoded, frame)
    if not (height and width):
        return None
    # Four components are CMYK or YCCK.
    plain = bits == 8 and components in (1, 3) and not odd_colors
    plain = plain and _divides(encoded[frame + 7 : frame + 6 + 3 * components : 3])
    if not found and last_data < tables:
        found = Tables(encoded[tables:offset], frame - tables)
    if not profile_parts:
        return Header("JPEG", height, width, plain, may_be_turned, b"", found)
    profile = profiles.joined(profile_parts)
    plain = plain and profiles.is_srgb(profile, components == 1)
    return Header("JPEG", height, width, plain, may_be_turned, profile, found)


@lru_cache(64)
def _divides(sampling: bytes) -> bool:
    """Whether the sampling of each component divides the largest one, across and down. Decoders refuse others."""
    across, down = [byte >> 4 for byte in sampling], [byte & 15 for byte in sampling]
    return all(0 < samples <= 4 and max(axis) % samples == 0 for axis in (across, down) for samples in axis)


def _exif_may_turn(tiff: bytes) -> bool:
    """Whether the first directory has an orientation other than upright. True if that is unknown."""
    upright = _UPRIGHT.get(tiff[:2])
    if upright is None:
        return True
    order: Literal["little", "big"] = "little" if tiff[:1] == b"I" else "big"
    start = int.from_bytes(tiff[4:8], order) + 2
    entries = tiff[start : start + 12 * int.from_bytes(tiff[start - 2 : start], order)]
    return upright[:2] in entries and upright not in entries


def _read_png(encoded: bytes) -> Header | None:
    length, kind = _chunk(encoded, 8)
    width, height, *kinds, interlaced = struct.unpack_from(">IIBBBBB", encoded, 16)
    if (length, kind) != (13, b"IHDR") or not (height and width):
        return None
    plain, may_be_turned, has_data = kinds in _PLAIN_PNG and interlaced <= 1, False, False
    offset, profile = 33, b""
    while True:
        length, kind = _chunk(encoded, offset)
        if kind == b"IDAT":
            has_data = True
        elif kind == b"IEND":
            break
        elif kind in _NOT_PLAIN:
            plain = False
        elif kind == b"iCCP":
            chunk = encoded[offset + 8 : offset + 8 + length]
            if not profiles.is_srgb_chunk(chunk, kinds[1] == 0):
                plain, profile = False, profiles.inflated(chunk)
        elif kind in _MAY_TURN:
            data = encoded[offset + 8 : offset + 8 + length]
            may_be_turned |= _exif_may_turn(data) if kind == b"eXIf" else data.startswith(_PROFILES)
        # A lower-case first letter marks a chunk that a decoder may skip. No decoder may skip an unknown critical
        # chunk.
        elif not kind[0] & 0x20 and kind not in PNG_CRITICAL:
            return None
        offset += 12 + length
    whole = has_data and offset + 12 <= len(encoded)
    return Header("PNG", height, width, plain, may_be_turned, profile) if whole else None
