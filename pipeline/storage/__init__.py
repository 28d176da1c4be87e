"""Local paths and gs:// behind one small interface: files that are whole or absent.

A `Place` is a `pathlib.Path` or a `BucketPath`; both are looked at and read alike. What writes, copies or walks is a
function here. A reader sees all of a file or none of it, and what stands is never replaced by `write_new`.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from pipeline.errors import AccessError
from pipeline.storage import local
from pipeline.storage.bucket_client import bucket_client
from pipeline.storage.bucket_path import SCHEME, BucketPath, ObjectStat, use_client
from pipeline.storage.local import CHUNK_BYTES, nearest, temporary_beside

Place = Path | BucketPath
use_client(bucket_client)

__all__ = [
    "CHUNK_BYTES",
    "SCHEME",
    "BucketPath",
    "ObjectStat",
    "Place",
    "copy_new",
    "crc32c_of",
    "file_of",
    "folders",
    "is_bucket",
    "is_inside",
    "local_copy",
    "move_whole",
    "nearest",
    "objects",
    "place_of",
    "read_json",
    "swap",
    "sweep",
    "sync_folder",
    "temporary_beside",
    "temporary_for",
    "write_new",
    "write_whole",
]


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
    """Whether `place` is `folder` or lies below it, by its name."""
    if isinstance(place, BucketPath) or isinstance(folder, BucketPath):
        return isinstance(place, BucketPath) and place.is_relative_to(folder)
    return place.is_relative_to(folder)


def read_json(place: Place) -> Any:
    """Return the one JSON value in a file."""
    try:
        return json.loads(place.read_bytes())
    except OSError as error:
        error.filename = error.filename or str(place)  # a read that fails does not say of which file
        raise


def crc32c_of(place: Place) -> int:
    """Return CRC32C of a whole file: read if it is local; what a bucket says it stored if it is an object."""
    return local.crc32c_of_file(place) if isinstance(place, Path) else place.stat().crc32c


def objects(place: BucketPath) -> Iterator[Object]:
    """Yield all objects below a place, in the order of their names' bytes, a page of a thousand in memory."""
    for path, stat in bucket_client().objects(place):
        yield Object(path.key[len(place.key) + 1 if place.key else 0 :], stat)


def file_of(folder: Path, key: str) -> Path:
    """Return the file in `folder` that an object becomes whose key is `key` from there on.

    Raises AccessError if the key leads elsewhere. A bucket takes any name, and other tenants may write to it.
    """
    if "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise AccessError(f"the object {key!r} cannot become a file below {folder}: remove or rename it in the bucket")
    return folder / key


def folders(place: Place) -> Iterator[Place]:
    """Yield the folders in a place; of a bucket in one listing, where asking each would take a request."""
    if isinstance(place, BucketPath):
        yield from bucket_client().folders(place)
    else:
        yield from (path for path in place.iterdir() if path.is_dir())


@contextmanager
def local_copy(place: Place) -> Iterator[Path]:
    """A local file with the content of `place`: itself, or a checked copy that is gone at the end."""
    if isinstance(place, Path):
        yield place
        return
    with local.temporary_for_upload(place.name) as copy:
        with open(copy, "w+b") as file:
            bucket_client().fetch(place, file)
        yield copy


def write_whole(place: Place, synced: bool = False) -> AbstractContextManager[IO[bytes]]:
    """Open for writing; it appears, or replaces what stood there, only when the block ends well.

    If `synced`, no power loss leaves the name without the content. It costs milliseconds on a disk, and nothing in a
    bucket. What can be told from its content to be torn, and made again, needs none.
    """
    return local.write_whole(place, synced) if isinstance(place, Path) else bucket_client().write_whole(place)


def write_new(place: Place, synced: bool = False) -> AbstractContextManager[IO[bytes]]:
    """Write like `write_whole`, but never replace. A file that exists must have the same content.

    Raises ConflictError, which names the file, if its content differs.
    """
    return local.write_new(place, synced) if isinstance(place, Path) else bucket_client().write_new(place)


def swap(place: Place, before: bytes | None, after: bytes) -> None:
    """Put `after` where `before` still stands whole, or where nothing does (None): of two at once one comes through.

    Raises ConflictError if it was changed meanwhile.
    """
    if isinstance(place, Path):
        local.swap(place, before, after)
    else:
        bucket_client().swap(place, before, after)


def copy_new(source: Place, target: Place) -> None:
    """Copy whole or not at all; within Google Cloud Storage no byte comes here.

    Raises ConflictError if the target stands with other content.
    """
    if isinstance(source, BucketPath) and isinstance(target, BucketPath):
        bucket_client().copy_new(source, target)
        return
    with source.open("rb") as reader:
        if isinstance(target, BucketPath):
            bucket_client().create(target, reader)  # as it lies: a copy of it first would cost a third of the time
            return
        with write_new(target, synced=True) as writer, local.full_disk_explained(writer, source.stat().st_size):
            local.copy_bytes(reader, writer)


def temporary_for(place: Place) -> AbstractContextManager[Path]:
    """Give a local name for what is to be moved to `place`: beside it, if its name follows from its content."""
    return temporary_beside(place) if isinstance(place, Path) else local.temporary_for_upload(place.name)


def move_whole(temporary: Path, place: Place) -> None:
    """Bring what `temporary_for` named to its place, synced; what stood there is replaced."""
    if isinstance(place, Path):
        local.sync_path(temporary)
        temporary.replace(place)
        return
    with open(temporary, "rb") as file:
        bucket_client().replace(place, file)


def sync_folder(folder: Place) -> None:
    """Bring the names of the files that were written there to the disk: a commit must not outlive what it commits."""
    if isinstance(folder, Path):
        local.sync_folder(folder)


def sweep(folder: Place) -> int:
    """Remove the temporary files of dead processes below `folder`; return how many. A bucket never has any."""
    return local.sweep(folder) if isinstance(folder, Path) else 0
