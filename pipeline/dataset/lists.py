"""The files beside the shards that `dataset.json` lists with their size and CRC32C.

They are written and read as streams, because their size grows with the number of images.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import google_crc32c

from pipeline import storage
from pipeline.errors import DatasetError
from pipeline.storage import CHUNK_BYTES, Place


class ListWriter:
    """Writes a file, and computes the facts about it that `dataset.json` states."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._bytes = self._crc32c = 0
        self.lines = 0
        """Number of rows that `write_row` and `copy_lines` wrote."""

    def write(self, content: bytes) -> None:
        """Append bytes."""
        self._file.write(content)
        self._bytes += len(content)
        self._crc32c = google_crc32c.extend(self._crc32c, content)

    def write_row(self, row: Mapping[str, Any]) -> None:
        """Append a row as a line of JSON."""
        self.write(json.dumps(row).encode("ascii") + b"\n")
        self.lines += 1

    def copy_lines(self, lines: Place) -> None:
        """Append the content of a file of JSON lines."""
        with lines.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                self.write(chunk)
                self.lines += chunk.count(b"\n")

    def facts(self, name: str) -> dict[str, Any]:
        """Return the facts about the file, in the form of `dataset.json`."""
        return {"file": name, "bytes": self._bytes, "crc32c": f"{self._crc32c:08x}"}


@contextmanager
def new_list(path: Place) -> Iterator[ListWriter]:
    """Write a file that appears if the block ends without an error.

    Raises ConflictError if the file exists with other content.
    """
    with storage.write_new(path, synced=True) as file:
        yield ListWriter(file)


def file_facts(name: str, content: bytes) -> dict[str, Any]:
    """Return the facts about a file beside the shards, in the form of `dataset.json`."""
    return {"file": name, "bytes": len(content), "crc32c": f"{google_crc32c.value(content):08x}"}


def read_listed(folder: Place, listed: Mapping[str, Any], begin: int = 0, end: int = sys.maxsize) -> bytes:
    """Return the content of a file beside the shards, verified, from its facts in `dataset.json`.

    Only the bytes from `begin` to `end` are kept in memory.

    Raises DatasetError if the file is missing, or differs from the committed one.
    """
    path = folder / listed["file"]
    mend = f"restore the file, or remove {folder} and build the dataset again"
    kept, position, crc32c = [], 0, 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                kept.append(chunk[max(begin - position, 0) : max(end - position, 0)])
                position += len(chunk)
                crc32c = google_crc32c.extend(crc32c, chunk)
    except FileNotFoundError as error:
        raise DatasetError(f"{path}, which the dataset needs, is missing: {mend}") from error
    if f"{crc32c:08x}" != listed["crc32c"]:
        raise DatasetError(f"{path} does not have the CRC32C {listed['crc32c']} that was committed: {mend}")
    return b"".join(kept)


class JsonLines:
    """The rows of a file of JSON lines. Each iteration reads the file again and holds one row in memory."""

    def __init__(self, path: Place) -> None:
        self._path = path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as file:
            yield from map(json.loads, file)
