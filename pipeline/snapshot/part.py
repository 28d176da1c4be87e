"""A part of a snapshot: rows that follow each other in the order of the keys.

A part has three files, which are designed for a million rows. The rows are one compact JSON array per line. ASCII
escapes preserve newlines and keys that are not UTF-8. The columns are the same rows as numbers of fixed width, which
suffice for planning without parsing a line. The labels are one JSON array. The names of the files contain a hash of all
bytes of the rows, so a file with a given name never changes.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pipeline import storage
from pipeline.errors import FileSystemError
from pipeline.snapshot.fingerprint import Fingerprint
from pipeline.snapshot.raw_image import RawImage, content_of, from_line, key_bytes, to_line
from pipeline.storage import Place, place_of

TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")
COLUMNS = np.dtype(
    [
        ("offset", "<u8"),  # offset of the line in the file of rows
        ("key", "<u8"),  # hash of the key
        ("group", "<u8"),  # hash of the group, or of the content if the row has no group
        ("size", "<i8"),
        ("crc32c", "<u4"),
        ("split", "i1"),  # index in SPLITS, or -1 if the source states none
        ("label", "<i4"),  # index of the first label in the labels of the part
    ]
)
_COLUMN_FORMAT = struct.Struct("<QQQqIbi")
"""This is the layout of one element of COLUMNS, without padding."""


@dataclass(frozen=True)
class PartLimits:
    """A part ends when one of these is reached, so that a task that sorts it needs 0.3 GB of memory."""

    rows: int = 1_000_000
    bytes: int = 128_000_000


PART_LIMITS = PartLimits()


@dataclass(frozen=True)
class Part:
    """The description of a part."""

    rows: str
    """Path of the file of rows. The other files are beside it."""
    listed: int
    sum: str
    """`Fingerprint.sum` of the rows, hexadecimal."""
    first: str
    """Key of the first row."""
    last: str
    """Key of the last row."""

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the rows."""
        return Fingerprint(self.listed, int(self.sum, 16))

    def beside(self, suffix: str) -> Place:
        """Return the file of this part with another suffix."""
        return place_of(self.rows).with_suffix(suffix)

    def columns(self) -> NDArray[np.void]:
        """Return one element of type COLUMNS per row, mapped into memory and not read."""
        return load_array(self.beside(".columns"), COLUMNS, self.listed)

    def labels(self) -> list[str]:
        """Return the labels in the order of their numbers in the columns."""
        labels: list[str] = storage.read_json(self.beside(".labels"))
        return labels

    def row(self, number: int) -> "Row":
        """Return one row by its number in this part. This reads only a few bytes."""
        # Two elements are read: the line ends at the offset of the next line.
        numbers = storage.read_range(self.beside(".columns"), number * COLUMNS.itemsize, 2 * COLUMNS.itemsize)
        columns = np.frombuffer(numbers, COLUMNS)
        rows, start = place_of(self.rows), int(columns[0]["offset"])
        end = int(columns[1]["offset"]) if len(columns) == 2 else rows.stat().st_size
        return Row(columns[:1], from_line(storage.read_range(rows, start, end - start)))


@dataclass(frozen=True)
class Row:
    """One row, as its element of COLUMNS in an array of length 1, and parsed."""

    columns: NDArray[np.void]
    image: RawImage


def load_array(place: Place, dtype: np.dtype[np.void], length: int) -> NDArray[np.void]:
    """Return the array in a file, mapped into memory and not read."""
    if not length:  # An empty file cannot be mapped.
        return np.empty(0, dtype)
    try:
        with place.open("rb") as file:  # The mapping outlives the open file.
            return np.memmap(file, dtype, mode="r", shape=(length,))
    except (FileNotFoundError, ValueError) as error:  # ValueError: the file is too short.
        raise FileSystemError(
            f"{place} is missing or too short: run `extract` again (in Airflow: clear `extract` and all tasks after it)"
        ) from error


def rows_of(parts: Iterable[Part]) -> Iterator[RawImage]:
    """Yield the rows of parts in order."""
    for part in parts:
        with place_of(part.rows).open("rb") as lines:
            yield from map(from_line, lines)


def write_parts(rows: Iterable[RawImage], folder: Place, limits: PartLimits) -> Iterator[Part]:
    """Write rows as parts of a limited size into `folder`, and yield each part when it is complete."""
    rest = iter(rows)
    for first in rest:
        yield _write_part(chain([first], rest), folder, limits)


def _write_part(rows: Iterator[RawImage], folder: Place, limits: PartLimits) -> Part:
    fingerprint, digest = Fingerprint(), hashlib.blake2b(digest_size=16)
    labels: dict[str, int] = {}
    count = offset = 0
    first = ""
    with ExitStack() as stack:
        rows_path = stack.enter_context(storage.temporary_for(folder / "part.jsonl"))
        columns_path = stack.enter_context(storage.temporary_for(folder / "part.columns"))
        with open(rows_path, "wb") as rows_file, open(columns_path, "wb") as columns_file:
            for row in rows:
                content = content_of(row)
                line = to_line(content, row)
                # The place of a rejected row is left out, because the same rows may come in another order.
                fingerprint.add(content + (row.content or "".join(row.rejection[:2])).encode())
                digest.update(line)
                # A row of a table has no class if its label is a number.
                label = labels.setdefault(row.labels[0] if row.labels else "", len(labels))
                columns_file.write(_to_columns(row, offset, label))
                offset += rows_file.write(line)
                first = first or row.key
                count += 1
                if count >= limits.rows or offset >= limits.bytes:
                    break
        # The names contain the hash, which is known only after the last row.
        place = folder / f"{digest.hexdigest()}.jsonl"
        with storage.write_whole(place.with_suffix(".labels"), synced=True) as file:
            file.write(json.dumps(list(labels)).encode())
        storage.move_whole(columns_path, place.with_suffix(".columns"))
        storage.move_whole(rows_path, place)
    return Part(str(place), count, f"{fingerprint.sum:x}", first, row.key)


def _to_columns(row: RawImage, offset: int, label: int) -> bytes:
    """Return a row as one element of COLUMNS."""
    key = hash_text(row.key)
    # Files that are not read have no CRC32C. Without the key, all those of one size would be one group.
    own = size_and_crc32c(row.size, row.crc32c) if row.crc32c else key
    group = hash_text(row.group) if row.group else own
    split = SPLITS.index(row.split) if row.split else -1
    return _COLUMN_FORMAT.pack(offset, key, group, row.size, row.crc32c, split, label)


def hash_text(text: str) -> int:
    """Return a hash of 64 bits of a key or a group. It is never 0, which stands for none."""
    digest = hashlib.blake2b(key_bytes(text), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def size_and_crc32c(size: int, crc32c: int) -> int:
    """Return 64 bits that equal files share, from what is known without reading them."""
    # 0 stands for none, as in `hash_text`.
    return (size << 32 | crc32c) & 0xFFFFFFFFFFFFFFFF or 1
