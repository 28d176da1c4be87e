"""The decoders and encoders that images pass on the way into a record."""

import zlib
from importlib.metadata import version

from PIL import features

from pipeline.images import heif

_LIBRARIES = ("libjpeg_turbo", "zlib", "zlib_ng", "libtiff", "webp", "avif", "littlecms2")
"""Libraries of Pillow that decide which images are rejected, or which bytes a converted image gets.

A wheel contains its own libraries. The Pillow of a distribution uses the libraries of the system, and may lack some.
"""


def codec_versions(*, gzip: bool, perceptual_hash: bool) -> dict[str, str]:
    """Return the versions of all decoders and encoders whose change could change a dataset, by name.

    They are part of a dataset's version: with another decoder, the same source may give other bytes. `gzip` and
    `perceptual_hash` say whether the records are compressed and whether near-duplicates are looked for.
    """
    versions = {"simplejpeg": version("simplejpeg"), "pillow": features.version("pil")}
    versions |= {name: features.version(name) for name in _LIBRARIES}
    versions[heif.PACKAGE] = heif.installed_version()
    if gzip:
        versions["zlib of python"] = zlib.ZLIB_RUNTIME_VERSION
    if perceptual_hash:
        versions["imagehash"] = version("imagehash")
    # The Pillow of a distribution may lack some of the libraries, and HEIC needs a package of its own.
    return {name: number for name, number in versions.items() if number}
