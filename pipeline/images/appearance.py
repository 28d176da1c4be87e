"""What an image looks like, in two numbers: for drift between versions, and for pictures that are there twice."""

from operator import mul

from PIL import Image

THUMBNAIL = 64
"""Shorter side in pixels that is enough for both: the perceptual hash shrinks to 32 itself."""


def luminance(image: Image.Image) -> Image.Image:
    """The image in gray, shrunk until its shorter side is just above THUMBNAIL."""
    factor = min(image.size) // THUMBNAIL
    return (image.reduce(factor) if factor > 1 else image).convert("L")


def decode(image: Image.Image, for_hash: bool) -> Image.Image:
    """Decode an image that was only opened, to no more than its luminance; a JPEG at a fraction of its size.

    Raises where it is damaged: libjpeg reads the entropy code of the whole file at any size.
    """
    side = THUMBNAIL if for_hash else 1
    image.draft("L", (side, side))
    return luminance(image)


def brightness(gray: Image.Image) -> float:
    """Mean of the luminance, 0 to 255."""
    total: int = sum(map(mul, range(256), gray.histogram()))  # a loop here takes as long as opening a tiny PNG
    return total / (gray.width * gray.height)


def perceptual_hash(gray: Image.Image) -> int:
    """The 64 bits of imagehash.phash; of images that look alike a few differ."""
    import imagehash  # with SciPy: a third of a second

    return int(str(imagehash.phash(gray)), 16)
