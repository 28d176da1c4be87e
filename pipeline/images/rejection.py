"""Why an image cannot be used, and which files are rejected without being read.

This module is light to import, because the listing uses it too.
"""

import os
from dataclasses import dataclass

from pipeline.sources import MISSING

_ADVICE = "replace the file, or remove it from the source"
READ_SUFFIXES = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".jpe": "JPEG",
    ".jfif": "JPEG",
    ".mpo": "JPEG",
    ".png": "PNG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".avif": "AVIF",
}
"""Suffixes of the images that are read, in lower case, each with its format."""
_NEW_FORMATS = (".heic", ".heif", ".hif", ".jxl", ".jxr", ".jp2", ".j2k", ".jpx", ".jpf", ".jls")
_DRAWINGS = (".svg", ".svgz", ".eps", ".ai", ".psd", ".psb", ".xcf", ".ico", ".icns", ".tga", ".dds", ".exr", ".hdr")
_CAMERA_RAW = (
    ".3fr .arw .cr2 .cr3 .crw .dcr .dng .erf .fff .iiq .kdc .mef .mos .mrw .nef .nrw .orf .pef .raf .raw .rw2 .rwl "
    ".sr2 .srf .srw .x3f"
)
UNREAD_SUFFIXES = frozenset({*_NEW_FORMATS, *_DRAWINGS, *_CAMERA_RAW.split()})
"""Suffixes of images that Tenfold does not read. They are listed and rejected, so that the data gate counts them."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an image cannot be used, in words, and what could be done."""

    reason: str
    advice: str = _ADVICE


ABSENT = Rejection("the source lists it, and there is no such file", "bring the file, or take it off the list")


def suffix_of(key: str) -> str:
    """Return the suffix of a key in lower case, with its dot; empty if it has none."""
    return os.path.splitext(key)[1].lower()  # noqa: PTH122 - a key, not a path


def why_unread(key: str, size: int, max_bytes: int) -> Rejection | None:
    """Return why a listed file is rejected without being read; None if it must be read.

    `size` and `max_bytes` are in bytes. A `size` of MISSING means that the file does not exist.
    """
    if size == MISSING:
        return ABSENT
    suffix = suffix_of(key)
    if suffix in UNREAD_SUFFIXES:
        return Rejection(f"{suffix} images are not supported", "convert it to JPEG or PNG")
    if size > max_bytes:
        return Rejection(
            f"the file has {size / 1e6:,.1f} MB, more than {max_bytes / 1e6:g} MB",
            "shrink it, or raise max_file_megabytes",
        )
    return None
