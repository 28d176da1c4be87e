"""Suffixes of image files. They decide which files are listed as images. The content of a file decides what it is."""

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
    ".heic": "HEIF",
    ".heif": "HEIF",
    ".hif": "HEIF",
}
"""Suffixes of the formats that are read, in lower case, each with its format. HEIF needs an optional package."""
CAMERA_RAW_SUFFIXES = frozenset(
    {
        *(
            ".3fr",
            ".arw",
            ".cr2",
            ".cr3",
            ".crw",
            ".dcr",
            ".dng",
            ".erf",
            ".fff",
            ".iiq",
            ".kdc",
            ".mef",
            ".mos",
            ".mrw",
        ),
        *(".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f"),
    }
)
"""Suffixes of the files that cameras write from the values of their sensors."""
_NEW_FORMATS = (".jxl", ".jxr", ".jp2", ".j2k", ".jpx", ".jpf", ".jls")
_DRAWINGS = (".svg", ".svgz", ".eps", ".ai", ".psd", ".psb", ".xcf", ".ico", ".icns", ".tga", ".dds", ".exr", ".hdr")
OTHER_SUFFIXES = CAMERA_RAW_SUFFIXES | {*_NEW_FORMATS, *_DRAWINGS}
"""Suffixes of formats that Tenfold does not read. Such files are listed, so that the data gate counts them as rejected.
A file is read if its content has another format."""


def suffix_of(key: str) -> str:
    """Return the suffix of a key in lower case, with its dot; empty if it has none."""
    # `os.path.splitext` takes twice as long, for each image.
    stem, dot, end = key.rpartition("/")[2].rpartition(".")
    return (dot + end).lower() if stem.strip(".") else ""


def has_suffix(name: str) -> bool:
    """Whether the name of a file has a suffix. `suffix_of`, which returns it, takes several times as long."""
    return "." in name.lstrip(".")
