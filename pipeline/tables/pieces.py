"""Divide the files of a table into pieces that several tasks can read.

A CSV file is divided after a line break that ends a row, and a Parquet file between any two rows. All other files, and
those in a bucket, are one piece each: a compressed file can only be read from its start, and an object is copied whole.
"""

import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from pyarrow import parquet

from pipeline.storage import Place, place_of

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Piece:
    """A part of a file of a table.

    Attributes:
        file: The URI of the file.
        size: About how many bytes the values of the piece take.
        begin: Offset of the first byte of a CSV file, or number of the first row of a Parquet file. A piece that begins
            at 0 also has the header.
        end: The same for what follows the piece. None is the end of the file.
        rows_before: Number of rows of the file before the piece.
        has_checked_quotes: Whether the quotes of a CSV file were checked.
    """

    file: str
    size: int = 0
    begin: int = 0
    end: int | None = None
    rows_before: int = 0
    has_checked_quotes: bool = False

    @property
    def place(self) -> Place:
        """The file."""
        return place_of(self.file)


def whole(place: Place, *, has_checked_quotes: bool = False) -> Piece:
    """Return a whole file as a piece."""
    return Piece(str(place), place.stat().st_size, has_checked_quotes=has_checked_quotes)


class Section(io.RawIOBase):
    """The bytes of a piece of a file, as a file."""

    def __init__(self, file: IO[bytes], piece: Piece) -> None:
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


def csv_pieces(file: Path, max_bytes: int) -> list[Piece]:
    """Return pieces of about `max_bytes` of a CSV file, whose quotes were checked.

    The file is not compressed, and its encoding is one in which line breaks and quotes are those of ASCII.
    """
    size = file.stat().st_size
    # Pieces of equal size keep all cores busy until the end.
    bounds = [0, *_row_starts(file, size // -(-size // max_bytes)), size]
    return [Piece(str(file), end - begin, begin, end, has_checked_quotes=True) for begin, end in pairwise(bounds)]


def parquet_pieces(file: Path, max_bytes: int) -> list[Piece]:
    """Return pieces of a Parquet file whose values take about `max_bytes` each."""
    metadata = parquet.read_metadata(file)
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    count = max(1, min(size // max_bytes, metadata.num_rows))
    bounds = [metadata.num_rows * number // count for number in range(count + 1)]
    return [Piece(str(file), size // count, begin, end, rows_before=begin) for begin, end in pairwise(bounds)]


def grouped(pieces: Iterable[Piece], max_bytes: int) -> list[list[Piece]]:
    """Return pieces in groups that follow each other, of about `max_bytes` each."""
    groups: list[list[Piece]] = []
    free = 0
    for piece in pieces:
        if free < piece.size or not groups:
            groups.append([])
            free = max_bytes
        groups[-1].append(piece)
        free -= piece.size
    return groups


def _row_starts(file: Path, max_bytes: int) -> Iterator[int]:
    """Yield where a row starts, first after `max_bytes`, and then again after as many bytes."""
    size, position, last = file.stat().st_size, 0, 0
    with file.open("rb") as stream:
        while rows := stream.read(min(max_bytes, _CHUNK)) + stream.readline():
            # A line break between quotes is a part of a value.
            while rows.count(b'"') % 2 and (line := stream.readline()):
                rows += line
            position += len(rows)
            if position - last >= max_bytes and position < size:
                yield position
                last = position
