"""Is this image usable, and what bytes go into the record?

Training must never meet a foreign byte: any InvalidArgumentError in a `map` ends the epoch, and TensorFlow ignores
EXIF rotation and cannot decode several formats at all. So each image is decoded once here, completely. A JPEG or PNG
that is 8-bit RGB and upright keeps its bytes; anything else is turned into one that is.
"""

import io
import struct
from dataclasses import dataclass

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

READABLE = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
JPEG_QUALITY = 95
_JPEG = ("JPEG", "MPO")  # phones write MPO: a JPEG with another one behind it, which every decoder leaves alone
# `examine` checks the header itself: Pillow's own limit of 179 megapixels would overrule `max_megapixels`.
Image.MAX_IMAGE_PIXELS = None
_ADVICE = "replace the file, or remove it from the source"


@dataclass(frozen=True, slots=True)
class UsableImage:
    """An 8-bit RGB image as JPEG or PNG, upright. `height` and `width` are in pixels."""

    encoded: bytes
    format: str
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an image cannot be used, in words, and what could be done."""

    reason: str
    advice: str = _ADVICE


def examine(encoded: bytes, max_pixels: int) -> UsableImage | Rejection:
    """Decode an image completely and return what the record should hold of it, or why it holds nothing.

    `max_pixels` is checked on the header, before memory is taken for the pixels.
    """
    if not encoded:
        return Rejection("the file is empty")
    try:
        with Image.open(io.BytesIO(encoded), formats=READABLE) as image:
            if image.width * image.height > max_pixels:
                return _too_large(image.width, image.height, max_pixels)
            return _usable(image, encoded)
    except UnidentifiedImageError:
        return Rejection(f"not an image: it starts with {encoded[:8]!r}")
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error) as error:
        return Rejection(f"cannot be decoded: {error}")


def _too_large(width: int, height: int, max_pixels: int) -> Rejection:
    return Rejection(
        f"{width} x {height} pixels are more than {max_pixels / 1e6:g} megapixels", "shrink it, or raise max_megapixels"
    )


def _usable(image: Image.Image, encoded: bytes) -> UsableImage | Rejection:
    image.load()
    if _keeps_its_bytes(image, encoded):
        return UsableImage(encoded, "PNG" if image.format == "PNG" else "JPEG", image.height, image.width)
    lossy = image.format in (*_JPEG, "WEBP")
    return _encode(_to_rgb(ImageOps.exif_transpose(image)), "JPEG" if lossy else "PNG")


def _keeps_its_bytes(image: Image.Image, encoded: bytes) -> bool:
    if image.mode != "RGB" or image.getexif().get(ExifTags.Base.Orientation, 1) not in (0, 1):
        return False
    if image.format == "PNG":
        bits = encoded[24]  # of a channel, in the header: Pillow says RGB for 16 bits too
        return bits == 8 and "transparency" not in image.info and not getattr(image, "is_animated", False)
    return image.format in _JPEG


def _to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB: transparency over white, 16 bits scaled to 8 (Pillow's own conversion would clip them)."""
    if image.mode.startswith("I") or image.mode == "F":
        return _scaled_to_8_bits(image).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        transparent = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), transparent).convert("RGB")
    return image.convert("RGB")


def _scaled_to_8_bits(image: Image.Image) -> Image.Image:
    import numpy as np

    pixels = np.asarray(image, dtype=np.float64)
    full = 65_535.0 if image.mode.startswith("I;16") else max(float(pixels.max()), 255.0)
    return Image.fromarray((pixels * (255.0 / full)).clip(0, 255).astype(np.uint8), "L")


def _encode(image: Image.Image, format: str) -> UsableImage:  # noqa: A002 - the field's own word
    buffer = io.BytesIO()
    if format == "JPEG":
        image.save(buffer, "JPEG", quality=JPEG_QUALITY)
    else:
        image.save(buffer, "PNG", compress_level=3)
    return UsableImage(buffer.getvalue(), format, image.height, image.width)
