"""The encoders that rows of a table pass on the way into a record."""

import zlib

ENCODING = 1
"""Increase this if the same rows would give other records. All tables then get new versions."""


def row_codec_versions(*, gzip: bool) -> dict[str, str]:
    """Return the versions of all encoders whose change could change a dataset, by name.

    `gzip` says whether the records are compressed.
    """
    versions = {"row encoding": str(ENCODING)}
    if gzip:
        versions["zlib of python"] = zlib.ZLIB_RUNTIME_VERSION
    return versions
