"""What `pipeline/` uses of Pillow beyond its documented interface, and the global variables of it that are changed.

Seen in Pillow 13.0.0. `tests/images/test_pillow_internals.py` fails if an upgrade changes any of it. Nothing else in
`pipeline/` may touch undocumented parts of Pillow.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from PIL import Image


@contextmanager
def without_pixel_limit() -> Iterator[None]:
    """Lift Pillow's limit of 179 megapixels, which would overrule `max_megapixels`. Other code keeps the limit.

    The limit is a global variable: `Image.open` reads it, and there is no argument for it.
    """
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def component_sampling(image: Image.Image) -> list[tuple[int, int]]:
    """Return the sampling factors (across, down) of each component of a JPEG; an empty list for other formats.

    They are in `layer`, an undocumented attribute: a tuple of component id, factors and quantization table for each
    component. `JpegImagePlugin.get_sampling` would not do: it knows only three of the possible combinations.
    """
    return [(across, down) for _, across, down, _ in getattr(image, "layer", ())]


def icc_profile(image: Image.Image) -> bytes | None:
    """Return the ICC profile that Pillow found in a file; empty if there is none, None if the profile is broken.

    `info["icc_profile"]` is not always bytes, which the documentation does not mention. It is None if a segment of a
    JPEG is missing, and a value of another type if the tag of a TIFF has another type.
    """
    profile = image.info.get("icc_profile", b"")
    return profile if isinstance(profile, bytes) else None


def tiff_tags(image: Image.Image) -> Mapping[int, Any]:
    """Return the tags of a TIFF by number; an empty mapping for other formats.

    Only the class for TIFF has the attribute `tag_v2`.
    """
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    return tags


def read_white_is_zero() -> None:
    """Let Pillow open gray TIFF of 16 bits in which 0 is white in big-endian order, too.

    Pillow has no entry for it in the table of the layouts that it opens. As for little-endian order, the levels are not
    inverted: prepare.py does that. An entry of a later version stays.
    """
    from PIL import TiffImagePlugin  # Pillow imports it only for a TIFF.

    TiffImagePlugin.OPEN_INFO.setdefault((b"MM", 0, (1,), 1, (16,), ()), ("I;16B", "I;16B"))
