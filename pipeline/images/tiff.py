"""TIFF files that Pillow opens, and whose pixels it would read wrongly or not at all.

Source: TIFF, revision 6.0. Which layouts Pillow 13.0.0 reads wrongly was found by a comparison with `tifffile`:
`tests/images/test_tiff.py` repeats it for 960 layouts.
"""

from collections.abc import Mapping
from typing import Any

from PIL import Image

from pipeline.images.coding import CAMERA_RAW, CONVERT
from pipeline.images.pillow_internals import tiff_tags
from pipeline.images.rejection import Rejection
from pipeline.sources.suffixes import CAMERA_RAW_SUFFIXES, suffix_of

BIG_ENDIAN = b"MM\0*"
"""The first bytes of a TIFF in big-endian order."""
# Tags, and values of the tag before them.
_SUBFILE_TYPE, _IS_PREVIEW = 254, 1
_BITS_PER_SAMPLE, _COMPRESSION, _UNCOMPRESSED = 258, 259, 1
_PHOTOMETRIC, _WHITE_IS_ZERO, _YCBCR = 262, 0, 6
_FILL_ORDER, _HIGHEST_BIT_FIRST = 266, 1
_PLANES, _SEPARATE = 284, 2
_EXTRA_SAMPLES, _PREMULTIPLIED = 338, 1
_SAMPLE_FORMAT, _SIGNED = 339, 2
_DNG_VERSION = 50706
_PLANES_OF_8_BITS = ("L", "RGB", "RGBA", "CMYK")
"""Modes of images whose uncompressed planes Pillow puts into the right channels, if a sample is one byte."""
_COMPRESSED_PLANES = (*_PLANES_OF_8_BITS, "I;16", "I;16B")
"""Modes of images whose compressed planes libtiff and Pillow put into the right channels."""


def why_refused(image: Image.Image, key: str) -> Rejection | None:
    """Return why the pixels of an open image are not read; None if it is no TIFF, or if it is read correctly.

    `key` is that of the file. A camera raw file is a TIFF, too, and its first image is a small preview.
    """
    tags = tiff_tags(image)
    if not tags:
        return None
    if suffix_of(key) in CAMERA_RAW_SUFFIXES or _DNG_VERSION in tags:
        return Rejection(f"{CAMERA_RAW} is not supported", CONVERT)
    if tags.get(_SUBFILE_TYPE, 0) & _IS_PREVIEW:
        return Rejection("a TIFF whose first image is a preview of another one is not supported", CONVERT)
    if _SIGNED in tags.get(_SAMPLE_FORMAT, ()):
        return Rejection("signed samples have no known range", "save it with 8 or 16 unsigned bits")
    if tags.get(_PLANES) == _SEPARATE and not _reads_planes(image, tags):
        return Rejection(
            "a TIFF with separate planes of this kind is not supported",
            "save it with the samples of a pixel one after another, or as PNG",
        )
    return None


def _reads_planes(image: Image.Image, tags: Mapping[int, Any]) -> bool:
    """Return whether Pillow reads a TIFF correctly that stores each channel as a plane."""
    photometric = tags.get(_PHOTOMETRIC, _WHITE_IS_ZERO)
    if tags.get(_COMPRESSION, _UNCOMPRESSED) != _UNCOMPRESSED:
        return image.mode in _COMPRESSED_PLANES and photometric != _YCBCR
    # Pillow takes each byte of a plane for a sample, and neither inverts it nor turns its bits around.
    is_plain = set(tags.get(_BITS_PER_SAMPLE, ())) == {8} and tags.get(_FILL_ORDER, 1) == _HIGHEST_BIT_FIRST
    is_plain = is_plain and _PREMULTIPLIED not in tags.get(_EXTRA_SAMPLES, ())
    return is_plain and image.mode in _PLANES_OF_8_BITS and photometric not in (_WHITE_IS_ZERO, _YCBCR)
