"""The snapshot: the content of a source at one time.

It has two large files, which are read as streams and designed for ten million images. The rows are one compact JSON
array per line, ordered by key. The columns are the same rows as numbers of fixed width, which suffice for planning
without parsing a line. ASCII escapes preserve newlines and keys that are not UTF-8.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline import storage
from pipeline.errors import SettingsError
from pipeline.snapshot.raw_image import Origin, RawImage, from_line, key_bytes
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
        ("label", "<i4"),  # index of the first label in `Snapshot.labels`
    ]
)
CHUNK = 65_536
"""The offsets of this many rows are Python objects at the same time."""
_COLUMN_FORMAT = struct.Struct("<QQQqIbi")
"""This is the layout of one element of COLUMNS, without padding."""


@dataclass(frozen=True)
class Snapshot:
    """The description of a snapshot: its files, its source, and sums over its rows."""

    source_uri: str
    origin: Origin
    """The places where the images are read."""
    kind: str
    rows: str
    """Path of the file of rows; that of the columns ends in .columns."""
    started_ns: int
    """When the listing began, by the clock of this machine, in nanoseconds since 1970."""
    fingerprint: str
    """Hash of every row's content: key, labels, split, size, CRC32C, group and boxes; not of the source's location.
    It does not depend on the order of the rows."""
    listed: int
    bytes: int
    labels: list[str]
    """Labels in the order of their numbers in the columns. The order has no other effect."""
    stated_labels: list[str]
    """Labels whose order the source states, in that order. The others get their ids in sorted order."""
    texts: dict[str, str]
    """Texts for people, of labels that are codes."""
    classes: dict[str, int]
    """Number of listed images of each label, ordered by label."""
    multi_label: bool
    has_boxes: bool
    box_labels: list[str]
    """Labels that only boxes have, ordered."""
    skipped: dict[str, int]
    """Number of files that are not images of a class, by reason."""
    skipped_suffixes: dict[str, int]
    """Number of files that were skipped because of their suffix, by suffix, the most frequent first."""


def hash_text(text: str) -> int:
    """Return a hash of 64 bits of a key or a group. It is never 0, which stands for none."""
    digest = hashlib.blake2b(key_bytes(text), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def to_columns(row: RawImage, offset: int, label: int) -> bytes:
    """Return a row as one element of COLUMNS."""
    # Files that are not read have no CRC32C. Without the key, all those of one size would be one group.
    own = size_and_crc32c(row.size, row.crc32c) if row.crc32c else hash_text(row.key)
    group = hash_text(row.group) if row.group else own
    split = SPLITS.index(row.split) if row.split else -1
    return _COLUMN_FORMAT.pack(offset, hash_text(row.key), group, row.size, row.crc32c, split, label)


def size_and_crc32c(size: int, crc32c: int) -> int:
    """Return 64 bits that equal files share, from what is known without reading them."""
    # 0 stands for none, as in `hash_text`.
    return (size << 32 | crc32c) & 0xFFFFFFFFFFFFFFFF or 1


def save_snapshot(snapshot: Snapshot) -> Place:
    """Write the description of a snapshot as a .json file beside its rows. Returns the file."""
    path = place_of(snapshot.rows).with_suffix(".json")
    with storage.write_whole(path, synced=True) as file:
        file.write(json.dumps(asdict(snapshot), indent=1).encode())
    storage.sync_folder(path.parent)  # Later tasks may run on other machines, which did not lose their power.
    return path


def load_snapshot(path: Place) -> Snapshot:
    """Read the snapshot that `save_snapshot` wrote to `path`.

    Raises SettingsError if the file is not a snapshot.
    """
    try:
        content = storage.read_json(path)
        return Snapshot(**{**content, "origin": Origin(**content["origin"])})
    except (ValueError, TypeError, KeyError) as error:
        raise SettingsError(
            f"{path} does not contain a snapshot of this release: give the path that `extract` returned. After an "
            "upgrade, run `extract` again (in Airflow: clear `extract` and all tasks after it)"
        ) from error


def started_ns(path: Place) -> int:
    """Return when the listing of a snapshot began, in Unix nanoseconds. Also reads snapshots of earlier releases."""
    return int(storage.read_json(path)["started_ns"])


def load_columns(snapshot: Snapshot) -> NDArray[np.void]:
    """Return the columns of a snapshot, one element of type COLUMNS per row, mapped into memory and not read."""
    with columns_path(place_of(snapshot.rows)).open("rb") as file:  # The mapping outlives the open file.
        return np.memmap(file, COLUMNS, mode="r", shape=(snapshot.listed,))


def columns_path(rows: Place) -> Place:
    """Return the file of the columns that belongs to a file of rows."""
    return rows.with_suffix(".columns")


def skipped_path(rows: Place) -> Place:
    """Return the file that lists the skipped files, one line of JSON for each."""
    return rows.with_suffix(".skipped")


class SnapshotRows:
    """Reads the rows of a snapshot in any order, as a context manager. A mapping would keep a gigabyte in memory."""

    def __init__(self, snapshot: Snapshot, columns: NDArray[np.void]) -> None:
        self._file = place_of(snapshot.rows).open("rb")
        # The size of the file is the end of the last line.
        self._offsets = np.append(columns["offset"], np.uint64(os.fstat(self._file.fileno()).st_size))

    def __enter__(self) -> "SnapshotRows":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def lines(self, numbers: NDArray[np.intp]) -> Iterator[bytes]:
        """Yield the lines of some rows, in the order of `numbers`."""
        for start in range(0, len(numbers), CHUNK):
            chunk = numbers[start : start + CHUNK]
            begins = self._offsets[chunk]
            lengths = self._offsets[chunk + 1] - begins
            for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
                # `pread` has no file position, so several threads may read rows at the same time.
                yield os.pread(self._file.fileno(), length, begin)

    def __getitem__(self, number: int) -> RawImage:
        return from_line(next(self.lines(np.array([number]))))
