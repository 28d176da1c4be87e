"""A raw example: its row in a snapshot or a plan file, and the bytes of an image.

This module is light to import, like all modules of a shard task, which starts in tenths of a second.
"""

import errno
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import google_crc32c

from pipeline import storage
from pipeline.errors import SourceError
from pipeline.images import rejection
from pipeline.images.rejection import Rejection
from pipeline.sources import MISSING, Box, Measured
from pipeline.sources.folder import unlisted
from pipeline.storage import BucketPath, Place, is_bucket, place_of
from pipeline.system.os_errors import retried

Result = TypeVar("Result")

ROWS_AT_ONCE = 64
PIECE_BYTES = 1 << 20
"""A file is read for its checksum in pieces of this many bytes."""
MAX_OPEN = 128
"""At most this many files stay open. Linux gives a process 1,024 by default."""
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""A FIFO that replaced a file is opened at once. Without O_NONBLOCK, the call would wait forever for a writer."""
_TEXT = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_ONLY_LABEL = re.compile(rb"\[%b,\[(%b|)\]" % (_TEXT, _TEXT))
_ONLY_GROUP = re.compile(rb'\[%b,\[(?:%b|)\],"[a-z]*",\d+,\d+,(%b),' % (_TEXT, _TEXT, _TEXT))
_dump = json.JSONEncoder(separators=(",", ":")).encode
_BOOL = {False: b"false", True: b"true"}
quoted = json.encoder.encode_basestring_ascii
"""Returns a text as JSON in ASCII, with its quotes."""
_log = logging.getLogger(__name__)


class RawExample(NamedTuple):
    """A row. `key` is relative to the root of the source, `split` and `group` may be empty, `size` is in bytes.

    `generation` is that of an object in a bucket, or the time of the last change of a file. Only objects have `md5`
    (hexadecimal). Neither is part of the identity of the example. An image without `crc32c` is rejected and not read.
    """

    key: str
    labels: Sequence[str]
    split: str
    size: int
    crc32c: int | None
    group: str
    boxes: Sequence[Box]
    generation: int
    md5: str = ""
    rejection: Sequence[str] = ()
    """Reason, advice, and where the row is, if a row of a table is rejected."""
    extent: Sequence[Any] = ()
    """The fields of an `Extent` if the image is a part of a file. Otherwise, the image is read at its key."""
    content: bytes = b""
    """The record of a row of a table, as it is stored in a shard. Images have none."""


@dataclass(frozen=True)
class Origin:
    """The places where the raw images of a snapshot are read."""

    root: str
    """Folder, local or in a bucket, that keys are relative to. A key may also be an absolute path or a URI."""
    user_project: str = ""
    """The project that pays for reading from a bucket with requester pays."""
    cache: str = ""
    """Local folder of copies; empty if images are read at the source."""
    remote: bool = False
    """Whether any image is in a bucket."""
    max_file_bytes: int = 256_000_000
    """Larger files are rejected and not read."""


def place_of_key(origin: Origin, key: str) -> Place:
    """Return the place of the image with a key."""
    if is_bucket(key):
        return place_of(key, origin.user_project)
    return place_of(origin.root, origin.user_project) / key


def why_unread(row: RawExample, origin: Origin) -> Rejection | None:
    """Return why an image is rejected without being read; None if it must be read."""
    return None if row.crc32c is not None else rejection.why_unread(row.size, origin.max_file_bytes)


def content_of(row: RawExample) -> bytes:
    """Return the identity of an example: its row as JSON without generation, MD5 and the closing bracket."""
    # For so few values, starting a JSON encoder would take longer than the rest.
    labels = ",".join([quoted(label) for label in row.labels])
    boxes = _dump(row.boxes) if row.boxes else "[]"
    return identity(quoted(row.key), labels, row.split, row.size, row.crc32c, quoted(row.group), boxes)


def identity(key: str, labels: str, split: str, size: int, crc32c: int | None, group: str, boxes: str) -> bytes:
    """Return what `content_of` returns. Key, labels and group are JSON."""
    checksum = "null" if crc32c is None else crc32c
    # Generation and MD5 differ between a disk and a bucket, and the same examples must give the same version.
    return f'[{key},[{labels}],"{split}",{size},{checksum},{group},{boxes}'.encode("ascii")


def to_line(content: bytes, row: RawExample) -> bytes:
    """Return a row as one line with its newline, and the record of a row of a table after it.

    `content` is the result of `content_of`.
    """
    before = b'%b,%d,"%b"' % (content, row.generation, row.md5.encode("ascii"))
    if row.extent:
        file, offset, is_copy = row.extent
        return b"%b,[],[%b,%d,%b]]\n" % (before, quoted(file).encode("ascii"), offset, _BOOL[is_copy])
    if row.rejection:
        return b"%b,%b]\n" % (before, _dump(row.rejection).encode("ascii"))
    return b"%b]\n%b" % (before, row.content)


def from_line(line: bytes) -> RawExample:
    """Return the row of one line."""
    # JSON has no newline of its own, so the first one ends it.
    head, _, content = line.partition(b"\n")
    return RawExample(*json.loads(head))._replace(content=content)


def from_lines(lines: Iterable[bytes]) -> Iterator[list[RawExample]]:
    """Yield the rows of many lines, several at a time, because parsing each separately takes twice as long."""
    rest = iter(lines)
    while some := [line.partition(b"\n") for line in islice(rest, ROWS_AT_ONCE)]:
        rows = json.loads(b"[%b]" % b",".join([head for head, _, _ in some]))
        examples = [RawExample(*row) for row in rows]
        for number, (_, _, content) in enumerate(some):
            if content:
                examples[number] = examples[number]._replace(content=content)
        yield examples


def only_label(line: bytes) -> bytes:
    """Return the label of a line as JSON; nothing if it has none. This takes a fifth of the time of parsing the line.

    The line must have at most one label.
    """
    found = _ONLY_LABEL.match(line)
    assert found
    return found[1]


def group_of_line(line: bytes) -> bytes:
    """Return the group of a line as JSON. The line must have at most one label."""
    found = _ONLY_GROUP.match(line)
    assert found
    return found[1]


def record_of_line(line: bytes) -> bytes:
    """Return the record of the row of one line, without parsing the line."""
    return line.partition(b"\n")[2]


def local_path(root: str, key: str) -> str:
    """Return the path of a local image below the folder `root`."""
    return key if key.startswith("/") else f"{root}/{key}"


class CheckedFile(NamedTuple):
    """A local file that was read for its checksum. `size` and `generation` are those of a `Listed`."""

    size: int
    generation: int
    read: int
    """Number of bytes that were read: `size`, unless the file changed meanwhile or is too large."""
    crc32c: int


class LocalImages:
    """Reads raw images below a local folder, and absolute paths.

    Paths that are relative to an open folder take less time, because the system does not walk through its parents.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        try:
            self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1
        self._folder = self._descriptor
        """The open folder. If it is -1, each use of it fails, and is repeated with the whole path."""

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self, key: str, size: int) -> bytes:
        """Return the bytes of one image: `size` bytes, or one more if the file has grown.

        Raises SourceError if it is gone or a permission is missing, FileSystemError if the file system fails
        repeatedly.
        """
        try:
            return _read(key, size, self._folder)
        except OSError as error:  # To prepare for it before each read takes a tenth of the time of the read.
            first = error
        try:
            return self._by_path(partial(_read, size=size), key, first)
        except OSError as error:
            path = Path(local_path(self._root, key))
            raise SourceError(
                f"{path} was listed but cannot be read ({error.strerror}): make it readable and run again"
            ) from error

    def check(self, key: str, max_bytes: int, follows_link: bool) -> CheckedFile:
        """Read one image for its checksum, a piece at a time. A file of more than `max_bytes` is not read.

        Raises SourceError if a permission is missing. Raises FileSystemError if it is gone or no regular file, if it is
        a link and not `follows_link`, or if the file system fails repeatedly.
        """
        try:
            return _check(key, max_bytes, follows_link, self._folder)
        except OSError as error:
            first = error
        try:
            return self._by_path(partial(_check, max_bytes=max_bytes, follows_link=follows_link), key, first)
        except OSError as error:
            raise unlisted(error, local_path(self._root, key)) from error

    def measure(self, key: str) -> Measured:
        """Return the size and the generation of an image. The size is MISSING if it is a link or no regular file."""
        try:
            status = os.stat(key, dir_fd=self._folder, follow_symlinks=False)
        except OSError as error:
            try:
                status = self._by_path(os.lstat, key, error)
            except OSError:  # `check` raises it.
                return Measured(MISSING, 0)
        return Measured(status.st_size, status.st_ctime_ns) if stat.S_ISREG(status.st_mode) else Measured(MISSING, 0)

    def _by_path(self, work: Callable[[str], Result], key: str, error: OSError) -> Result:
        """Return the result of `work` for the whole path, after it failed with `error` for the open folder."""
        # Another folder may have the path of the open one by now.
        if self._folder >= 0 and isinstance(error, FileNotFoundError):
            raise error
        path = local_path(self._root, key)
        result = retried(partial(work, path), path)
        if self._folder >= 0:
            _log.warning("%s: reading by whole paths from now on, after %s", self._root, error.strerror)
            self._folder = -1  # It stays open, because other threads may be using it.
        return result


class OpenFiles:
    """Reads parts of files. Local files stay open, because to open one takes longer than to read a small image of it.

    It is thread-safe.
    """

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def read(self, file: Place | str, offset: int, size: int, generation: int | None = None) -> bytes:
        """Return `size` bytes of a file from `offset` on; fewer if it is too short. A text is a local path.

        `generation` is that of an object, and None for the newest.

        Raises:
            FileNotFoundError: The file is gone, or the object has another generation.
            SourceError: A permission is missing.
        """
        if isinstance(file, BucketPath):
            return storage.read_range(file, offset, size, generation)
        path = str(file)
        # If that fails, the file is opened anew: its file system may have lost it.
        with suppress(KeyError, OSError):
            if len(content := os.pread(self._descriptors[path], size, offset)) == size:
                return content
        try:
            return retried(partial(self._read_anew, path, offset, size), path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SourceError(
                f"{path} was listed but cannot be read ({error.strerror}): make it readable and run again"
            ) from error

    def _read_anew(self, path: str, offset: int, size: int) -> bytes:
        descriptor, is_kept = os.open(path, _OPEN), False
        try:
            parts = [os.pread(descriptor, size, offset)]
            while (missing := size - sum(map(len, parts))) and parts[-1]:
                parts.append(os.pread(descriptor, missing, offset + size - missing))
            # Another thread may be reading the file that stays open, so none of them is closed before the end.
            if not missing and len(self._descriptors) < MAX_OPEN:
                is_kept = self._descriptors.setdefault(path, descriptor) == descriptor
            return b"".join(parts)
        finally:
            if not is_kept:
                os.close(descriptor)


def _check(path: str, max_bytes: int, follows_link: bool, folder: int | None = None) -> CheckedFile:
    descriptor = os.open(path, _OPEN if follows_link else _OPEN | os.O_NOFOLLOW, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "it is not a regular file now")
        size = status.st_size
        if size > max_bytes:
            return CheckedFile(size, status.st_ctime_ns, 0, 0)
        # The calls ask for one byte more than the size, so that a file that has grown is noticed.
        piece = os.read(descriptor, min(size, PIECE_BYTES) + 1)
        crc32c, count = google_crc32c.value(piece), len(piece)
        while count < size and piece:
            piece = os.read(descriptor, min(size - count, PIECE_BYTES) + 1)
            crc32c, count = google_crc32c.extend(crc32c, piece), count + len(piece)
        # The time of modification would not do: a copy that preserves it would hide that the content changed.
        return CheckedFile(size, status.st_ctime_ns, count, crc32c)
    finally:
        os.close(descriptor)


def _read(path: str, size: int, folder: int | None = None) -> bytes:
    # Path and a file object would take as long again as reading a small file.
    descriptor = os.open(path, _OPEN, dir_fd=folder)
    try:
        # The call asks for one byte more than was listed, so that a file that has grown is noticed.
        content = os.read(descriptor, size + 1)
        if len(content) >= size:
            return content
        # Linux reads at most 2 GiB in one call, and a network file system may return less.
        parts = [content]
        while part := os.read(descriptor, size + 1 - sum(map(len, parts))):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
