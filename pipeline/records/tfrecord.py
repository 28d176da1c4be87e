"""The TFRecord format: framing and checksums, without TensorFlow; plain, or the whole file in gzip.

A record is: length (8 bytes, little endian), masked CRC32C of those 8 bytes, data, masked CRC32C of the data.
Source: tensorflow/core/lib/io/record_writer.h and tensorflow/core/lib/hash/crc32c.h.
"""

import gzip
import io
import os
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache
from itertools import chain
from operator import add
from typing import IO, Any

import google_crc32c

from pipeline import storage
from pipeline.errors import DatasetError
from pipeline.storage import Place, crc32c

HEADER_BYTES = 12
FOOTER_BYTES = 4
GZIP_SUFFIX = ".gz"
GZIP_TRAILER_BYTES = 8
GZIP_LEVEL = 3
"""Photographs do not shrink at any compression level, and pixels shrink little more at higher levels than this."""
SHORT = 65_536
"""Below this size in bytes, reading a body again costs no more than combining checksums."""
_ANY_WBITS = 32 + zlib.MAX_WBITS
"""With this argument, zlib detects whether a stream has the header of gzip or that of zlib."""
_CHUNK = 1 << 18
"""A compressed file is read in pieces of this many bytes."""
_GATHERED_RECORDS = 128
"""This many small records are written at once."""
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def masked(crc: Any) -> Any:
    """Return a CRC rotated and shifted as TFRecord requires it, because the CRC of data that contains CRCs is weak.

    Args:
        crc: One CRC32C, or an array of NumPy of type uint64.
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC32C of `data`."""
    crc: int = masked(google_crc32c.value(data))
    return crc


def frame(data: bytes) -> bytes:
    """Return `data` as one record."""
    return b"".join((header(len(data)), data, _CRC.pack(masked_crc32c(data))))


def data_of(record: bytes) -> bytes:
    """Return the data of one record, which is not verified."""
    return record[HEADER_BYTES:-FOOTER_BYTES]


@lru_cache(4096)
def header(length: int) -> bytes:
    """Return the bytes before data of `length` bytes."""
    packed = _LENGTH.pack(length)
    return packed + _CRC.pack(masked_crc32c(packed))


class RecordWriter:
    """Writes to a file descriptor. Small records are gathered. Large bodies are neither copied nor read again.

    `size` and `crc32c` are those of the file so far.
    """

    def __init__(self, descriptor: int) -> None:
        self.size = self.crc32c = 0
        self.sizes = array("Q")
        """Size in bytes of each record with its frame, for the index. Empty in a gzip file, which has no index."""
        self._descriptor = descriptor
        self._gathered: list[tuple[bytes, bytes]] = []
        """The two parts of small records that are not written yet."""
        self._first = self._last = b""

    @property
    def ends(self) -> bytes:
        """The checksums of the first and of the last record, as `ends_of` reads them after the file is closed."""
        return self._first + self._last

    def write(self, before: bytes, body: bytes, body_crc: int) -> None:
        """Write one record of `before` and `body`, the large part. `body_crc` is the CRC32C of `body`."""
        if len(body) >= SHORT:
            self._flush()  # The gathered records come first in the file.
            self._write_large(before, body, body_crc)
            return
        self._gathered.append((before, body))
        if len(self._gathered) >= _GATHERED_RECORDS:
            self._flush()

    def write_framed(self, records: Sequence[bytes]) -> None:
        """Write some small records that `frame` returned."""
        if records:
            self._flush()
            self._put_framed(records, list(map(len, records)), records[0][-FOOTER_BYTES:], records[-1][-FOOTER_BYTES:])

    def close(self) -> None:
        """Write the records that are gathered. The descriptor stays open."""
        self._flush()

    def _flush(self) -> None:
        if not self._gathered:
            return
        heads, bodies = zip(*self._gathered, strict=True)
        self._gathered = []
        # Many at once, because a call for each of these values takes as long as reading a small image.
        lengths = list(map(add, map(len, heads), map(len, bodies)))
        crcs = map(google_crc32c.extend, map(google_crc32c.value, heads), bodies)
        tails = [_CRC.pack(masked(crc)) for crc in crcs]
        parts = chain.from_iterable(zip(map(header, lengths), heads, bodies, tails, strict=True))
        self._put_framed(parts, [HEADER_BYTES + length + FOOTER_BYTES for length in lengths], tails[0], tails[-1])

    def _put_framed(self, parts: Iterable[bytes], sizes: Sequence[int], first: bytes, last: bytes) -> None:
        """Write whole small records of these sizes. `first` and `last` are the checksums of the first and last one."""
        self._first, self._last = self._first or first, last
        self.sizes.extend(sizes)
        content = b"".join(parts)
        self.crc32c = google_crc32c.extend(self.crc32c, content)
        self._put([content], len(content))

    def _write_large(self, before: bytes, body: bytes, body_crc: int) -> None:
        head = header(len(before) + len(body)) + before
        # One call combines both checksums with that of the body, so that the body is not read again.
        of_record, of_file = crc32c.combine(
            google_crc32c.value(before), google_crc32c.extend(self.crc32c, head), body_crc, len(body)
        )
        self.sizes.append(len(head) + len(body) + FOOTER_BYTES)
        self._last = tail = _CRC.pack(masked(of_record))
        self._first = self._first or tail
        self.crc32c = google_crc32c.extend(of_file, tail)
        # Large records are not gathered: their memory would go back to the system when freed, and be faulted in again.
        self._put([head, body, tail], len(head) + len(body) + len(tail))

    def _put(self, parts: list[bytes], size: int) -> None:
        self.size += size
        written = os.writev(self._descriptor, parts)
        # A disk that is nearly full writes a part of the bytes without an error. The next call raises the error.
        if written < size:
            rest = memoryview(b"".join(parts))[written:]
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]


class GzipRecordWriter:
    """Writes records into one gzip stream. Its bytes depend on the version of zlib, but not on the time or a name."""

    def __init__(self, descriptor: int) -> None:
        self.size = self.crc32c = 0
        self.sizes = array("Q")
        self._file = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - closed by close
        # 16 adds the gzip header and trailer. `gzip.GzipFile` would write the time into the header.
        self._compress = zlib.compressobj(GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)
        self.ends = b""

    def write(self, before: bytes, body: bytes, body_crc: int) -> None:
        """Write one record of `before` and `body`."""
        self.write_framed([frame(before + body)])

    def write_framed(self, records: Sequence[bytes]) -> None:
        """Write some records that `frame` returned."""
        self._put(self._compress.compress(b"".join(records)))

    def close(self) -> None:
        """Write the end of the gzip stream. The descriptor stays open."""
        end = self._compress.flush()
        self.ends = end[-GZIP_TRAILER_BYTES:]
        self._put(end)
        self._file.close()

    def _put(self, compressed: bytes) -> None:
        self._file.write(compressed)
        self.size += len(compressed)
        self.crc32c = google_crc32c.extend(self.crc32c, compressed)


Writer = RecordWriter | GzipRecordWriter


def writer_of(path: Place, file: IO[bytes]) -> Writer:
    """Return the writer of the records of `path`, by its suffix, into the open `file`."""
    return GzipRecordWriter(file.fileno()) if path.name.endswith(GZIP_SUFFIX) else RecordWriter(file.fileno())


def ends_of(path: Place) -> bytes:
    """Read 8 bytes that distinguish a file of records from another one of the same size, without reading all of it.

    In a plain file, these are the stored CRC32C of the first and of the last record; none if there is no record. In a
    gzip file, these are the CRC-32 and the size of all records, which end the stream. Raises OSError if the file cannot
    be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if path.name.endswith(GZIP_SUFFIX):
            return _read_at(file, size - GZIP_TRAILER_BYTES, GZIP_TRAILER_BYTES)
        header = file.read(HEADER_BYTES)
        first = HEADER_BYTES + int.from_bytes(header[:8], "little")
        return b"".join(_read_at(file, offset, FOOTER_BYTES) for offset in (first, size - FOOTER_BYTES) if header)


def _read_at(file: IO[bytes], offset: int, size: int) -> bytes:
    """Read `size` bytes of a file at `offset`; fewer, or none, if the file ends before that."""
    # A damaged length may lead far beyond the end of the file, or beyond any position that `seek` accepts.
    file.seek(min(max(offset, 0), os.fstat(file.fileno()).st_size))
    return file.read(size)


def read_records(path: Place) -> Iterator[bytes]:
    """Yield the data of every record of a file, verified.

    Raises DatasetError with the file and the offset in bytes of the first record that is damaged or cut.
    """
    is_gzip = path.name.endswith(GZIP_SUFFIX)
    with path.open("rb") as file, gzip.open(file) if is_gzip else nullcontext(file) as records:
        yield from records_of(records, path)  # type: ignore[arg-type]


def records_of(file: IO[bytes], path: Place) -> Iterator[bytes]:
    """Yield the data of every record of an open file, verified. Raises DatasetError as `read_records` does."""
    while True:
        offset = file.tell()
        try:
            header = file.read(HEADER_BYTES)
            if not header:
                return
            data = _checked(file, path, offset, header)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise DatasetError(
                f"{path}: the compressed stream is damaged after byte {offset} of the records: {error}"
            ) from error
        yield data


def sizes_of_records(file: IO[bytes], path: Place) -> Iterator[int]:
    """Yield the size in bytes of each record of an open file, with its frame. Only the headers are read.

    Raises DatasetError with the file and the offset in bytes of the first record that has a damaged header or is cut.
    """
    offset = size = 0
    while header := file.read(HEADER_BYTES):
        size = record_size(header, path, offset)
        yield size
        offset = file.seek(offset + size)
    # A seek beyond the end of a file raises no error.
    if offset > file.seek(0, os.SEEK_END):
        raise DatasetError(f"{path}: the record at byte {offset - size} is cut short")


def record_at(path: Place, offset: int, size: int) -> bytes:
    """Return the data of one record of a file that is not compressed, verified, without reading any other record.

    Args:
        path: The file.
        offset: Start of the record in the file, in bytes.
        size: Size of the record with its frame, in bytes.

    Raises DatasetError if the record is damaged, or if there is none of this size.
    """
    return next(records_in(path, [offset], [size]))


def records_in(path: Place, offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
    """Yield the data of some records of a file that is not compressed, verified. They are read as one range.

    Args:
        path: The file.
        offsets: Start of each record in the file, in bytes, ascending.
        sizes: Size of each record with its frame, in bytes.

    Raises DatasetError if a record is damaged, or if there is none of this size.
    """
    start, end = offsets[0], offsets[-1] + sizes[-1]
    content = memoryview(storage.read_range(path, start, end - start))
    for offset, size in zip(offsets, sizes, strict=True):
        framed = bytes(content[offset - start : offset - start + size])
        if record_size(framed, path, offset) != size:
            raise DatasetError(
                f"{path}: the record at byte {offset} does not have the {size} bytes that its index states"
            )
        yield _checked(io.BytesIO(framed[HEADER_BYTES:]), path, offset, framed[:HEADER_BYTES])


def record_size(begin: bytes, path: Place, offset: int) -> int:
    """Return the size in bytes of a record with its frame, from the bytes with which it begins.

    Raises DatasetError with the file and the offset of the record if its header is damaged.
    """
    # The checksum comes before the use of the length: with a flipped bit, it could ask for any number of bytes.
    if not has_valid_header(begin):
        raise DatasetError(f"{path}: the record at byte {offset} has a damaged header")
    return HEADER_BYTES + int.from_bytes(begin[:8], "little") + FOOTER_BYTES


def has_valid_header(begin: bytes) -> bool:
    """Whether a file that begins with `begin` begins with a record, by the checksum of the length of the record."""
    header = begin[:HEADER_BYTES]
    return len(header) == HEADER_BYTES and _CRC.unpack(header[8:])[0] == masked_crc32c(header[:8])


def decompressed(file: IO[bytes]) -> IO[bytes]:
    """Return the bytes of an open file that is compressed by gzip, with one or several members, or by zlib.

    Reading raises zlib.error if the bytes are damaged, and EOFError if they are cut.
    """
    return io.BufferedReader(_Decompressed(file), _CHUNK)


class _Decompressed(io.RawIOBase):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = zlib.decompressobj(_ANY_WBITS)
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        while True:
            piece = (self._stream.unused_data or self._stream.unconsumed_tail) or self._file.read(_CHUNK)
            if self._stream.eof:
                if not piece:
                    return 0
                self._stream = zlib.decompressobj(_ANY_WBITS)  # Another member follows.
            data = self._stream.decompress(piece, len(buffer))
            if data:
                buffer[: len(data)] = data
                self._position += len(data)
                return len(data)
            # Without more input, the stream may still have had output.
            if not piece and not self._stream.eof:
                raise EOFError("the compressed stream has no end")


def _checked(file: IO[bytes], path: Place, offset: int, header: bytes) -> bytes:
    length = record_size(header, path, offset) - HEADER_BYTES - FOOTER_BYTES
    data, footer = file.read(length), file.read(FOOTER_BYTES)
    if len(data) < length or len(footer) < FOOTER_BYTES:
        raise DatasetError(f"{path}: the record at byte {offset} is cut short")
    if _CRC.unpack(footer)[0] != masked_crc32c(data):
        raise DatasetError(f"{path}: the record at byte {offset} is damaged")
    return data
