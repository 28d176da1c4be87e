"""zip: images in class folders, or with their labels beside them, in a zip file."""

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from typing import IO

from pipeline.kinds.images.archive import ArchivedFile, images_of_archive
from pipeline.sources import Skipped, SourceOptions
from pipeline.sources.container_formats import ContainedImage, ContainerFile

BESIDE = ()
NAMES = re.compile(r".+\.zip")
_HEADER = struct.Struct("<26xHH")
"""The header of a file in the archive: at its end, the lengths of its name and of its extra field follow."""
_ENCRYPTED = 1


def holds_images(file: IO[bytes]) -> bool:
    """Return True: only the names of all files would tell."""
    return True


def images(file: ContainerFile, options: SourceOptions) -> Iterator[ContainedImage | Skipped]:
    """Yield the images in the order in which the archive stores them. Its checksums are verified."""
    with zipfile.ZipFile(file.path) as archive, file.path.open("rb") as stored:
        yield from images_of_archive(_files(archive, stored), options)


def _files(archive: zipfile.ZipFile, stored: IO[bytes]) -> Iterator[ArchivedFile]:
    for info in sorted(archive.infolist(), key=lambda each: each.header_offset):
        if info.flag_bits & _ENCRYPTED:
            raise ValueError(f"{info.filename} is encrypted: unpack it into a folder")
        if not info.is_dir():
            if info.compress_type == zipfile.ZIP_STORED:
                offset = _offset(info, stored)
                yield ArchivedFile(info.filename, info.file_size, offset, partial(_read, info, stored, offset))
            else:
                yield ArchivedFile(info.filename, info.file_size, None, partial(archive.read, info))


def _read(info: zipfile.ZipInfo, stored: IO[bytes], offset: int) -> bytes:
    """Return the bytes of a file that is not compressed. `archive.read` would take several times as long."""
    stored.seek(offset)
    content = stored.read(info.file_size)
    if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
        raise ValueError(f"Bad CRC-32 for file {info.filename!r}")
    return content


def _offset(info: zipfile.ZipInfo, stored: IO[bytes]) -> int:
    """Return the offset of the first byte of a file in the archive."""
    # The directory of the archive does not say how long this header is.
    stored.seek(info.header_offset)
    header = stored.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ValueError(f"{info.filename} is cut off")
    name_bytes, extra_bytes = _HEADER.unpack(header)
    return info.header_offset + _HEADER.size + int(name_bytes) + int(extra_bytes)
