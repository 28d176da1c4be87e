"""ICC profiles: which of them count as sRGB, and the transform to sRGB for the others.

A profile is judged by its effect, not by its name. Known colors are converted with it to sRGB, and the largest change
of a level decides. This compares matrices, tone curves and tables, whatever program wrote the profile.
"""

import io
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from itertools import product
from typing import TYPE_CHECKING

from PIL import Image, ImageChops
from xxhash import xxh3_128_intdigest

if TYPE_CHECKING:
    from PIL.ImageCms import ImageCmsTransform

UNREADABLE = b"?"
"""Stands for a profile with a missing part. No reader can open it."""
TOLERANCE = {"RGB": 2, "L": 9}
"""A profile counts as sRGB if it changes a level (of 255) by at most this much.

None of ten sRGB profiles of cameras and programs changes a level by more than 1. The primaries of sRGB with a gamma of
2.2 change it by 9. The limit for gray is higher, so that the usual Gray Gamma 2.2 counts as sRGB (9 at the dark end, 2
on average). Encoding a JPEG again changes as much. Gamma 2.0 and 2.3 change a level by 10, gamma 1.8 by 19, and a dot
gain of 20% by 23.
"""
_MAX_PARTS = 255
"""A profile in a JPEG has at most this many segments, because their number is one byte."""
_MAX_BYTES = 4 << 20
"""A profile has at most this many bytes. No profile in use is this long."""
_REMEMBERED = 4096
"""At most this many answers are remembered. The images of a collection share a few profiles."""
_TRANSFORMS = 16
"""At most this many transforms are remembered.

Building one takes as long as applying it to a photograph. 600 photographs had twelve profiles that need one.
"""
_LEVELS = range(0, 256, 51)
"""The grid of colors has these levels of each channel."""
_Judge = Callable[[bytes, bool], bool]


def joined(parts: Sequence[bytes]) -> bytes:
    """Return the profile that the APP2 segments of a JPEG hold.

    Args:
        parts: number, count and data of each segment, as bytes, in the order of the file.
    """
    if len(parts) == 1 and parts[0][1:2] == b"\1":
        return parts[0][2:]
    if len(parts) > _MAX_PARTS:
        return UNREADABLE
    # The segments may be in any order. Each begins with its number.
    ordered = sorted(parts)
    numbers = {part[0] for part in ordered if part[1:2] == bytes([len(ordered)])}
    return b"".join(part[2:] for part in ordered) if len(numbers) == len(ordered) else UNREADABLE


def _remember(judge: _Judge) -> _Judge:
    """Remember answers by XXH3. Python's own hash takes longer than the rest of the work on a header."""
    answers: dict[tuple[int, bool], bool] = {}

    @wraps(judge)
    def remembered(profile: bytes, is_gray: bool) -> bool:
        key = xxh3_128_intdigest(profile), is_gray
        answer = answers.get(key)
        if answer is None:
            if len(answers) >= _REMEMBERED:
                answers.clear()
            answer = answers[key] = judge(profile, is_gray)
        return answer

    return remembered


@_remember
def is_srgb(profile: bytes, is_gray: bool) -> bool:
    """Whether the pixels of an image with this profile can be read as sRGB without a visible difference."""
    # A gray image may have a profile for color, of which only the curves count.
    for mode in ("L", "RGB") if is_gray else ("RGB",):
        if transform := transform_of(profile, mode):
            colors = known_colors("L").convert(mode) if is_gray else known_colors("RGB")
            changed = ImageChops.difference(colors.convert("RGB"), transform.apply(colors))
            return max(changed.tobytes()) <= TOLERANCE[mode]
    return False


@_remember
def is_srgb_chunk(chunk: bytes, is_gray: bool) -> bool:
    """Return the same as `is_srgb` for the data of an iCCP chunk of a PNG."""
    return is_srgb(inflated(chunk), is_gray)


def inflated(chunk: bytes) -> bytes:
    """Return the profile in an iCCP chunk of a PNG: a name, a zero, the method 0 and the deflated profile."""
    method_and_data = chunk.partition(b"\0")[2]
    inflate = zlib.decompressobj()
    try:
        # The limit bounds the memory: a chunk may inflate to a thousand times its size.
        profile = inflate.decompress(method_and_data[1:], _MAX_BYTES)
    except zlib.error:
        return UNREADABLE
    return profile if inflate.eof and method_and_data[0] == 0 else UNREADABLE


@lru_cache(_TRANSFORMS)
def transform_of(profile: bytes, mode: str) -> "ImageCmsTransform | None":
    """Return the transform of images of a mode (L, RGB or CMYK) to sRGB; None if the profile is broken or does not fit.

    It is relative colorimetric with black point compensation: white stays white, and no shadow is clipped.
    """
    if len(profile) > _MAX_BYTES:
        return None
    from PIL import ImageCms  # Few images need this import.

    try:
        return ImageCms.ImageCmsTransform(
            input=ImageCms.ImageCmsProfile(io.BytesIO(profile)),
            output=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")),
            input_mode=mode,
            output_mode="RGB",
            intent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (OSError, ValueError, ImageCms.PyCMSError):
        return None


@lru_cache(2)
def known_colors(mode: str) -> Image.Image:
    """Return all grays, and for RGB a grid of colors."""
    pixels = bytes(range(256)) if mode == "L" else b"".join(bytes([level] * 3) for level in range(256))
    if mode == "RGB":
        pixels += bytes(level for color in product(_LEVELS, repeat=3) for level in color)
    return Image.frombytes(mode, (len(pixels) // len(mode), 1), pixels)
