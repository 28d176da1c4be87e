"""Files that are compressed as a whole. Their first bytes decide: a bucket may compress an object under any name."""

import lzma
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

MAGIC_BYTES = 10
"""This many bytes of a file are enough for `compression_of`."""
UNPACK_ERRORS = (lzma.LZMAError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
"""What reading a damaged file may raise, apart from OSError and ValueError."""
_MAGIC: Mapping[bytes, str] = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",  # of no file
}
_BZIP2 = (b"1AY&SY", b"\x17rE8P\x90")
"""What follows `BZh` and a digit. A text could also begin with these letters."""


def compression_of(begin: bytes) -> str:
    """Return gzip, bz2, zstd, xz or zip by the first bytes of a file; empty if it is not compressed."""
    if begin.startswith(b"BZh") and begin[4:10] in _BZIP2:
        return "bz2"
    return next((name for magic, name in _MAGIC.items() if begin.startswith(magic)), "")


def require_plain(file: Path) -> None:
    """Raise ValueError if a file is compressed as a whole."""
    with file.open("rb") as stream:
        compression = compression_of(stream.read(MAGIC_BYTES))
    if compression:
        raise ValueError(f"the file is compressed by {compression}: decompress it")


def unpacked(file: IO[bytes], compression: str) -> IO[bytes]:
    """Open the content of an open xz or zip file. Raises ValueError if a zip file has no single file in it."""
    if compression == "xz":
        return lzma.open(file)
    archive = zipfile.ZipFile(file)
    # macOS adds files of its own.
    members = [each for each in archive.infolist() if not each.is_dir() and not each.filename.startswith("__MACOSX/")]
    if len(members) != 1:
        raise ValueError(f"the zip file has {len(members)} files, and must have one: unpack it into a folder")
    if members[0].flag_bits & 1:
        raise ValueError("the zip file is encrypted: unpack it")
    return archive.open(members[0])
