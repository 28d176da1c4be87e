"""zip: images in class folders, or with their labels beside them, in a zip file."""

import io
import os
import re
import struct
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import IO, Any, NamedTuple

from typing_extensions import override

from pipeline.kinds.images.archive import ArchivedFile, Start, bounds_of_archive, images_of_archive, may_be_text
from pipeline.sources import SourceOptions
from pipeline.sources.container_formats import Bound, ContainerFile, Item

BESIDE = ()
NAMES = re.compile(r".+\.zip")
_HEADER = struct.Struct("<26xHH")
"""The header of a file in the archive: at its end, the lengths of its name and of its extra field follow."""
_ENTRY = struct.Struct("<4s24xHHH12x")
"""An entry of the directory of the archive: its signature, and the lengths of the three fields that follow it."""
_END = struct.Struct("<4s8xLL2x")
"""The end of the archive: its signature, and the size and the offset of the directory."""
_END64 = struct.Struct("<4sQ12xQQQQ")
"""The same in a large archive: signature, size of the rest, number of entries (twice), size and offset."""
_LOCATOR = struct.Struct("<4s4xQL")
"""Stands between the two: signature, offset of the first one, and number of disks."""
_ENTRY_SIGNATURE, _END_SIGNATURE, _END64_SIGNATURE, _LOCATOR_SIGNATURE = b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7"
_MAX_COMMENT = 0xFFFF
_PLACE = struct.Struct("<20xLLHH10xL")
"""The parts of an entry that say where its file is: packed size, size, lengths of name and extra field, and offset."""
_EXTRA = struct.Struct("<HH")
"""How a part of the extra field begins: its kind and its length."""
_ZIP64, _IN_EXTRA = 1, 0xFFFFFFFF
"""The kind of the part with numbers of 64 bits, and what an entry has in place of them."""
_UNICODE_PATH = 0x7075
"""The kind of the part with the name in UTF-8. Before it are its version and the checksum of the name in the entry."""
_UNICODE_PATH_BEGIN = struct.Struct("<BL")
_FEW_ENTRIES_BYTES = 1 << 12
_DIRECTORY_BYTES = 1 << 18
"""About this many bytes of a directory are in memory at once. An entry has less than 0.2 MB."""
_ENCRYPTED, _IS_UTF_8 = 1, 1 << 11
"""Flags of an entry: its content is encrypted, and its name is UTF-8."""


class _Directory(NamedTuple):
    """Where the directory of an archive is."""

    start: int
    size: int
    stated: int
    """The offset that the archive states. It is smaller if the file begins with something else."""


def holds_images(file: IO[bytes]) -> bool:
    """Return True: only the names of all files would tell."""
    return True


def images(file: ContainerFile, options: SourceOptions) -> Iterator[Item]:
    """Yield the images in the order in which the archive stores them. Its checksums are verified."""
    with file.path.open("rb") as stored:
        directory = _directory_of(stored)
        if file.is_whole and not _is_in_order(stored, directory):
            files = _sorted_files(stored)
        else:
            files = _files_in_order(stored, directory, file.first, file.end)
        yield from images_of_archive(files, options, file.is_whole)


def bounds(file: IO[bytes], options: SourceOptions, max_bytes: int) -> Sequence[Bound]:
    """Return the places in the directory that divide an archive, unless it has another order than the files."""
    directory = _directory_of(file)

    def files_from(position: int) -> Iterator[ArchivedFile]:
        for archive, start, info in _entries(file, directory, position, directory.size, _FEW_ENTRIES_BYTES):
            _require_no_password(info)
            if not info.is_dir():
                yield ArchivedFile(info.filename, info.file_size, None, partial(_unpack, archive, info), start=start)

    try:
        return list(bounds_of_archive(_starts(file, directory), files_from, options, max_bytes))
    except (_OtherOrder, struct.error):
        return ()


class _OtherOrder(Exception):
    """The directory of an archive has another order than its files."""


def _is_in_order(file: IO[bytes], directory: _Directory) -> bool:
    try:
        deque(_starts(file, directory), maxlen=0)
    except (_OtherOrder, struct.error):
        return False
    return True


def _starts(file: IO[bytes], directory: _Directory) -> Iterator[Start]:
    """Yield where the files of an archive begin. `zipfile` reads all of their entries and takes ten times as long.

    Raises _OtherOrder, or struct.error if an entry lacks a number of 64 bits.
    """
    last = -1
    for position, content, starts in _parts(file, directory, 0, directory.size, _DIRECTORY_BYTES):
        for start in starts:
            name_bytes, offset = _name_and_header(content, start)
            if offset <= last:
                raise _OtherOrder
            last = offset
            name = start + _ENTRY.size
            yield Start(position + start, offset, may_be_text(content[name : name + name_bytes]))


def _name_and_header(content: bytes, start: int) -> tuple[int, int]:
    """Return the length of the name of a file, and the offset of its header, by its entry in the directory."""
    packed_size, size, name_bytes, extra_bytes, offset = _PLACE.unpack_from(content, start)
    if offset != _IN_EXTRA:
        return name_bytes, offset
    extra = content[start + _ENTRY.size + name_bytes :][:extra_bytes]
    before = 8 * ((size == _IN_EXTRA) + (packed_size == _IN_EXTRA))
    [offset] = struct.unpack_from("<Q", _part_of_extra(extra, _ZIP64), before)
    return name_bytes, offset


def _part_of_extra(extra: bytes, kind: int) -> bytes:
    """Return a part of the extra field of an entry; empty if there is none of this kind."""
    while len(extra) >= _EXTRA.size:
        found, length = _EXTRA.unpack_from(extra)
        end = _EXTRA.size + length
        if found == kind:
            return extra[_EXTRA.size : end]
        extra = extra[end:]
    return b""


def _name_of(info: zipfile.ZipInfo) -> str:
    """Return the path of a file. Some programs for Windows write backslashes between folders."""
    name = _decoded_name(info)
    return name if "/" in name else name.replace("\\", "/")


def _decoded_name(info: zipfile.ZipInfo) -> str:
    """Return the name of a file. macOS and Info-ZIP write UTF-8 without its flag, which `zipfile` reads as cp437."""
    if info.flag_bits & _IS_UTF_8:
        return info.filename
    raw = info.orig_filename.encode("cp437")
    stated = _part_of_extra(info.extra, _UNICODE_PATH)
    begin, in_unicode = stated[: _UNICODE_PATH_BEGIN.size], stated[_UNICODE_PATH_BEGIN.size :]
    # Another checksum means that a program that does not know this field renamed the file.
    is_valid = begin == _UNICODE_PATH_BEGIN.pack(1, zlib.crc32(raw))
    try:
        # Like `zipfile`, this ends the name at a zero byte.
        return (in_unicode if is_valid else raw).decode("utf-8").partition("\0")[0]
    except UnicodeDecodeError:
        return info.filename


def _sorted_files(stored: IO[bytes]) -> Iterator[ArchivedFile]:
    """Yield the files of an archive whose directory has another order. All of the directory is in memory."""
    with zipfile.ZipFile(stored) as archive:
        for info in sorted(archive.infolist(), key=lambda each: each.header_offset):
            info.filename = _name_of(info)
            yield from _archived(archive, info, stored)


def _files_in_order(
    stored: IO[bytes], directory: _Directory, first: Bound, end: Bound | None
) -> Iterator[ArchivedFile]:
    for archive, _, info in _entries(stored, directory, first.offset, end.offset if end else directory.size):
        yield from _archived(archive, info, stored)


def _archived(archive: zipfile.ZipFile, info: zipfile.ZipInfo, stored: IO[bytes]) -> Iterator[ArchivedFile]:
    """Yield a file of an archive, unless it is a folder."""
    _require_no_password(info)
    if info.is_dir():
        return
    if info.compress_type == zipfile.ZIP_STORED:
        offset = _offset(info, stored)
        yield ArchivedFile(info.filename, info.file_size, offset, partial(_read, info, stored, offset))
    else:
        yield ArchivedFile(info.filename, info.file_size, None, partial(_unpack, archive, info))


def _require_no_password(info: zipfile.ZipInfo) -> None:
    if info.flag_bits & _ENCRYPTED:
        raise ValueError(f"{info.filename} is encrypted: unpack it into a folder")


def _read(info: zipfile.ZipInfo, stored: IO[bytes], offset: int, size: int) -> bytes:
    """Return the bytes of a file that is not compressed. `archive.read` would take several times as long."""
    stored.seek(offset)
    content = stored.read(info.file_size)
    if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
        raise ValueError(f"Bad CRC-32 for file {info.filename!r}")
    return content[:size]


def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> bytes:
    return archive.read(info)[:size]


def _offset(info: zipfile.ZipInfo, stored: IO[bytes]) -> int:
    """Return the offset of the first byte of a file in the archive."""
    # The directory of the archive does not say how long this header is.
    stored.seek(info.header_offset)
    header = stored.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ValueError(f"{info.filename} is cut off")
    name_bytes, extra_bytes = _HEADER.unpack(header)
    return info.header_offset + _HEADER.size + int(name_bytes) + int(extra_bytes)


def _directory_of(stored: IO[bytes]) -> _Directory:
    size = stored.seek(0, os.SEEK_END)
    tail_start = max(0, size - _END.size - _MAX_COMMENT)
    stored.seek(tail_start)
    tail = stored.read()
    # A comment may follow the end.
    found = len(tail) - _END.size if tail[-_END.size :].startswith(_END_SIGNATURE) else tail.rfind(_END_SIGNATURE)
    if not 0 <= found <= len(tail) - _END.size:
        raise zipfile.BadZipFile("File is not a zip file")
    _, directory_size, stated = _END.unpack_from(tail, found)
    end = tail_start + found
    if end >= _END64.size + _LOCATOR.size:
        stored.seek(end - _LOCATOR.size - _END64.size)
        content = stored.read(_END64.size + _LOCATOR.size)
        if content.startswith(_END64_SIGNATURE) and content[_END64.size :].startswith(_LOCATOR_SIGNATURE):
            *_, directory_size, stated = _END64.unpack_from(content)
            end -= len(content)
    if stated + directory_size > end:  # The beginning is missing.
        raise zipfile.BadZipFile("Bad offset for central directory")
    return _Directory(end - directory_size, directory_size, stated)


def _entries(
    stored: IO[bytes], directory: _Directory, first: int, end: int, at_once: int = _DIRECTORY_BYTES
) -> Iterator[tuple[zipfile.ZipFile, int, zipfile.ZipInfo]]:
    """Yield the entries of a part of a directory, each with its position in the directory.

    `zipfile` would hold the whole directory in memory, which takes a gigabyte for a million files.
    """
    for position, content, starts in _parts(stored, directory, first, end, at_once):
        part = _WithPart(stored, directory, content, len(starts))
        with zipfile.ZipFile(io.BufferedReader(part)) as archive:
            for start, info in zip(starts, archive.infolist(), strict=True):
                info.filename = _name_of(info)
                yield archive, position + start, info


def _parts(
    stored: IO[bytes], directory: _Directory, first: int, end: int, at_once: int
) -> Iterator[tuple[int, bytes, list[int]]]:
    """Yield a part of a directory as bytes that hold whole entries: their position, and where each entry begins."""
    position = first
    while position < end:
        stored.seek(directory.start + position)
        content = stored.read(min(at_once, end - position))
        *starts, part_end = _starts_of_entries(content)
        if starts:
            yield position, content[:part_end], starts
            position += part_end
        elif at_once < _DIRECTORY_BYTES:
            at_once = _DIRECTORY_BYTES
        else:
            raise zipfile.BadZipFile("Truncated central directory")


def _starts_of_entries(content: bytes) -> list[int]:
    """Return where the entries of a directory begin in some bytes, and where the last one ends that is whole."""
    starts = [0]
    while len(content) >= starts[-1] + _ENTRY.size:
        signature, *lengths = _ENTRY.unpack_from(content, starts[-1])
        end = starts[-1] + _ENTRY.size + sum(lengths)
        if signature != _ENTRY_SIGNATURE:
            raise zipfile.BadZipFile("Bad magic number for central directory")
        if end > len(content):
            break
        starts.append(end)
    return starts


class _WithPart(io.RawIOBase):
    """An archive with some entries of its directory in place of all."""

    def __init__(self, stored: IO[bytes], directory: _Directory, part: bytes, entries: int) -> None:
        self._stored, self._start, self._position = stored, directory.start, 0
        end = directory.stated + len(part)
        self._tail = b"".join(
            (
                part,
                _END64.pack(_END64_SIGNATURE, _END64.size - 12, entries, entries, len(part), directory.stated),
                _LOCATOR.pack(_LOCATOR_SIGNATURE, end, 1),
                _END.pack(_END_SIGNATURE, 0xFFFFFFFF, 0xFFFFFFFF),
            )
        )

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        ends = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._start + len(self._tail)}
        self._position = ends[whence] + offset
        return self._position

    @override
    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position < self._start:
            self._stored.seek(self._position)
            content = self._stored.read(min(len(buffer), self._start - self._position))
        else:
            content = self._tail[self._position - self._start :][: len(buffer)]
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)
