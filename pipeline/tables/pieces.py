"""Divide the files of a table into pieces that several tasks can read.

A CSV file is divided after a line break that ends a row, and a Parquet file between any two rows. An Arrow file, a
compressed file and a file in a bucket are one piece each: a compressed file can only be read from its start, and an
object is copied whole. Tables of JSON lines or TFRecord files are not divided at all.
"""

import io
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from pyarrow import parquet

from pipeline.storage import Place

_CHUNK = 1 << 20
_MAX_OF_ROW_GROUP = 8
"""A row group of a Parquet file has at most this many pieces. To read one, all rows before it in its group are decoded.
"""
MIN_BYTES_OF_PROCESS = 8_000_000
"""A process of this machine that waits for work is worth a range of at least this size, which takes about half
a second."""


def bytes_of_each(total: int, max_bytes: int, processes: int) -> int:
    """Return about how many bytes each range of a table of `total` bytes has, if processes of this machine read them.

    All processes get equally many ranges, so that none is idle at the end, unless the ranges would be too small.
    `total` is at least 1.
    """
    ranges = -(-total // max_bytes)
    for_all = -(-ranges // processes) * processes
    return -(-total // max(ranges, min(for_all, total // MIN_BYTES_OF_PROCESS)))


@dataclass(frozen=True)
class FilePiece:
    """A part of a file of a table.

    Attributes:
        file: The URI of the file.
        size: About how many bytes the values of the piece take.
        begin: Offset of the first byte of a CSV file, or number of the first row of a Parquet file. A piece that begins
            at 0 also has the header.
        end: The same for what follows the piece. None is the end of the file.
        rows: Number of rows. None if it is not known before the piece is read.
        rows_before: Number of rows of the file before the piece.
        has_checked_quotes: Whether the quotes of a CSV file were checked.
    """

    file: str
    size: int = 0
    begin: int = 0
    end: int | None = None
    rows: int | None = None
    rows_before: int = 0
    has_checked_quotes: bool = False


def whole(place: Place, *, has_checked_quotes: bool = False) -> FilePiece:
    """Return a whole file as a piece."""
    return FilePiece(str(place), place.stat().st_size, has_checked_quotes=has_checked_quotes)


class PieceStream(io.RawIOBase):
    """The bytes of a piece of a file, as a file."""

    def __init__(self, file: IO[bytes], piece: FilePiece) -> None:
        self._file = file
        self._file.seek(piece.begin)
        self._left = sys.maxsize if piece.end is None else piece.end - piece.begin

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, and return their number."""
        content = self._file.read(min(len(buffer), self._left))
        buffer[: len(content)] = content
        self._left -= len(content)
        return len(content)


def csv_pieces(file: Path, max_bytes: int) -> list[FilePiece]:
    """Return pieces of about `max_bytes` of a CSV file, whose quotes were checked.

    The file is not compressed, and its encoding is one in which line breaks and quotes are those of ASCII.
    """
    size = file.stat().st_size
    # Pieces of equal size keep all cores busy until the end.
    bounds = [0, *_row_starts(file, size // -(-size // max_bytes)), size]
    return [FilePiece(str(file), end - begin, begin, end, has_checked_quotes=True) for begin, end in pairwise(bounds)]


def parquet_pieces(file: Path, max_bytes: int) -> list[FilePiece]:
    """Return pieces of a Parquet file whose values take about `max_bytes` each."""
    metadata = parquet.read_metadata(file)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    bounds, row, filled = [0], 0, 0
    for group in groups:
        size, rows = group.total_byte_size, group.num_rows
        if filled and filled + size > max_bytes:
            bounds.append(row)
            filled = 0
        parts = max(1, min(size // max_bytes, _MAX_OF_ROW_GROUP, rows))
        bounds += [row + rows * part // parts for part in range(1, parts)]
        filled = size // parts if parts > 1 else filled + size
        row += rows
    row_bytes = sum(group.total_byte_size for group in groups) / max(row, 1)
    return [
        FilePiece(str(file), int((end - begin) * row_bytes), begin, end, rows=end - begin, rows_before=begin)
        for begin, end in pairwise([*bounds, row])
    ]


def grouped(pieces: Iterable[FilePiece], max_bytes: int) -> list[list[FilePiece]]:
    """Return pieces in groups that follow each other, of about `max_bytes` each."""
    groups: list[list[FilePiece]] = []
    free = 0
    for piece in pieces:
        if free < piece.size or not groups:
            groups.append([])
            free = max_bytes
        groups[-1].append(piece)
        free -= piece.size
    return groups


def _row_starts(file: Path, max_bytes: int) -> Iterator[int]:
    """Yield offsets in bytes at which a row starts. They are at least `max_bytes` apart."""
    size, position, last, is_quoted = file.stat().st_size, 0, 0, False
    with file.open("rb") as stream:
        while content := stream.read(min(max_bytes, _CHUNK)):
            position += len(content)
            is_quoted ^= content.count(b'"') % 2 == 1
            # A line break between quotes is a part of a value. A line may be long, or the whole file.
            while not content.endswith(b"\n") or is_quoted:
                if not (content := stream.readline(_CHUNK)):
                    return
                position += len(content)
                is_quoted ^= content.count(b'"') % 2 == 1
            if position - last >= max_bytes and position < size:
                # Arrow drops a byte order mark at the start of a stream, which is a part of a value here.
                has_mark = stream.read(3) == BOM_UTF8
                stream.seek(position)
                if not has_mark:
                    yield position
                    last = position
