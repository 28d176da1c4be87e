"""Merge pieces of sorted parts into the rows of shards.

This module is light to import, like all modules of a shard task, which starts in tenths of a second.
"""

import json
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import IO, Any, NamedTuple

import google_crc32c

from pipeline import storage
from pipeline.config.allowed import require_outputs
from pipeline.errors import FileSystemError
from pipeline.plan.range_plan import CLEAR_PLAN
from pipeline.storage import Place, place_of

ROWS_IN_MEMORY = 100_000
"""All pieces in a bucket together hold about this many rows in memory, unless there are very many pieces."""
LOCAL_ROWS = 20_000
"""The same for pieces on a disk, where it takes little time to read a few rows."""
ROW_BYTES = 300
"""An example has about this many bytes in a row. A row of a table may have more. Then fewer rows are held."""
MIN_ROWS = 100
"""A piece reads at least this many rows at once, because each read from a bucket is a request.

With ten billion examples, there are 20,000 pieces, whose rows take 0.7 GB.
"""
_INDEX = "QQI"
"""An element of `INDEX` in pipeline/plan/sort.py: order hash, end of the line, and checksum."""
_INDEX_BYTES = struct.calcsize("<" + _INDEX)


class Piece(NamedTuple):
    """Rows of one split that follow each other in a sorted part."""

    split: str
    lines: str
    """Path of the file of the sorted lines."""
    index_file: str
    """Path of their index."""
    first: int
    """Number of the first row in the index."""
    rows: int
    begin: int
    """Offset of the first line in the file."""
    end: int
    """End of the last line in the file."""


def to_line(piece: Piece) -> bytes:
    """Return a piece as a line of a plan file."""
    return json.dumps(piece).encode("ascii") + b"\n"


def read_pieces(file: IO[bytes]) -> list[Piece]:
    """Return the pieces that follow the first line of a plan file.

    Raises:
        SettingsError: If the administrator does not allow one of their files.
    """
    pieces = [Piece(*json.loads(line)) for line in file]
    require_outputs(map(place_of, {path for piece in pieces for path in (piece.lines, piece.index_file)}))
    return pieces


def folded(order_hash: Any) -> Any:
    """Return 32 bits of an order hash, or of each hash of an array."""
    return (order_hash ^ order_hash >> 32) & 0xFFFFFFFF


def checksum(order_hash: int, line: bytes) -> int:
    """Return the CRC32C of a line, combined with its order hash, so that it protects both."""
    combined: int = google_crc32c.value(line) ^ folded(order_hash)
    return combined


def merged_lines(pieces: Iterable[Piece], rows_in_memory: int | None = None) -> Iterator[bytes]:
    """Yield the rows of pieces in the order of the shards: by hash, and by line if two hashes are equal.

    The pieces of one split must follow each other. Memory does not grow with their rows.

    Raises:
        FileSystemError: If a file of a sorted part is missing or damaged.
    """
    of_split: dict[str, list[Piece]] = {}
    for piece in pieces:
        of_split.setdefault(piece.split, []).append(piece)
    for members in of_split.values():
        rows = rows_in_memory or (ROWS_IN_MEMORY if storage.is_bucket(members[0].lines) else LOCAL_ROWS)
        # A piece holds up to twice as many, because it is filled up when it has fewer.
        rows_at_once = max(MIN_ROWS, rows // len(members) // 2)
        yield from chain.from_iterable(_merged([_Ahead(piece, _fitting(rows_at_once, piece)) for piece in members]))


def _merged(pieces: Sequence["_Ahead"]) -> Iterator[list[bytes]]:
    """Yield the lines of all pieces in order, many at a time.

    To sort many rows, of which each piece has some in order, takes half of the time of a heap.
    """
    while pieces := [piece for piece in pieces if piece.fill()]:
        # Later rows come after this one, whatever their pieces are.
        last = min((piece.hashes[-1], piece.lines[-1]) for piece in pieces)
        found = sorted(chain.from_iterable(piece.taken(*last) for piece in pieces))
        yield [line for _, line in found]


class _Ahead:
    """The next rows of a piece, which are in memory."""

    def __init__(self, piece: Piece, rows_at_once: int) -> None:
        self.hashes: list[int] = []
        self.lines: list[bytes] = []
        self._blocks, self._rows_at_once = _blocks(piece, rows_at_once), rows_at_once

    def fill(self) -> bool:
        """Read more rows if there are few. Return whether there is any."""
        if len(self.lines) < self._rows_at_once and (rows := next(self._blocks, None)):
            self.hashes += rows.hashes
            self.lines += rows.lines
        return bool(self.lines)

    def taken(self, order_hash: int, line: bytes) -> Iterable[tuple[int, bytes]]:
        """Take the rows up to this hash and line, with their hashes."""
        count = bisect_right(self.hashes, order_hash)
        while count and self.hashes[count - 1] == order_hash and self.lines[count - 1] > line:
            count -= 1
        found = zip(self.hashes[:count], self.lines[:count], strict=True)
        del self.hashes[:count], self.lines[:count]
        return found


def _fitting(rows: int, piece: Piece) -> int:
    """Return a number of rows of a piece that take as much memory as `rows` examples."""
    mean_bytes = (piece.end - piece.begin) // max(piece.rows, 1)
    return max(1, rows * ROW_BYTES // max(mean_bytes, ROW_BYTES))


def read_sorted(place: Place, start: int, length: int) -> bytes:
    """Return some bytes of a file of a sorted part.

    Raises:
        FileSystemError: If the file is missing or too short.
    """
    try:
        content = storage.read_range(place, start, length)
    except FileNotFoundError:
        content = b""
    if len(content) != length:
        raise _lost(place, "is missing or too short")
    return content


def _blocks(piece: Piece, rows_at_once: int) -> Iterator["_Rows"]:
    """Yield the rows of a piece, `rows_at_once` at a time."""
    lines_path, begin = place_of(piece.lines), piece.begin
    for first in range(piece.first, piece.first + piece.rows, rows_at_once):
        count = min(rows_at_once, piece.first + piece.rows - first)
        # Damaged rows would become wrong labels. A bucket states no checksum of a part of an object, so it is read
        # again: the damage may be that of one transfer.
        rows = _checked_rows(piece, first, count, begin) or _checked_rows(piece, first, count, begin)
        if not rows:
            raise _lost(lines_path, "is damaged")
        yield rows
        begin = rows.end


class _Rows(NamedTuple):
    hashes: Sequence[int]
    lines: Sequence[bytes]
    end: int
    """End of the last line in the file."""


def _checked_rows(piece: Piece, first: int, count: int, begin: int) -> _Rows | None:
    """Return some rows; None if they do not match their checksums."""
    lines_path = place_of(piece.lines)
    index = read_sorted(place_of(piece.index_file), first * _INDEX_BYTES, count * _INDEX_BYTES)
    # One tuple of all numbers, because a tuple for each row would keep the garbage collector busy.
    numbers = struct.unpack("<" + count * _INDEX, index)
    hashes, ends, checksums = numbers[::3], numbers[1::3], numbers[2::3]
    if not begin < ends[-1] <= piece.end:
        return None
    content = read_sorted(lines_path, begin, ends[-1] - begin)
    lines = [content[one - begin : other - begin] for one, other in pairwise((begin, *ends))]
    # As `checksum`, but without a call for each row.
    found = [
        crc ^ (hash_ ^ hash_ >> 32) & 0xFFFFFFFF
        for crc, hash_ in zip(map(google_crc32c.value, lines), hashes, strict=True)
    ]
    return _Rows(hashes, lines, ends[-1]) if found == list(checksums) else None


def _lost(place: Place, what: str) -> FileSystemError:
    if place.suffix == ".jsonl":  # Rows of a table are not copied when a part is sorted.
        # Perhaps only the index is damaged. It would stay, because the new part may have the same name.
        return FileSystemError(
            f"{place} {what}: it belongs to the snapshot, so remove all files {place.with_suffix('.*')}, and begin "
            "with `extract` (in Airflow: clear `extract` and all tasks after it)"
        )
    return FileSystemError(
        f"{place} {what}: remove all files {place.with_suffix('.*')}, and run `shard` again from its plan (in Airflow: "
        f"{CLEAR_PLAN}). If rows of the snapshot are lost, too, begin with `extract`"
    )
