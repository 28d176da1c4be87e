"""Prepare pixels for the record: convert to 8-bit RGB in sRGB, crop to the box, shrink, and encode once."""

import io
import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from PIL import Image

from pipeline.images import profiles
from pipeline.images.pillow_internals import tiff_tags
from pipeline.sources import Box

JPEG_QUALITY = 95
_RESAMPLING = Image.Resampling.BICUBIC
"""Images are resized with this filter, which Pillow antialiases when it shrinks.

On photographs, the result differs from that of LANCZOS by 43 to 49 dB (PSNR), and decoding, resizing and encoding
together are a fifth faster.
"""
_GAP = 2.0
"""An image is first shrunk by halves, which is cheap, as long as it stays this many times larger than needed.

The filter hides the difference: at twice the size, the result differs from that of the full resolution by 45 dB or more
(PSNR). A JPEG of quality 95 itself differs from its original by 33 to 38 dB.
"""
_GRAY_MODES = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N")
# Modes of profiles that fit an image of other modes than RGB and gray. LAB is not the color of a device.
_PROFILE_MODES: dict[str, tuple[str, ...]] = {"CMYK": ("CMYK",), "LAB": ()}
# Tags of a TIFF, and a value of the second tag.
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0

Form = Literal["JPEG", "PNG", "RAW"]
"""Forms of an image in a record."""
ProfileUse = Literal["", "converted", "ignored"]
"""How an ICC profile was used. Empty if there is none or it is sRGB. A profile that cannot be used is ignored."""


class InSrgb(NamedTuple):
    """The pixels of an image, 8-bit RGB in sRGB, and how its ICC profile was used."""

    pixels: Image.Image
    profile_use: ProfileUse


class Crop(NamedTuple):
    """A rectangle in whole pixels of the upright image; `right` and `bottom` are exclusive."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.right - self.left, self.bottom - self.top


def clipped(box: Box, crop: Crop) -> Box | None:
    """Return the part of a box that is in `crop`; None if there is none, or if the box has no area."""
    inside = box._replace(
        xmin=max(box.xmin, crop.left),
        ymin=max(box.ymin, crop.top),
        xmax=min(box.xmax, crop.right),
        ymax=min(box.ymax, crop.bottom),
    )
    return inside if inside.xmin < inside.xmax and inside.ymin < inside.ymax else None


def around(box: Box, whole: Crop) -> Crop:
    """Return the crop of all pixels of an image that a box touches."""
    return Crop(
        math.floor(max(box.xmin, whole.left)),
        math.floor(max(box.ymin, whole.top)),
        math.ceil(min(box.xmax, whole.right)),
        math.ceil(min(box.ymax, whole.bottom)),
    )


def as_fractions(boxes: Iterable[Box], crop: Crop) -> tuple[Box, ...]:
    """Return the boxes clipped to `crop`, as fractions (0 to 1) of it, without those outside."""
    width, height = crop.size
    return tuple(
        Box(
            (box.xmin - crop.left) / width,
            (box.ymin - crop.top) / height,
            (box.xmax - crop.left) / width,
            (box.ymax - crop.top) / height,
            box.label,
        )
        for box in (clipped(box, crop) for box in boxes)
        if box
    )


def shrunk(width: int, height: int, shorter_side: int) -> tuple[int, int]:
    """Return width and height for a shorter side of `shorter_side` pixels; unchanged if it is not longer than that."""
    scale = shorter_side / min(width, height)
    return (max(1, round(width * scale)), max(1, round(height * scale))) if scale < 1 else (width, height)


def draft(image: Image.Image, scale: float) -> float:
    """Let a JPEG be decoded at a half, a quarter or an eighth of its size, but not smaller than `scale` needs.

    Returns the size of the decoded image as a fraction of the full size. The whole file is read all the same, so damage
    is found: only the inverse transform becomes cheaper.
    """
    size = (math.ceil(image.width * scale * _GAP), math.ceil(image.height * scale * _GAP))
    # `draft` changes the size of the image. It returns the mode and the box of the original in the new size, if it can
    # shrink.
    full_width = image.width
    drafted = image.draft(None, size) if scale * _GAP < 1 else None
    return drafted[1][2] / full_width if drafted else 1.0


def to_srgb(image: Image.Image, profile: bytes) -> InSrgb:
    """Convert an image with this ICC profile, which may be empty, to sRGB.

    If the profile is broken or does not fit the image, the result is the one of `to_rgb`.
    """
    is_gray = image.mode in _GRAY_MODES
    # A profile for CMYK always needs a conversion.
    if not profile or (image.mode != "CMYK" and profiles.is_srgb(profile, is_gray)):
        return InSrgb(to_rgb(image), "")
    for mode in _PROFILE_MODES.get(image.mode, ("L", "RGB") if is_gray else ("RGB",)):
        if transform := profiles.transform_of(profile, mode):
            # The transform takes 8-bit pixels without transparency. CMYK must not become RGB before it.
            pixels = image if mode == "CMYK" else to_rgb(image)
            return InSrgb(transform.apply(pixels.getchannel("R") if mode == "L" else pixels), "converted")
    return InSrgb(to_rgb(image), "ignored")


def to_rgb(image: Image.Image) -> Image.Image:
    """Return 8-bit RGB: transparency over white, more bits scaled to 8 (Pillow's own conversion would clip them)."""
    if image.mode.startswith("I;16"):
        return _highest_8_bits(image).convert("RGB")
    if image.mode == "La":  # Premultiplied alpha, which Pillow converts only to LA.
        image = image.convert("LA")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        transparent = image.convert("RGBA")
        opaque = Image.new("RGB", image.size, "white")
        opaque.paste(transparent, mask=transparent.getchannel("A"))
        return opaque
    return image.convert("RGB")


def _highest_8_bits(image: Image.Image) -> Image.Image:
    import numpy as np

    # Pillow does not scale the 12 bits of a TIFF. It does not invert a TIFF with more than 8 bits in which 0 is white.
    tags = tiff_tags(image)
    max_level = 2 ** tags.get(_BITS_PER_SAMPLE, (16,))[0] - 1
    # The table has the nearest of 255 levels for each level of the image.
    levels = ((np.arange(max_level + 1) * 255 + max_level // 2) // max_level).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        levels = 255 - levels
    if "transparency" in image.info:
        # The transparent level becomes white, as the transparency of other modes does.
        levels[image.info["transparency"]] = 255
    return Image.fromarray(levels[np.asarray(image)])


def crop_and_resize(image: Image.Image, crop: Crop, scale: float, size: tuple[int, int]) -> Image.Image:
    """Return the crop as an image of `size`. The image was decoded at `scale` of its full resolution."""
    if size == crop.size:
        # Without resizing, every pixel stays as it is.
        return image.crop(crop) if size != image.size else image
    left, top, right, bottom = (edge * scale for edge in crop)
    # A size that was rounded may end a fraction of a pixel outside of the image, which `resize` refuses.
    part = (left, top, min(right, image.width), min(bottom, image.height))
    return image.resize(size, _RESAMPLING, part, _GAP)


def encode(image: Image.Image, form: Form, has_full_chroma: bool) -> bytes:
    """Return an 8-bit RGB image as a JPEG or PNG file, or for RAW its pixels: height x width x 3 bytes.

    A JPEG stores color at full resolution, or at half the resolution in both directions. No metadata of the source file
    is kept, because it may be broken, and because LittleCMS writes the time into the profiles that it makes.
    """
    if form == "RAW":
        return image.tobytes()
    buffer = io.BytesIO()
    if form == "JPEG":
        subsampling = 0 if has_full_chroma else 2
        image.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=subsampling, exif=b"", comment=b"")
    else:
        image.save(buffer, "PNG", compress_level=3, icc_profile=None)
    return buffer.getvalue()
