"""tar: images in class folders, or with their labels beside them (WebDataset), in a tar file that may be compressed."""

import logging
import re
import tarfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Literal

from pipeline.sources import Skipped, SourceOptions
from pipeline.sources.compression import MAGIC_BYTES, compression_of
from pipeline.sources.container_formats import ArchivedFile, ContainedImage, ContainerFile, images_of_archive

BESIDE = ()
NAMES = re.compile(r".+\.(tar(\.(gz|bz2|xz|zst))?|tgz)")
_MODES: Mapping[str, Literal["r:", "r|gz", "r|bz2", "r|xz"]] = {"": "r:", "gzip": "r|gz", "bz2": "r|bz2", "xz": "r|xz"}
"""How a file is opened, by its compression. With |, it is read from front to back."""
_log = logging.getLogger(__name__)


def holds_images(file: IO[bytes]) -> bool:
    """Return True: only the names of all files would tell."""
    return True


def images(file: ContainerFile, options: SourceOptions) -> Iterator[ContainedImage | Skipped]:
    """Yield the images in the order of the archive."""
    with file.path.open("rb") as stream:
        compression = compression_of(stream.read(MAGIC_BYTES))
    if compression not in _MODES:
        raise ValueError(f"it is compressed by {compression}: decompress it")
    if compression:
        _log.info("%s is compressed as a whole: it is read once, from front to back, and not divided", file.place.name)
    elif not _has_end(file.path):  # The library takes a file that is cut off between two images for a whole one.
        raise ValueError("it has no end: it is cut off")
    with tarfile.open(file.path, _MODES[compression]) as archive:
        yield from images_of_archive(_files(archive, is_compressed=bool(compression)), options)


def _has_end(file: Path) -> bool:
    """Whether a file ends with a block of zeros, as each tar file does."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - tarfile.BLOCKSIZE))
        return not any(stream.read())


def _files(archive: tarfile.TarFile, is_compressed: bool) -> Iterator[ArchivedFile]:
    while (info := archive.next()) is not None:
        # The archive keeps the headers of all its files, which would take a gigabyte for a million files.
        archive.members = []  # type: ignore[attr-defined] # The attribute has no documentation; seen in Python 3.11.
        if not info.isdir():
            offset = None if is_compressed else info.offset_data
            reason = "" if info.isreg() and not info.issparse() else "a link or another special file in the archive"
            yield ArchivedFile(info.name, info.size, offset, partial(_read, archive, info), reason)


def _read(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    stream = archive.fileobj
    assert stream is not None
    stream.seek(info.offset_data)  # `extractfile` would take as long as reading a small image.
    content: bytes = stream.read(info.size)
    if len(content) != info.size:
        raise ValueError(f"{info.name} is cut off")
    return content
