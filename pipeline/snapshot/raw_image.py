"""A raw image: its row in a snapshot or a plan file, and its bytes.

Light to import, like all that a shard task needs: it starts in tenths of a second.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import SourceError
from pipeline.images import rejection
from pipeline.images.rejection import Rejection
from pipeline.sources import Box
from pipeline.storage import Place, is_bucket, place_of
from pipeline.system.os_errors import retried

ROWS_AT_ONCE = 64
_dump = json.JSONEncoder(separators=(",", ":")).encode


class RawImage(NamedTuple):
    """A row. `key` is relative to the source's root, `split` and `group` may be empty, `size` is in bytes.

    `generation` is a bucket's, or the time of a file's last change, and `md5` a bucket's (hexadecimal): they are no
    part of what the image is.
    """

    key: str
    labels: Sequence[str]
    split: str
    size: int
    crc32c: int
    group: str
    boxes: Sequence[Box]
    generation: int
    md5: str = ""


@dataclass(frozen=True)
class Origin:
    """Where the raw images of a snapshot are read."""

    root: str
    """Folder, local or of a bucket, that keys are relative to; a key may also be a whole path or URI."""
    user_project: str = ""
    """Who pays for reading, where the requester must."""
    cache: str = ""
    """Local folder of copies; empty where images are read in place."""
    remote: bool = False
    """Whether any image lies in a bucket."""
    max_file_bytes: int = 256_000_000
    """Larger files are rejected and not read."""


def place_of_key(origin: Origin, key: str) -> Place:
    """Where the image of a key lies."""
    if is_bucket(key):
        return place_of(key, origin.user_project)
    return place_of(origin.root, origin.user_project) / key


def why_unread(row: RawImage, origin: Origin) -> Rejection | None:
    """Return why an image is rejected without being read; None if it must be read."""
    # Fast path, since this runs for every image: an image with a checksum is always read.
    return None if row.crc32c else rejection.why_unread(row.key, row.size, origin.max_file_bytes)


def content_of(row: RawImage) -> bytes:
    """What the row says of the image itself, without generation, MD5 and the closing bracket."""
    return _dump(row[:-2])[:-1].encode("ascii")


def to_line(content: bytes, row: RawImage) -> bytes:
    """A row as one line, newline included, from what `content_of` made of it."""
    return b'%b,%d,"%b"]\n' % (content, row.generation, row.md5.encode("ascii"))


def from_line(line: bytes) -> RawImage:
    """The row of one line."""
    row: RawImage = RawImage._make(json.loads(line))
    return row


def from_lines(lines: Iterable[bytes]) -> Iterator[list[RawImage]]:
    """Rows of many lines, some at a time: parsing each alone takes twice as long."""
    several = iter(lines)
    while chunk := b",".join(islice(several, ROWS_AT_ONCE)):
        yield [RawImage._make(row) for row in json.loads(b"[%b]" % chunk)]


def key_bytes(key: str) -> bytes:
    """A key as the bytes that the file system or bucket knows it by, UTF-8 or not."""
    return key.encode("utf-8", "surrogateescape")


def read_raw(root: str, key: str, size: int) -> bytes:
    """The bytes of one raw image below the folder `root`, which should be `size`; one more where it has grown.

    Raises SourceError if it is gone or a permission is missing, FileSystemError if the file system fails repeatedly.
    """
    path = key if key.startswith("/") else f"{root}/{key}"
    try:
        return retried(partial(_read, path, size), path)
    except OSError as error:
        raise SourceError(
            f"{Path(root) / key} was listed but cannot be read ({error.strerror}): mend it and run again"
        ) from error


def _read(path: str, size: int) -> bytes:
    # Not through Path and a file object, which cost as much again as reading a small file.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, size + 1)
        if len(content) >= size:
            return content
        # Linux reads 2 GiB at most in one call, and a network file system may give less.
        parts = [content]
        while part := os.read(descriptor, size + 1 - sum(map(len, parts))):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
