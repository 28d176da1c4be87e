"""The snapshot: what the source held, and when. One compact JSON array a line, ordered by key, read as a stream.

Made for ten million rows: nothing here keeps an object a row. ASCII escapes carry newlines and names that are not
UTF-8 through unchanged.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline import storage
from pipeline.errors import SettingsError

_dump = json.JSONEncoder(separators=(",", ":")).encode


class RawImage(NamedTuple):
    """A row. `key` is relative to the source, `split` may be empty, `size` is in bytes, `generation` is a bucket's."""

    key: str
    label: str
    split: str
    size: int
    crc32c: int
    generation: int = 0


@dataclass(frozen=True)
class Snapshot:
    """What stands beside the rows: their file, where they came from, and the sums over them."""

    source_uri: str
    rows: str
    """Path of the file of rows."""
    fingerprint: str
    """Hash of every row's content: key, label, split, size and CRC32C; not of where the images lie."""
    listed: int
    bytes: int
    classes: dict[str, int]
    """Images listed of each label, ordered by label."""
    skipped: dict[str, int]
    """Files that are no images of a class, by reason."""


def to_line(row: RawImage) -> bytes:
    """A row as one line, newline included."""
    return _dump(row).encode("ascii") + b"\n"


def from_line(line: bytes) -> RawImage:
    """The row of one line."""
    return RawImage(*json.loads(line))


def key_bytes(key: str) -> bytes:
    """A key as the bytes that the file system or bucket knows it by, UTF-8 or not."""
    return key.encode("utf-8", "surrogateescape")


def save_snapshot(snapshot: Snapshot) -> Path:
    """Write what stands beside the rows, as a .json file beside theirs."""
    path = Path(snapshot.rows).with_suffix(".json")
    with storage.write_whole(path) as file:
        file.write(json.dumps(asdict(snapshot), indent=1).encode())
    return path


def load_snapshot(path: Path) -> Snapshot:
    """The snapshot that `save_snapshot` wrote to `path`.

    Raises SettingsError where the file holds none.
    """
    try:
        return Snapshot(**storage.read_json(path))
    except (ValueError, TypeError) as error:
        raise SettingsError(f"{path} holds no snapshot: give the path that `extract` returned") from error


class Fingerprint:
    """Hash over rows as they come, of what they are and not of where they lie."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, row: RawImage) -> None:
        """Take one row in; rows must come ordered by key."""
        self._hash.update(_dump(row[:5]).encode("ascii"))

    def hexdigest(self) -> str:
        """The hash so far, as 32 hexadecimal digits."""
        return self._hash.hexdigest()
