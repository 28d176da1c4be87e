"""A part of a snapshot: rows that follow each other in the order of the keys.

A part has three files, which are designed for a million rows. The rows are one compact JSON array per line. ASCII
escapes preserve newlines and keys that are not UTF-8. After the line of a row of a table, its record follows. The
columns are the same rows as numbers of fixed width, which suffice for planning without parsing a line. The labels are
one JSON array. The names of the files contain a hash of all bytes of the rows, so a file with a given name never
changes.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from pipeline import storage
from pipeline.config.allowed import require_outputs
from pipeline.errors import FileSystemError
from pipeline.snapshot.fingerprint import Fingerprint
from pipeline.snapshot.raw_example import RawExample, content_of, from_line, from_lines, to_line
from pipeline.sources.key_range import bytes_of
from pipeline.storage import Place, place_of

TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")
COLUMNS = np.dtype(
    [
        ("offset", "<u8"),  # offset of the line in the file of rows
        ("order", "<u8"),  # hash of the key of an image, or of the whole row of a table
        ("group", "<u8"),  # hash of the group, or of the content if the row has no group
        ("content", "<u8"),  # hash that equal examples share; 0 if the row is not compared
        ("size", "<i8"),
        ("crc32c", "<u4"),
        ("split", "i1"),  # index in SPLITS, or -1 if the source states none
        ("label", "<i4"),  # index of the first label in the labels of the part
    ]
)
SNAPSHOT_FORMAT = 4
"""The format of parts, and of the snapshots and listings that describe them."""
EXTRACT_AGAIN = "run `extract` again (in Airflow: clear `extract` and all tasks after it)"
"""What to do about a snapshot or a listing that cannot be used."""
ROWS_AT_ONCE = 1024
"""This many rows of a part are read or written together."""


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
        place = self.beside(".columns")
        try:
            with place.open("rb") as file:  # The mapping outlives the open file.
                return np.memmap(file, COLUMNS, mode="r", shape=(self.listed,))
        except (FileNotFoundError, ValueError) as error:  # ValueError: the file is too short.
            raise FileSystemError(f"{place} is missing or too short: {EXTRACT_AGAIN}") from error

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


def allowed_part(content: Mapping[str, Any]) -> Part:
    """Return the part that a snapshot or a listing describes.

    Raises SettingsError if the administrator does not allow one of its files.
    """
    part = Part(**content)
    require_outputs([place_of(part.rows), part.beside(".columns"), part.beside(".labels")])
    return part


@dataclass(frozen=True)
class Row:
    """One row, as its element of COLUMNS in an array of length 1, and parsed."""

    columns: NDArray[np.void]
    example: RawExample


def rows_of(parts: Iterable[Part]) -> Iterator[RawExample]:
    """Yield the rows of parts in order."""
    for part in parts:
        for rows in from_lines(_lines_of(part)):
            yield from rows


def _lines_of(part: Part) -> Iterator[bytes]:
    rows = place_of(part.rows)
    ends = np.append(part.columns()["offset"][1:], np.uint64(rows.stat().st_size))
    with rows.open("rb") as file:
        begin = 0
        for start in range(0, part.listed, ROWS_AT_ONCE):
            bounds = [begin, *ends[start : start + ROWS_AT_ONCE].tolist()]
            content = file.read(bounds[-1] - begin)
            yield from (content[one - begin : other - begin] for one, other in pairwise(bounds))
            begin = bounds[-1]


@dataclass(frozen=True)
class Block:
    """Rows that follow each other, in the form in which a part stores them."""

    keys: Sequence[str]
    labels: Sequence[str]
    """The first label of each row. Empty for a row of a table whose label is a number."""
    identities: Sequence[bytes]
    """What the fingerprint consists of, for each row."""
    lines: Sequence[bytes]
    columns: NDArray[np.void]
    """Elements of COLUMNS, without the offset and the label."""

    def slice(self, first: int, last: int) -> "Block":
        """Return the rows from the number `first` up to `last`, which is excluded."""
        return Block(
            keys=self.keys[first:last],
            labels=self.labels[first:last],
            identities=self.identities[first:last],
            lines=self.lines[first:last],
            columns=self.columns[first:last],
        )


def blocks_of(rows: Iterable[RawExample]) -> Iterator[Block]:
    """Yield rows as blocks."""
    rest = iter(rows)
    while some := list(islice(rest, ROWS_AT_ONCE)):
        yield block_of(some)


def block_of(rows: Sequence[RawExample]) -> Block:
    """Return rows as a block."""
    contents = list(map(content_of, rows))
    return Block(
        keys=[row.key for row in rows],
        labels=[row.labels[0] if row.labels else "" for row in rows],
        # The place of a rejected row is left out, because the same rows may come in another order.
        identities=[
            content + (row.content or "".join(row.rejection[:2]).encode())
            for content, row in zip(contents, rows, strict=True)
        ],
        lines=list(map(to_line, contents, rows)),
        columns=columns_of(
            keys=[row.key for row in rows],
            groups=[row.group for row in rows],
            splits=[row.split for row in rows],
            sizes=np.array([row.size for row in rows], np.int64),
            crc32cs=np.array([row.crc32c or 0 for row in rows], np.uint32),
            are_known=np.array([row.crc32c is not None for row in rows]),
        ),
    )


def columns_of(
    *,
    keys: Sequence[str],
    groups: Sequence[str],
    splits: Sequence[str],
    sizes: NDArray[np.int64],
    crc32cs: NDArray[np.uint32],
    are_known: NDArray[np.bool_] | bool,
) -> NDArray[np.void]:
    """Return some rows as elements of COLUMNS, without the offset and the label.

    `are_known` says which of the checksums are known. The order and the content are those of images: a table sets its
    own.
    """
    columns = np.zeros(len(keys), COLUMNS)
    columns["order"], columns["size"], columns["crc32c"] = hash_texts(keys), sizes, crc32cs
    is_compared = are_known & (sizes > 0)
    columns["content"] = np.where(is_compared, sizes_and_crc32cs(sizes, crc32cs), np.uint64(0))
    # Without the key, all empty files would be one group, and all files of one size that are not read.
    own = np.where(is_compared, columns["content"], columns["order"])
    columns["group"] = np.where([bool(group) for group in groups], hash_texts(groups), own) if any(groups) else own
    columns["split"] = [SPLITS.index(split) if split else -1 for split in splits] if any(splits) else -1
    return columns


def write_parts(blocks: Iterable[Block], folder: Place, limits: PartLimits) -> Iterator[Part]:
    """Write rows as parts of a limited size into `folder`, and yield each part when it is complete."""
    rest = iter(blocks)
    block = next(rest, None)
    while block:
        with _new_part(folder, limits) as writer:
            while block and not writer.is_full:
                count = writer.write(block)
                block = block.slice(count, len(block.lines)) if count < len(block.lines) else next(rest, None)
            part = writer.close()
        yield part


@contextmanager
def _new_part(folder: Place, limits: PartLimits) -> Iterator["_PartWriter"]:
    with (
        storage.temporary_for(folder / "part.jsonl") as rows_path,
        storage.temporary_for(folder / "part.columns") as columns_path,
        open(rows_path, "wb") as rows,
        open(columns_path, "wb") as columns,
    ):
        yield _PartWriter(folder, limits, rows, columns)


class _PartWriter:
    """Writes the files of one part, which are whole or absent."""

    def __init__(self, folder: Place, limits: PartLimits, rows: IO[bytes], columns: IO[bytes]) -> None:
        self._folder, self._limits, self._rows, self._columns = folder, limits, rows, columns
        self._fingerprint, self._digest = Fingerprint(), xxh3_128()
        self._labels: dict[str, int] = {}
        self._size = 0
        self._first = self._last = ""

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        return self._fingerprint.rows >= self._limits.rows or self._size >= self._limits.bytes

    def write(self, block: Block) -> int:
        """Write the first rows of a block until a limit is reached, and return their number, which is at least one."""
        ends = self._size + np.cumsum([len(line) for line in block.lines])
        by_bytes = int(np.searchsorted(ends, self._limits.bytes)) + 1
        count = min(by_bytes, self._limits.rows - self._fingerprint.rows, len(block.lines))
        if count < len(block.lines):
            block = block.slice(0, count)
        columns, content = block.columns.copy(), b"".join(block.lines)
        columns["offset"] = [self._size, *ends[: count - 1]]
        columns["label"] = [self._labels.setdefault(label, len(self._labels)) for label in block.labels]
        self._fingerprint.add(block.identities)
        self._digest.update(content)
        self._size += self._rows.write(content)
        self._columns.write(columns.tobytes())
        self._first, self._last = self._first or block.keys[0], block.keys[-1]
        return count

    def close(self) -> Part:
        """Complete the files, and return the description of the part."""
        self._rows.close()
        self._columns.close()
        # The names contain the hash, which is known only after the last row.
        place = self._folder / f"{self._digest.hexdigest()}.jsonl"
        storage.write_json(place.with_suffix(".labels"), list(self._labels), synced=True)
        storage.move_whole(Path(self._columns.name), place.with_suffix(".columns"))
        storage.move_whole(Path(self._rows.name), place)
        fingerprint = self._fingerprint
        return Part(str(place), fingerprint.rows, f"{fingerprint.sum:x}", self._first, self._last)


def hash_texts(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Return a hash of 64 bits of each key or group. It is never 0, which stands for none."""
    hashes = b"".join([hashlib.blake2b(bytes_of(text), digest_size=8).digest() for text in texts])
    numbers: NDArray[np.uint64] = np.maximum(np.frombuffer(hashes, "<u8"), np.uint64(1))
    return numbers


def sizes_and_crc32cs(sizes: NDArray[np.int64], crc32cs: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return 64 bits that equal files share, from what is known without reading them."""
    # 0 stands for none, as in `hash_texts`.
    numbers: NDArray[np.uint64] = np.maximum(sizes.astype(np.uint64) << np.uint64(32) | crc32cs, np.uint64(1))
    return numbers
