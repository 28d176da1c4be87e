"""tar: images in class folders, or with their labels beside them (WebDataset), in a tar file that may be compressed."""

import bz2
import gzip
import logging
import lzma
import re
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, Self

from pipeline.kinds.images.archive import ArchivedFile, Start, bounds_of_archive, images_of_archive, may_be_text
from pipeline.sources import SourceOptions
from pipeline.sources.compression import MAGIC_BYTES, compression_of
from pipeline.sources.container_formats import Bound, ContainerFile, Item

BESIDE = ()
NAMES = re.compile(r".+\.(tar(\.(gz|bz2|xz|zst))?|tgz)")


def _open_zstd(file: IO[bytes]) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(file, "zstd")


_UNPACK: Mapping[str, Callable[[IO[bytes]], Any]] = {
    "gzip": gzip.open,
    "bz2": bz2.open,
    "xz": lzma.open,
    "zstd": _open_zstd,
}
"""How a file is decompressed. Unlike `tarfile`, these functions find files that are cut off or damaged."""
_CHUNK = 1 << 20
_FIELDS = struct.Struct("100s 24x 12s 12x 8s c 100x 5s 83x 155s")
"""Name, size, checksum, kind, magic bytes and folder in a header: see `struct posix_header` in GNU tar's manual."""
_KINDS_BEFORE_A_HEADER = (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
"""Kinds of headers that belong to the next one: with a long name, for example."""
_MAX_BEFORE_A_HEADER = 1_000_000
"""Such a header has at most this many bytes. A damaged header may state any size, which would be read at once."""
_KINDS_WITH_CONTENT = (tarfile.REGTYPE, *_KINDS_BEFORE_A_HEADER)
_KINDS = (*_KINDS_WITH_CONTENT, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
"""The usual kinds. An archive with others is not divided: one of them is a header for all files that follow it."""
_log = logging.getLogger(__name__)


def holds_images(file: IO[bytes]) -> bool:
    """Return True: only the names of all files would tell."""
    return True


def images(file: ContainerFile, options: SourceOptions) -> Iterator[Item]:
    """Yield the images in the order of the archive."""
    with file.path.open("rb") as stored:
        compression = compression_of(stored.read(MAGIC_BYTES))
        stored.seek(file.first.offset)
        if not compression:
            with tarfile.open(fileobj=stored, mode="r:", tarinfo=_Header) as archive:
                yield from images_of_archive(_files(archive, end=file.end), options, file.is_whole)
            return
        if compression not in _UNPACK:
            raise ValueError(f"it is compressed by {compression}: decompress it")
        _log.info(
            "%s is compressed: one process reads it from front to back, and its images are copied to the workspace",
            file.place.name,
        )
        # With |, it is read from front to back.
        with (
            _UNPACK[compression](stored) as content,
            tarfile.open(fileobj=content, mode="r|", tarinfo=_Header) as archive,
        ):
            yield from images_of_archive(_files(archive, is_compressed=True), options)


def bounds(file: IO[bytes], options: SourceOptions, max_bytes: int) -> Sequence[Bound]:
    """Return the places between files that divide an archive. Only the headers are read, unless it is compressed."""
    if compression_of(file.read(MAGIC_BYTES)):
        return ()
    try:
        return list(bounds_of_archive(_starts(file), partial(_files_from, file), options, max_bytes))
    except _CannotBeDivided:
        return ()


class _CannotBeDivided(Exception):
    pass


def _starts(file: IO[bytes]) -> Iterator[Start]:
    """Yield where the files of an archive begin. `tarfile` reads all of their headers and takes six times as long."""
    start = offset = 0
    file.seek(0)
    while len(header := file.read(tarfile.BLOCKSIZE)) == tarfile.BLOCKSIZE and any(header):
        name, size, _, kind, magic, _ = _FIELDS.unpack_from(header)
        try:
            content_bytes = int(size.rstrip(b"\0 "), 8) if kind in _KINDS_WITH_CONTENT else 0
        except ValueError as error:  # A large size is written in another way.
            raise _CannotBeDivided from error
        if magic != b"ustar" or kind not in _KINDS:
            raise _CannotBeDivided
        is_before = kind in _KINDS_BEFORE_A_HEADER
        if is_before and content_bytes > _MAX_BEFORE_A_HEADER:
            raise _CannotBeDivided
        if kind == tarfile.XHDTYPE and any(key in file.read(content_bytes) for key in (b" size=", b" GNU.sparse.")):
            raise _CannotBeDivided
        if start == offset:
            yield Start(start, start, is_before or may_be_text(name))
        offset += tarfile.BLOCKSIZE * (1 + -(-content_bytes // tarfile.BLOCKSIZE))
        file.seek(offset)
        if not is_before:
            start = offset


def _files_from(file: IO[bytes], position: int) -> Iterator[ArchivedFile]:
    file.seek(position)
    with tarfile.open(fileobj=file, mode="r:", tarinfo=_Header) as archive:
        yield from _files(archive)


class _Header(tarfile.TarInfo):
    """The header of a file. `tarfile` takes a damaged or missing one for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return the header in some bytes. Raises ValueError if they are neither a header nor the end."""
        try:
            return cls._of_plain_file(buf, encoding, errors) or super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) < tarfile.BLOCKSIZE:
                raise ValueError("it has no end: it is cut off") from error
            if any(buf):
                raise ValueError(f"the header of a file in it is damaged ({error})") from error
            raise  # Zeros are the end.

    @classmethod
    def _of_plain_file(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self | None:
        """Return the header of a file if it is a usual one. `tarfile` reads all fields and takes four times as long."""
        if len(buf) != tarfile.BLOCKSIZE:
            return None
        name, size, checksum, kind, magic, prefix = _FIELDS.unpack_from(buf)
        if kind != tarfile.REGTYPE or magic != b"ustar" or prefix.strip(b"\0"):
            return None
        header = cls(name.partition(b"\0")[0].decode(encoding, errors))
        try:
            header.size, header.chksum = int(size.rstrip(b"\0"), 8), int(checksum.rstrip(b"\0 "), 8)
        except ValueError:  # A large size is written in another way.
            return None
        return header if header.chksum == sum(buf) - sum(checksum) + len(checksum) * ord(" ") else None


def _files(archive: tarfile.TarFile, is_compressed: bool = False, end: Bound | None = None) -> Iterator[ArchivedFile]:
    while (info := archive.next()) is not None:
        # The archive keeps the headers of all its files, which would take a gigabyte for a million files.
        archive.members = []  # type: ignore[attr-defined] # The attribute has no documentation; seen in Python 3.11.
        if end and info.offset >= end.offset:
            return
        if not info.isdir():
            offset = None if is_compressed else info.offset_data
            read = partial(_read, archive, info)
            yield ArchivedFile(info.name, info.size, offset, read, _why_not_read(info), info.offset)
    _require_end(archive)


def _why_not_read(info: tarfile.TarInfo) -> str:
    """Return why a file cannot be read; empty if it can."""
    if info.islnk():
        # Its target may be in any other piece of the archive. To find it, all names would have to be in memory.
        return "a hard link in the archive: pack it with tar --hard-dereference"
    return "" if info.isreg() and not info.issparse() else "a link or another special file in the archive"


def _require_end(archive: tarfile.TarFile) -> None:
    """Read the rest of an archive, which has zeros. Only then a compressed file is verified."""
    stream = archive.fileobj
    assert stream is not None
    while rest := stream.read(_CHUNK):
        if rest.strip(b"\0"):
            raise ValueError("more follows after its end, as in joined archives: join the files in them instead")


def _read(archive: tarfile.TarFile, info: tarfile.TarInfo, size: int) -> bytes:
    stream = archive.fileobj
    assert stream is not None
    stream.seek(info.offset_data)  # `extractfile` would take as long as reading a small image.
    content: bytes = stream.read(min(size, info.size))
    if len(content) != min(size, info.size):
        raise ValueError(f"{info.name} is cut off")
    return content
