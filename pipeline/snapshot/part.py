"""A part of a snapshot: rows that follow each other in the order of the keys.

A part has three files, which are designed for a million rows. The rows are one compact JSON array per line. ASCII
escapes preserve newlines and keys that are not UTF-8. After the line of a row of a table, its record follows. The
columns are the same rows as numbers of fixed width, which suffice for planning without parsing a line. The labels are
one JSON array. The names of the files contain a hash of all of their bytes, so a file with a given name never changes.

The lines of a table may be in another order than its columns, whose order is that of the source: see `write_parts`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from pipeline import storage
from pipeline.config.allowed import require_outputs
from pipeline.errors import FileSystemError
from pipeline.snapshot.fingerprint import Fingerprint, Hashes, digests, hashes_of
from pipeline.snapshot.raw_example import RawExample, content_of, from_line, from_lines, to_line
from pipeline.sources.key_range import bytes_of
from pipeline.storage import Place, place_of
from pipeline.system.os_errors import unless_missing

TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")
COLUMNS = np.dtype(
    [
        ("offset", "<u8"),  # offset of the line in the file of rows
        ("length", "<u4"),  # size of the line in bytes
        ("checksum", "<u4"),  # CRC32C of the line
        ("order", "<u8"),  # hash of the key of an image, or of the whole row of a table
        ("group", "<u8"),  # hash of the group, or of the content if the row has no group
        ("content", "<u8"),  # hash that equal examples share; 0 if the row is not compared
        ("size", "<i8"),
        ("crc32c", "<u4"),
        ("split", "i1"),  # index in SPLITS, or -1 if the source states none
        ("label", "<i4"),  # index of the first label in the labels of the part
    ]
)
SNAPSHOT_FORMAT = 6
"""The format of parts, and of the snapshots and listings that describe them."""
EXTRACT_AGAIN = "run `extract` again (in Airflow: clear `extract` and all tasks after it)"
"""What to do about a snapshot or a listing that cannot be used."""
ROWS_AT_ONCE = 1024
"""This many rows of a part are read or written together."""
LINES_AT_ONCE = 8_192
"""This many lines are joined at once."""
_SPLIT_CODES = {"": -1, **{split: code for code, split in enumerate(SPLITS)}}


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
            raise damaged_file(place) from error

    def labels(self) -> list[str]:
        """Return the labels in the order of their numbers in the columns."""
        labels: list[str] = read_extracted(self.beside(".labels"))
        return labels

    def row(self, number: int) -> "Row":
        """Return one row by its number in this part. This reads only a few bytes.

        Raises FileSystemError if a file of the part is missing or damaged.
        """
        try:
            content = storage.read_range(self.beside(".columns"), number * COLUMNS.itemsize, COLUMNS.itemsize)
            columns = np.frombuffer(content, COLUMNS, count=1)
            line = storage.read_range(place_of(self.rows), int(columns["offset"][0]), int(columns["length"][0]))
        except (FileNotFoundError, ValueError) as error:  # ValueError: the columns are too short.
            raise damaged_file(self.rows_and_columns) from error
        # In a file of zeros, the checksum of an empty line would match.
        if not line or google_crc32c.value(line) != columns["checksum"][0]:
            raise damaged_file(self.rows_and_columns)
        return Row(columns, from_line(line))

    @property
    def rows_and_columns(self) -> str:
        """The two files that must match, for an error. Which one is damaged is unknown."""
        return f"{self.rows} or {self.beside('.columns').name}"


def damaged_file(what: object) -> FileSystemError:
    """Return the error for a file of `extract` that cannot be used. Another `extract` writes it again."""
    return FileSystemError(f"{what} is missing or damaged: {EXTRACT_AGAIN}")


def read_extracted(place: Place) -> Any:
    """Return the one JSON value in a file that `extract` wrote. Raises FileSystemError if it is missing or damaged."""
    try:
        return storage.read_json(place)
    except (FileNotFoundError, ValueError) as error:
        raise damaged_file(place) from error


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
    """Yield the rows of parts in the order of their lines.

    Raises FileSystemError if a file of a part is missing, or if a line does not match its checksum. A line that is
    damaged can still be parsed, and would then state wrong labels or a wrong checksum of its image.
    """
    for part in parts:
        for rows in from_lines(_lines_of(part)):
            yield from rows


def _lines_of(part: Part) -> Iterator[bytes]:
    columns = part.columns()
    order = np.argsort(columns["offset"])
    sizes, checksums = columns["length"][order], columns["checksum"][order]
    if not sizes.all():  # In a file of zeros, the checksums of empty lines would match.
        raise damaged_file(part.rows_and_columns)
    try:
        opened = place_of(part.rows).open("rb")
    except FileNotFoundError as error:
        raise damaged_file(part.rows_and_columns) from error
    with opened as file:
        for start in range(0, part.listed, ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            bounds = [0, *np.cumsum(sizes[some], dtype=np.int64).tolist()]
            content = file.read(bounds[-1])
            lines = [content[begin:end] for begin, end in pairwise(bounds)]
            if list(map(google_crc32c.value, lines)) != checksums[some].tolist():
                raise damaged_file(part.rows_and_columns)
            yield from lines


@dataclass(frozen=True)
class Block:
    """Rows that follow each other, in the form in which a part stores them."""

    lines: Sequence[bytes]
    labels: Sequence[str]
    """The different first labels of the rows. That of a rejected row of a table, or of a number, is empty."""
    hashes: Hashes
    """What the fingerprint adds for each row."""
    columns: NDArray[np.void]
    """Elements of COLUMNS without the offset. The label is a position in `labels`."""
    keys: Sequence[str] = ()
    """The key of each row. None for the rows of a table, whose parts have no range of keys."""

    def __len__(self) -> int:
        return len(self.lines)

    def slice(self, first: int, last: int) -> "Block":
        """Return the rows from the number `first` up to `last`, which is excluded."""
        return Block(
            lines=self.lines[first:last],
            labels=self.labels,
            hashes=self.hashes[first:last],
            columns=self.columns[first:last],
            keys=self.keys[first:last],
        )


def blocks_of(rows: Iterable[RawExample]) -> Iterator[Block]:
    """Yield rows as blocks."""
    rest = iter(rows)
    while some := list(islice(rest, ROWS_AT_ONCE)):
        yield block_of(some)


def block_of(rows: Sequence[RawExample]) -> Block:
    """Return rows as a block."""
    contents = list(map(content_of, rows))
    lines = list(map(to_line, contents, rows))
    labels = [row.labels[0] if row.labels else "" for row in rows]
    positions = {label: position for position, label in enumerate(dict.fromkeys(labels))}
    columns = _columns_of(rows)
    columns["label"] = [positions[label] for label in labels]
    columns["length"] = list(map(len, lines))
    columns["checksum"] = list(map(google_crc32c.value, lines))
    # The place of a rejected row is left out, because the same rows may come in another order.
    identities = [
        content + (row.content or "".join(row.rejection[:2]).encode()) if row.content or row.rejection else content
        for content, row in zip(contents, rows, strict=True)
    ]
    return Block(
        lines=lines,
        labels=list(positions),
        hashes=hashes_of(identities),
        columns=columns,
        keys=[row.key for row in rows],
    )


def _columns_of(rows: Sequence[RawExample]) -> NDArray[np.void]:
    """Return images as elements of COLUMNS, apart from the fields that `block_of` fills in."""
    columns = np.zeros(len(rows), COLUMNS)
    sizes = np.array([row.size for row in rows], np.int64)
    crc32cs = np.array([row.crc32c or 0 for row in rows], np.uint32)
    columns["order"], columns["size"], columns["crc32c"] = hash_texts([row.key for row in rows]), sizes, crc32cs
    is_compared = np.array([row.crc32c is not None for row in rows]) & (sizes > 0)
    columns["content"] = np.where(is_compared, sizes_and_crc32cs(sizes, crc32cs), np.uint64(0))
    # Without the key, all empty files would be one group, and all files of one size that are not read.
    own = np.where(is_compared, columns["content"], columns["order"])
    groups = [row.group for row in rows]
    columns["group"] = np.where([bool(group) for group in groups], hash_texts(groups), own) if any(groups) else own
    columns["split"] = split_codes([row.split for row in rows])
    return columns


def split_codes(splits: Sequence[str]) -> NDArray[np.int8]:
    """Return stated splits, which may be empty, as they are in COLUMNS."""
    return np.array([_SPLIT_CODES[split] for split in splits], np.int8)


Arrange = Callable[[NDArray[np.void]], NDArray[np.intp]]
"""Returns the order in which the lines of some rows are stored, by their columns, whose offsets are not known yet."""


def write_parts(
    blocks: Iterable[Block], folder: Place, limits: PartLimits, arrange: Arrange | None = None
) -> Iterator[Part]:
    """Write rows as parts of a limited size into `folder`, and yield each part when it is complete.

    The rows are numbered as they come. Their lines are stored in the order that `arrange` returns. In the order of the
    plan, they need not be copied when the part is sorted. The lines of a whole part are then held in memory.
    """
    rest = iter(blocks)
    block = next(rest, None)
    while block is not None:
        with _new_part(folder, limits, arrange) as writer:
            while block is not None and not writer.is_full:
                count = writer.write(block)
                block = block.slice(count, len(block)) if count < len(block) else next(rest, None)
            part = writer.close()
        yield part


@contextmanager
def _new_part(folder: Place, limits: PartLimits, arrange: Arrange | None) -> Iterator["_PartWriter"]:
    with storage.temporary_for(folder / "part.jsonl") as rows_path, open(rows_path, "wb") as rows:
        yield _PartWriter(folder, limits, arrange, rows)


class _PartWriter:
    """Writes the files of one part, which are whole or absent."""

    def __init__(self, folder: Place, limits: PartLimits, arrange: Arrange | None, rows: IO[bytes]) -> None:
        self._folder, self._limits, self._arrange, self._rows = folder, limits, arrange, rows
        self._fingerprint, self._digest = Fingerprint(), xxh3_128()
        self._labels: dict[str, int] = {}
        self._columns: list[NDArray[np.void]] = []
        self._lines: list[bytes] = []
        """The lines that are arranged at the end."""
        self._size = 0
        self._first = self._last = ""

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        return self._fingerprint.rows >= self._limits.rows or self._size >= self._limits.bytes

    def write(self, block: Block) -> int:
        """Write the first rows of a block until a limit is reached, and return their number, which is at least one."""
        ends = self._size + np.cumsum(block.columns["length"], dtype=np.int64)
        by_bytes = int(np.searchsorted(ends, self._limits.bytes)) + 1
        count = min(by_bytes, self._limits.rows - self._fingerprint.rows, len(block))
        if count < len(block):
            block = block.slice(0, count)
        columns = block.columns.copy()
        columns["offset"] = self._size + starts_of(columns["length"])
        columns["label"] = self._numbers_of(block.labels, columns["label"])[columns["label"]]
        self._columns.append(columns)
        self._fingerprint.add(block.hashes)
        self._size = int(ends[count - 1])
        if self._arrange:
            self._lines += block.lines
        else:
            self._put(block.lines)
        if block.keys:
            self._first, self._last = self._first or block.keys[0], block.keys[-1]
        return count

    def _numbers_of(self, labels: Sequence[str], positions: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the number in this part of each label that occurs in these positions. New labels get the next ones."""
        numbers = np.zeros(len(labels), np.int32)
        for position in np.flatnonzero(np.bincount(positions)).tolist():
            numbers[position] = self._labels.setdefault(labels[position], len(self._labels))
        return numbers

    def _put(self, lines: Iterable[bytes]) -> None:
        content = b"".join(lines)
        self._digest.update(content)
        self._rows.write(content)

    def close(self) -> Part:
        """Complete the files, and return the description of the part."""
        columns, labels = np.concatenate(self._columns), list(self._labels)
        self._columns.clear()  # A second copy would take as much memory.
        if self._arrange:
            order = self._arrange(columns)
            for start in range(0, len(order), LINES_AT_ONCE):
                self._put([self._lines[number] for number in order[start : start + LINES_AT_ONCE].tolist()])
            columns["offset"][order] = starts_of(columns["length"][order])
        self._rows.close()
        # Equal lines may have columns in another order.
        numbers = columns.view(np.uint8).data
        self._digest.update(numbers)
        self._digest.update(json.dumps(labels).encode())
        # The names contain the hash, which is known only after the last row.
        place = self._folder / f"{self._digest.hexdigest()}.jsonl"
        for suffix, content in ((".labels", json.dumps(labels).encode()), (".columns", numbers)):
            with storage.temporary_for(place.with_suffix(suffix)) as temporary:
                temporary.write_bytes(content)
                _move_unless_there(temporary, place.with_suffix(suffix))
        _move_unless_there(Path(self._rows.name), place)
        fingerprint = self._fingerprint
        return Part(str(place), fingerprint.rows, f"{fingerprint.sum:x}", self._first, self._last)


def _move_unless_there(temporary: Path, place: Place) -> None:
    """Move a file to the name that follows from its content. A damaged file of this name is replaced.

    An intact one stays: another host may have mapped it, and a file server then removes the pages of a replaced file.
    """
    size = unless_missing(lambda: place.stat().st_size)
    if size != temporary.stat().st_size or storage.crc32c_of(place) != storage.crc32c_of(temporary):
        storage.move_whole(temporary, place)


def starts_of(lengths: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the offset of each line in a file, from the lengths of all lines."""
    return np.cumsum(lengths, dtype=np.int64) - lengths


def hash_texts(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Return a hash of 64 bits of each key or group. It is never 0, which stands for none."""
    hashes = b"".join(digests(map(bytes_of, texts), 8))
    numbers: NDArray[np.uint64] = np.maximum(np.frombuffer(hashes, "<u8"), np.uint64(1))
    return numbers


def sizes_and_crc32cs(sizes: NDArray[np.int64], crc32cs: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return 64 bits that equal files share, from what is known without reading them."""
    # 0 stands for none, as in `hash_texts`.
    numbers: NDArray[np.uint64] = np.maximum(sizes.astype(np.uint64) << np.uint64(32) | crc32cs, np.uint64(1))
    return numbers
