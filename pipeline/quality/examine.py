"""Is this image usable, and what bytes go into the record?

Training must never meet a foreign byte: any InvalidArgumentError in a `map` ends the epoch, and TensorFlow ignores
EXIF rotation and cannot decode several formats at all. So each image is decoded once here, completely. A JPEG or PNG
that is 8-bit RGB, upright and sound in its structure keeps its bytes; of anything else the pixels are encoded anew.
"""

import io
import warnings
from dataclasses import dataclass

from PIL import ExifTags, Image, UnidentifiedImageError

from pipeline.quality.wellformed import is_whole_jpeg, is_whole_png

READABLE = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
JPEG_QUALITY = 95
_JPEG = ("JPEG", "MPO")  # phones write MPO: a JPEG with another one behind it, which every decoder leaves alone
# `examine` checks the header itself: Pillow's own limit of 179 megapixels would overrule `max_megapixels`.
Image.MAX_IMAGE_PIXELS = None
_ADVICE = "replace the file, or remove it from the source"
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What turns an image upright, by its EXIF orientation."""


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
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(encoded), formats=READABLE) as image:
            return _examined(image, encoded, max_pixels)
    except UnidentifiedImageError:
        return Rejection(f"not an image: it starts with {encoded[:8]!r}")
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - foreign bytes make decoders raise anything; one image must not stop all
        return Rejection(f"cannot be decoded: {error}")


def _examined(image: Image.Image, encoded: bytes, max_pixels: int) -> UsableImage | Rejection:
    if image.width * image.height > max_pixels:
        size = f"{image.width} x {image.height} pixels"
        return Rejection(f"{size} are more than {max_pixels / 1e6:g} megapixels", "shrink it, or raise max_megapixels")
    if image.mode in ("F", "I"):
        return Rejection(f"32 bits a pixel (mode {image.mode}) have no known range", "save it with 8 or 16 bits")
    image.load()
    turn = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    if turn is None and _is_sound_rgb(image, encoded):
        return UsableImage(encoded, "PNG" if image.format == "PNG" else "JPEG", image.height, image.width)
    lossy = image.format in (*_JPEG, "WEBP")
    rgb = _to_rgb(image)
    return _encode(rgb.transpose(turn) if turn is not None else rgb, "JPEG" if lossy else "PNG")


def _is_sound_rgb(image: Image.Image, encoded: bytes) -> bool:
    if image.mode != "RGB":
        return False
    if image.format == "PNG":
        bits = encoded[24]  # of a channel, in the header: Pillow says RGB for 16 bits too
        plain = bits == 8 and "transparency" not in image.info and not getattr(image, "is_animated", False)
        return plain and is_whole_png(encoded)
    return image.format in _JPEG and is_whole_jpeg(encoded)


def _to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB: transparency over white, 16 bits scaled to 8 (Pillow's own conversion would clip them)."""
    if image.mode.startswith("I;16"):
        return _highest_8_bits(image).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        transparent = image.convert("RGBA")
        opaque = Image.new("RGB", image.size, "white")
        opaque.paste(transparent, mask=transparent.getchannel("A"))
        return opaque
    return image.convert("RGB")


def _highest_8_bits(image: Image.Image) -> Image.Image:
    import numpy as np

    pixels = np.asarray(image).astype(np.uint16, copy=False)
    return Image.fromarray((pixels // 257).astype(np.uint8))


def _encode(image: Image.Image, form: str) -> UsableImage:
    buffer = io.BytesIO()
    if form == "JPEG":
        # Nothing of the old file's metadata: it may be what was broken.
        image.save(buffer, "JPEG", quality=JPEG_QUALITY, exif=b"")
    else:
        image.save(buffer, "PNG", compress_level=3)
    return UsableImage(buffer.getvalue(), form, image.height, image.width)
