"""The TFRecord format: framing and checksums, without TensorFlow.

A record is: length (8 bytes, little endian), masked CRC32C of those 8 bytes, data, masked CRC32C of the data.
Source: tensorflow/core/lib/io/record_writer.h and tensorflow/core/lib/hash/crc32c.h.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import google_crc32c

from pipeline.errors import DatasetError

HEADER_BYTES = 12
FOOTER_BYTES = 4
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def masked_crc32c(data: bytes) -> int:
    """CRC32C of `data`, rotated and shifted as TFRecord wants it, since a CRC of data that holds CRCs is weak."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """`data` as one record."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CRC.pack(masked_crc32c(length)), data, _CRC.pack(masked_crc32c(data))))


def read_records(path: Path) -> Iterator[bytes]:
    """The data of every record of a file, checked.

    Raises DatasetError naming the file and the offset in bytes of the first record that is damaged or cut.
    """
    with open(path, "rb") as file:
        while (data := _read_record(file, path)) is not None:
            yield data


def _read_record(file: IO[bytes], path: Path) -> bytes | None:
    offset = file.tell()
    header = file.read(HEADER_BYTES)
    if not header:
        return None
    if len(header) < HEADER_BYTES or _CRC.unpack(header[8:])[0] != masked_crc32c(header[:8]):
        raise DatasetError(f"{path}: the record at byte {offset} has a damaged header")
    (length,) = _LENGTH.unpack(header[:8])
    data, footer = file.read(length), file.read(FOOTER_BYTES)
    if len(data) < length or len(footer) < FOOTER_BYTES:
        raise DatasetError(f"{path}: the record at byte {offset} is cut short")
    if _CRC.unpack(footer)[0] != masked_crc32c(data):
        raise DatasetError(f"{path}: the record at byte {offset} is damaged")
    return data
