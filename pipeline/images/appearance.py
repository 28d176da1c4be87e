"""Describe the appearance of an image in two numbers: its brightness for drift, its hash for near-duplicates."""

from operator import mul

from PIL import Image

THUMBNAIL = 64
"""Shorter side in pixels that is sufficient for both numbers: the perceptual hash itself shrinks to 32."""


def luminance(image: Image.Image) -> Image.Image:
    """Return the image in gray, shrunk until its shorter side is just above THUMBNAIL."""
    factor = min(image.size) // THUMBNAIL
    return (image.reduce(factor) if factor > 1 else image).convert("L")


def decode(image: Image.Image, for_hash: bool) -> Image.Image:
    """Decode only the luminance of an image that was opened; a JPEG at a fraction of its size.

    Raises an error if the image is damaged: libjpeg reads the entropy code of the whole file at any size.
    """
    side = THUMBNAIL if for_hash else 1
    # With this, libjpeg decodes only the luminance of a JPEG, at a fraction of the size.
    image.draft("L", (side, side))
    return luminance(image)


def brightness(gray: Image.Image) -> float:
    """Return the mean of the luminance, 0 to 255."""
    # A loop in Python would take as long as opening a tiny PNG.
    total: int = sum(map(mul, range(256), gray.histogram()))
    return total / (gray.width * gray.height)


def perceptual_hash(gray: Image.Image) -> int:
    """Return the 64 bits of imagehash.phash. Images that look alike differ in few bits."""
    # The import takes a third of a second, because it loads SciPy. Most tasks need no hash.
    import imagehash

    return int(str(imagehash.phash(gray)), 16)
