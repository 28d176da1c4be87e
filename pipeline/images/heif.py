"""HEIC, the format of photographs of phones, if the package pillow-heif is installed. The only module that uses it.

The container says how an image is turned, and libheif turns it. The orientation in the EXIF data of a HEIC only repeats
that, or is wrong, so it is ignored, as Pillow ignores that of an AVIF. Sources: ISO/IEC 14496-12 (the box of brands),
ISO/IEC 23008-12 (the brands of HEIF, and the boxes `irot` and `imir`). Seen in pillow-heif 1.8.1.
"""

import io
from importlib.metadata import PackageNotFoundError, version

from PIL import Image

from pipeline.images.rejection import Rejection

PACKAGE = "pillow-heif"
_HEVC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
"""Brands of files whose pixels are in HEVC."""
_AV1_BRANDS = frozenset({b"avif", b"avis"})
_ANY_BRANDS = frozenset({b"mif1", b"msf1"})
"""Brands of files of any codec."""
_MAX_BRANDS_BYTES = 256
_HALVED_CHROMA = 420
FORMAT = "HEIF"
"""The name of the format in Pillow."""


def is_heif(encoded: bytes) -> bool:
    """Return whether a file is HEIC, or HEIF of another codec than AV1, by its brands. AVIF is HEIF, too."""
    if encoded[4:8] != b"ftyp" or encoded[8:12] in _AV1_BRANDS:
        return False
    end = min(int.from_bytes(encoded[:4]), _MAX_BRANDS_BYTES)
    # The main brand, and after four bytes of its version the compatible ones.
    brands = {encoded[8:12], *(encoded[start : start + 4] for start in range(16, end, 4))}
    return bool(brands & _HEVC_BRANDS) or bool(brands & _ANY_BRANDS and not brands & _AV1_BRANDS)


def installed_version() -> str | None:
    """Return the version of the package, or None. Its wheel contains the decoder."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


def why_unreadable() -> Rejection:
    """Return why a HEIC cannot be read."""
    if installed_version():
        return Rejection("a HEIC that is damaged or of a kind that is not supported", "convert it to JPEG or PNG")
    return Rejection(
        f"HEIC is not supported without the package {PACKAGE}",
        f"install {PACKAGE} on all machines that write shards, or convert it to JPEG or PNG",
    )


def opened(encoded: bytes) -> Image.Image:
    """Open a HEIC. The package must be installed."""
    import pillow_heif

    # With thumbnails, an image that is shrunk would become a thumbnail of its file, which may be any other image.
    pillow_heif.register_heif_opener(thumbnails=False)
    return Image.open(io.BytesIO(encoded), formats=[FORMAT])


def has_full_chroma(image: Image.Image) -> bool:
    """Return whether an open HEIC has more color samples than at half resolution in both directions."""
    return image.info.get("chroma") != _HALVED_CHROMA
