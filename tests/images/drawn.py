"""Draw small pictures, encode them, and examine the files."""

import io
import random
from collections.abc import Sequence

import numpy as np
from PIL import Image

from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.images.rejection import Rejection
from pipeline.sources import Box


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    """Return the image as a file of a format."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def animated(image: Image.Image, form: str, **options: object) -> bytes:
    """Return an animation of two frames, the image and a black one."""
    return encoded(image, form, save_all=True, append_images=[Image.new("RGB", image.size)], **options)


def picture(mode: str = "RGB") -> Image.Image:
    """Draw a picture, 8 pixels high and 12 wide, red on the left and blue on the right."""
    pixels = np.zeros((8, 12, 3), np.uint8)
    pixels[:, :6, 0] = pixels[:, 6:, 2] = 200
    return Image.fromarray(pixels).convert(mode)


def scene(width: int, height: int, seed: int = 0) -> Image.Image:
    """Draw a picture with the detail of a photograph: soft shapes with a little noise."""
    rng = random.Random(seed)
    soft = Image.frombytes("RGB", (8, 6), rng.randbytes(8 * 6 * 3)).resize((width, height), Image.Resampling.BICUBIC)
    noise = Image.frombytes("RGB", (width, height), rng.randbytes(width * height * 3))
    return Image.blend(soft, noise, 0.1)


def turned(image: Image.Image, orientation: int, form: str = "JPEG", **options: object) -> bytes:
    """Return the image as a file with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, form, exif=exif, **({"quality": 95} if form == "JPEG" else {}), **options)


def usable(image: bytes, rules: Rules, boxes: Sequence[Box] = ()) -> UsableImage:
    """Examine an image that must be usable."""
    found = examine(image, rules, boxes)
    assert isinstance(found, UsableImage), found
    return found


def rejection(image: bytes, rules: Rules, boxes: Sequence[Box] = ()) -> Rejection:
    """Examine an image that must be rejected."""
    found = examine(image, rules, boxes)
    assert isinstance(found, Rejection), found
    return found


def decoded(image: UsableImage) -> np.ndarray:
    """Return the pixels of a record, height x width x 3."""
    if image.format == "RAW":
        return np.frombuffer(image.encoded, np.uint8).reshape(image.height, image.width, 3)
    return np.asarray(Image.open(io.BytesIO(image.encoded)))
