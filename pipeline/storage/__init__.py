"""Local paths and gs:// behind one small interface: files that are whole or absent.

A `Place` is a `pathlib.Path` or a `BucketPath`. Both have the same methods to examine and read a file. The functions
here write, copy and walk. A reader sees all of a file or none of it, and `write_new` never replaces an existing file.
"""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any, NamedTuple, TypeVar

from pipeline.errors import AccessError, DatasetError, SizeError
from pipeline.storage import local
from pipeline.storage.bucket_path import SCHEME, BucketPath, FirstPage, ObjectStat, bucket_client
from pipeline.storage.local import CHUNK_BYTES, temporary_beside
from pipeline.storage.object_ranges import boundaries as boundaries
from pipeline.system import parallel
from pipeline.system.open_files import open_at_once

Place = Path | BucketPath
Result = TypeVar("Result")

LATE_S = 2.0
"""`within` waits this many seconds more for the error of a bucket, which says more than that the time is over. The
deadlines of requests are checked once a second."""
_RANGE_BYTES = 65_536
"""`open_ranges` requests at least this many bytes of an object at once, unless it ends before."""


class Object(NamedTuple):
    """An object below a place: its key from there on."""

    key: str
    stat: ObjectStat


def place_of(uri: str, user_project: str = "") -> Place:
    """Return the place that a setting or a plan names. Raises ValueError if it names no bucket."""
    return BucketPath.of(uri, user_project) if uri.startswith(SCHEME) else Path(uri)


def is_bucket(uri: str) -> bool:
    """Whether a URI names a place in a bucket."""
    return uri.startswith(SCHEME)


def is_inside(place: Place, folder: Place) -> bool:
    """Whether `place` is `folder` or is below it, judged by the names alone: links are not followed."""
    if isinstance(place, BucketPath) or isinstance(folder, BucketPath):
        return isinstance(place, BucketPath) and place.is_relative_to(folder)
    return place.is_relative_to(folder)


def read_json(place: Place, max_bytes: int | None = None) -> Any:
    """Return the one JSON value in a file. Raises SizeError if the file has more than `max_bytes`."""
    try:
        return json.loads(place.read_bytes() if max_bytes is None else read_limited(place, max_bytes))
    except OSError as error:
        # An error of `read`, unlike one of `open`, does not name the file.
        error.filename = error.filename or str(place)
        raise


def read_limited(place: Place, max_bytes: int) -> bytes:
    """Return a whole file of at most `max_bytes`. The file may grow, and others may have written it.

    Raises:
        FileNotFoundError: The file is missing.
        SizeError: The file is larger.
        DatasetError: It is no regular file, such as a pipe, which would block its reader.
    """
    if isinstance(place, BucketPath):
        found = place.stat()
        require_size(place, found.st_size, max_bytes)
        return place.read_bytes(found.generation)
    with open(place, "rb", opener=open_at_once) as file:
        status = os.fstat(file.fileno())
        if not S_ISREG(status.st_mode):
            raise DatasetError(f"{place} is no regular file: check who made it, and remove it")
        content = file.read(max_bytes + 1)
        require_size(place, max(len(content), status.st_size), max_bytes)
    return content


def require_size(place: Place, size: int, max_bytes: int) -> None:
    """Raise SizeError if a file of `size` bytes has more than `max_bytes`."""
    if size > max_bytes:
        raise SizeError(
            f"{place} has {size / 1e6:,.0f} MB, more than the {max_bytes / 1e6:,.0f} MB that Tenfold reads of such a "
            "file: check who wrote it, and remove it"
        )


def write_json(place: Place, content: Any, indent: int | None = None, synced: bool = False) -> None:
    """Write a JSON value as a whole file, as `write_whole` does."""
    with write_whole(place, synced) as file:
        file.write(json.dumps(content, indent=indent).encode())


def read_range(place: Place, start: int, length: int, generation: int | None = None) -> bytes:
    """Return up to `length` bytes of a file from `start`; fewer at its end. A bucket has no checksum of a part.

    `generation` is that of an object. Without it, the newest one is read.
    """
    if isinstance(place, BucketPath):
        return bucket_client().read_range(place, start, length, generation)
    with place.open("rb") as file:
        file.seek(start)
        return file.read(length)


def within(place: Place, seconds: float, work: Callable[[], Result]) -> Result:
    """Return the result of `work`, which reads from a place, within some seconds and LATE_S.

    It runs in a thread of its own: no deadline ends the lookup of a host name, or a call to a file system that hangs.
    After the limit, the caller goes on without it. Its requests to a bucket end by then and are not repeated, so that
    the threads of many calls do not pile up.

    Raises:
        StorageError: The bucket did not answer in time.
        TimeoutError: `work` did not end in time for another reason.
    """

    def limited() -> Result:
        if not isinstance(place, BucketPath):
            return work()
        with bucket_client().within(place, seconds):
            return work()

    return parallel.within(seconds + LATE_S, limited)


def crc32c_of(place: Place) -> int:
    """Return the CRC32C of a whole file. A local file is read for it. For an object, the bucket states it."""
    return local.crc32c_of_file(place) if isinstance(place, Path) else place.stat().crc32c


def objects(place: BucketPath, first: str = "", end: str = "") -> Iterator[Object]:
    """Yield the objects below a place, in the order of their names' bytes, a page of a thousand in memory.

    Only the keys from `first` up to `end` are listed. `end` is not included. If it is empty, there is no end.
    """
    for path, stat in bucket_client().objects(place, first=first, end=end):
        yield Object(path.key[len(place.key) + 1 if place.key else 0 :], stat)


def first_page(place: BucketPath, seconds: float, *, only_level: bool = False, start: str = "") -> FirstPage:
    """Return what the first page of a listing of a bucket has, within some seconds and without a retry.

    `start` limits it to names that begin with this text. With `only_level`, objects in folders are left out.
    """
    return bucket_client().first_page(place, seconds, "/" if only_level else None, start)


def file_of(folder: Path, key: str) -> Path:
    """Return the local file in `folder` for an object with this key, which is relative to a place in a bucket.

    Raises AccessError if the key leads out of `folder`. A bucket takes any name, and other tenants may write to it.
    """
    if "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise AccessError(f"the object {key!r} cannot become a file below {folder}: remove or rename it in the bucket")
    return folder / key


def folders(place: Place) -> Iterator[Place]:
    """Yield the folders in a place. For a bucket, one listing returns them all."""
    if isinstance(place, BucketPath):
        # `iterdir` and `is_dir` would not do: in a bucket, each `is_dir` is a request.
        yield from bucket_client().children(place, only_folders=True)
    else:
        with os.scandir(place) as entries:
            # A folder may have millions of files. Only a link needs a request to the file system.
            yield from (Path(entry) for entry in entries if (Path(entry) if entry.is_symlink() else entry).is_dir())


def refresh(folder: Place) -> None:
    """Let this host see the files that other hosts wrote into a folder. A bucket shows each object at once.

    A client of NFS remembers for up to a minute that a file did not exist. When it opens the folder to list it, it asks
    the server whether the folder changed (source: nfs(5), "Directory entry caching" and "Close-to-open cache
    consistency").
    """
    if isinstance(folder, Path):
        with suppress(OSError), os.scandir(folder) as entries:  # The caller notices if the file is still missing.
            next(entries, None)


@contextmanager
def local_copy(place: Place, generation: int | None = None) -> Iterator[Path]:
    """Give a local file with the content of `place`: the file itself, or a verified copy that is removed at the end.

    `generation` is as in `read_range`.
    """
    if isinstance(place, Path):
        yield place
        return
    with local.temporary_for_upload(place.name) as copy:
        with open(copy, "w+b") as file:
            fetch(place, file, generation)
        yield copy


def fetch(place: BucketPath, file: IO[bytes], generation: int | None = None) -> None:
    """Write a whole object, verified, into an empty file. `generation` is as in `read_range`."""
    bucket_client().fetch(place, file, None if generation is None else place.stat(generation))


def open_ranges(place: Place) -> IO[bytes]:
    """Open a file to read parts of it. Of an object, only the parts that are read are requested. They are not verified.

    For readers that look only at the beginning or the end of a file, such as that of the schema of a Parquet file.
    """
    return io.BufferedReader(_Ranges(place), _RANGE_BYTES) if isinstance(place, BucketPath) else place.open("rb")


class _Ranges(io.RawIOBase):
    """One generation of an object, whose reads are requests."""

    def __init__(self, place: BucketPath) -> None:
        self._place, self._stat, self._position = place, place.stat(), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        before = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._stat.st_size}
        self._position = before[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._stat.st_size - self._position))
        content = read_range(self._place, self._position, length, self._stat.generation)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def write_whole(place: Place, synced: bool = False) -> AbstractContextManager[IO[bytes]]:
    """Open a file for writing. It appears, or replaces the existing file, only if the block ends without an error.

    If `synced`, no power loss leaves the name without the content. This costs milliseconds on a disk, and nothing in a
    bucket. A file needs no sync if a reader can tell from its content that it is torn, and can make it again.
    """
    if isinstance(place, Path):
        return local.write(place, replaces=True, synced=synced)
    return bucket_client().write(place, replaces=True)


def write_new(place: Place, synced: bool = False) -> AbstractContextManager[IO[bytes]]:
    """Write like `write_whole`, but never replace. A file that exists must have the same content.

    Raises ConflictError, which names the file, if its content differs.
    """
    if isinstance(place, Path):
        return local.write(place, replaces=False, synced=synced)
    return bucket_client().write(place, replaces=False)


def swap(place: Place, before: bytes | None, after: bytes) -> None:
    """Replace a file if its content is still `before`, or create it if `before` is None (compare and swap).

    If two processes swap at the same time, one of them succeeds. Raises ConflictError if the content is another one.
    """
    if isinstance(place, Path):
        local.swap(place, before, after)
    else:
        bucket_client().swap(place, before, after)


def copy_new(source: Place, target: Place) -> None:
    """Copy a whole file or nothing. Within Google Cloud Storage, no byte passes through this machine.

    Raises ConflictError if the target exists with other content.
    """
    if isinstance(source, BucketPath) and isinstance(target, BucketPath):
        bucket_client().copy_new(source, target)
        return
    with source.open("rb") as reader:
        if isinstance(target, BucketPath):
            # The file is uploaded directly: `write_new` would copy it first, which costs a third of the time.
            bucket_client().create(target, reader)
            return
        with write_new(target, synced=True) as writer, local.full_disk_explained(writer, source.stat().st_size):
            shutil.copyfileobj(reader, writer, CHUNK_BYTES)


def temporary_for(place: Place) -> AbstractContextManager[Path]:
    """Give a local name for a file that `move_whole` moves, for example because its final name depends on its content.

    If `place` is local, the name is beside it, so that the move is a rename within one file system.
    """
    return temporary_beside(place) if isinstance(place, Path) else local.temporary_for_upload(place.name)


def move_whole(temporary: Path, place: Place) -> None:
    """Move the file that `temporary_for` named to its place, synced. An existing file is replaced."""
    if isinstance(place, Path):
        # The content must be on the disk before the rename. Otherwise, a power loss could leave the final name with an
        # empty or torn file.
        local.sync_path(temporary)
        temporary.replace(place)
        return
    with open(temporary, "rb") as file:
        bucket_client().replace(place, file)


def sync_folder(folder: Place) -> None:
    """Sync the names of the files in a folder to the disk. No commit may survive a power loss without its files."""
    if isinstance(folder, Path):
        local.sync_folder(folder)


def sweep(folder: Place) -> int:
    """Remove the temporary files of dead processes below `folder`, and return their number. A bucket never has any."""
    return local.sweep(folder) if isinstance(folder, Path) else 0
