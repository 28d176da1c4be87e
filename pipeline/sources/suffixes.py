"""Suffixes of image files: those that are read, and those that are listed only to be rejected."""

import os

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


def suffix_of(key: str) -> str:
    """Return the suffix of a key in lower case, with its dot; empty if it has none."""
    return os.path.splitext(key)[1].lower()  # noqa: PTH122 - a key, not a path
