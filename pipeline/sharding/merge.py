"""Merge pieces of sorted parts into the rows of shards.

This module is light to import, like all modules of a shard task, which starts in tenths of a second.
"""

import heapq
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from pipeline import storage
from pipeline.errors import SettingsError
from pipeline.snapshot.raw_image import from_line, key_bytes
from pipeline.storage import Place, place_of

ROWS_IN_MEMORY = 200_000
"""All pieces together hold about this many rows in memory, of 0.2 kB each."""
MIN_ROWS = 100
"""A piece reads at least this many rows at once, because each read from a bucket is a request.

With ten billion images, there are 20,000 pieces, whose rows take 0.5 GB.
"""
_INDEX_BYTES = 16
"""Size of an element of `INDEX` in pipeline/sharding/sort.py."""


class Piece(NamedTuple):
    """Rows of one split that follow each other in a sorted part."""

    split: str
    lines: str
    """Path of the file of the sorted lines. The index is beside it."""
    first: int
    """Number of the first row in the index."""
    rows: int
    begin: int
    """Offset of the first line in the file."""


class _Line(bytes):
    """A line that sorts by its key. Only lines with equal hashes are compared."""

    def __lt__(self, other: bytes) -> bool:
        return key_bytes(from_line(self).key) < key_bytes(from_line(other).key)


def to_line(piece: Piece) -> bytes:
    """Return a piece as a line of a plan file."""
    return json.dumps(piece).encode("ascii") + b"\n"


def read_pieces(file: IO[bytes]) -> list[Piece]:
    """Return the pieces that follow the first line of a plan file."""
    return [Piece(*json.loads(line)) for line in file]


def merged_lines(pieces: Iterable[Piece], rows_in_memory: int = ROWS_IN_MEMORY) -> Iterator[bytes]:
    """Yield the rows of pieces in the order of the shards: by hash, and by key if two hashes are equal.

    The pieces of one split must follow each other. Memory does not grow with their rows.
    """
    of_split: dict[str, list[Piece]] = {}
    for piece in pieces:
        of_split.setdefault(piece.split, []).append(piece)
    for members in of_split.values():
        rows_at_once = max(MIN_ROWS, rows_in_memory // len(members))
        for _, line in heapq.merge(*(_hashed_lines(piece, rows_at_once) for piece in members)):
            yield line


def _hashed_lines(piece: Piece, rows_at_once: int) -> Iterator[tuple[int, _Line]]:
    lines_path = place_of(piece.lines)
    index_path, begin = lines_path.with_suffix(".index"), piece.begin
    for first in range(piece.first, piece.first + piece.rows, rows_at_once):
        count = min(rows_at_once, piece.first + piece.rows - first)
        numbers = _numbers(index_path, first, count)
        hashes, end = numbers[::2], numbers[-1]
        lines = _read(lines_path, begin, end - begin).splitlines(keepends=True)
        yield from zip(hashes, map(_Line, lines), strict=True)
        begin = end


def _numbers(index_path: Place, first: int, count: int) -> Sequence[int]:
    """Return hash and end of each of some rows, one after the other."""
    return struct.unpack(f"<{2 * count}Q", _read(index_path, first * _INDEX_BYTES, count * _INDEX_BYTES))


def _read(place: Place, start: int, length: int) -> bytes:
    try:
        content = storage.read_range(place, start, length)
    except FileNotFoundError as error:
        raise SettingsError(
            f"{place} is missing, so the plan cannot be followed: run `extract` again, and all stages after it (in "
            "Airflow: clear `extract` and all tasks after it)"
        ) from error
    if len(content) != length:
        raise SettingsError(f"{place} has fewer bytes than planned: remove it, and run `shard` again from its plan")
    return content
