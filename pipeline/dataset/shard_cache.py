"""Copies of published shards on this host, for all of its processes. Each copy is fetched once, verified and whole.

    shards/<version>/<crc32c>-<shard>          a copy; its modification time is the time of its last use
    shards/<version>/.<crc32c>-<shard>.lock    shared by processes that read the copy; exclusive to fetch or remove it
    shards/.lock                               exclusive to make room, or to give a copy its name

The locks are those of the kernel (flock), which frees the locks of a killed process at once.
"""

import fcntl
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from pipeline import storage
from pipeline.dataset.manifest import Dataset, committed_objects
from pipeline.dataset.shard_lists import Shard
from pipeline.errors import DatasetError, SettingsError, StorageError
from pipeline.storage import BucketPath, ObjectStat, temporary_beside
from pipeline.storage.bucket_path import bucket_client
from pipeline.system.flock import locked
from pipeline.system.os_errors import unless_missing
from pipeline.system.wording import format_size

POLL_S = 0.05
"""A process looks at a copy that another process fetches at this interval in seconds."""
READ_AT_ONCE = {"train": 8, "validation": 1, "test": 1}
"""This many shards of each split are read at once. 8 are enough to mix them, and to hide the latency of one."""
GIGABYTE = 1_000_000_000
_log = logging.getLogger(__name__)

Waiting = Callable[[], bool]
"""Called repeatedly while there is no room. Returns whether to continue to wait. It raises an error to give up."""


@dataclass(frozen=True)
class RemoteShard:
    """A shard in a bucket, pinned to one generation, and the name of its copy in a cache."""

    object: BucketPath
    stat: ObjectStat
    copy: Path
    """Relative to the folder of the cache."""


def remote_shards(folder: BucketPath, dataset: Dataset) -> dict[str, RemoteShard]:
    """Return the shards that a training reads, by name.

    Raises DatasetError with the file that is missing, or that has other bytes than the committed ones.
    """
    objects = committed_objects(folder, dataset)
    return {
        shard.name: RemoteShard(folder / shard.name, objects[shard.name], _copy_name(shard, dataset))
        for split in _splits_read(dataset)
        for shard in dataset.splits[split].shards
    }


def _splits_read(dataset: Dataset) -> list[str]:
    """Return the splits that a training reads."""
    return list(dict.fromkeys(("train", "validation", dataset.judged_split)))


def _copy_name(shard: Shard, dataset: Dataset) -> Path:
    """Return the name of a copy. In a window, it names the shard's own version, so that no shard is fetched twice."""
    name = PurePosixPath(shard.name)
    return Path(name.parent.name or dataset.version) / f"{shard.crc32c}-{name.name}"


def needed_room(dataset: Dataset) -> dict[str, int]:
    """Return the bytes of the shards that must be in the cache at the same time, by split.

    This is one shard more than are read at once, for padding. A cache of this size is never exceeded.
    """
    sizes = {
        split: sorted((shard.bytes for shard in dataset.splits[split].shards), reverse=True)
        for split in _splits_read(dataset)
    }
    return {split: sum(largest[: READ_AT_ONCE[split] + 1]) for split, largest in sizes.items()}


def divided_room(dataset: Dataset, limit_bytes: int) -> dict[str, int]:
    """Divide the bytes of a cache: each split gets what it needs, and its share of the rest by its size."""
    needed = needed_room(dataset)
    total = sum(dataset.splits[split].bytes for split in needed) or 1
    rest = max(limit_bytes - sum(needed.values()), 0)
    return {split: room + rest * dataset.splits[split].bytes // total for split, room in needed.items()}


def require_room(dataset: Dataset, limit_bytes: int) -> None:
    """Raise SettingsError if a cache of `limit_bytes` cannot hold the shards that are read at once."""
    needed = sum(needed_room(dataset).values())
    if needed > limit_bytes:
        # This is rounded up to whole megabytes, so that the value in the error is large enough.
        min_gigabytes = math.ceil(needed / GIGABYTE * 1000) / 1000
        raise SettingsError(
            f"cache_gigabytes must be at least {min_gigabytes:g} for this dataset, got {limit_bytes / GIGABYTE:g}: "
            f"{READ_AT_ONCE['train']} of its shards are read at once. Raise it, or build more and smaller shards "
            "(num_shards)"
        )


class PinnedShard:
    """A copy that no process removes until it is released."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def release(self) -> None:
        """Release the copy. It counts as used until now."""
        try:
            with suppress(FileNotFoundError):  # A person may have emptied the cache.
                os.utime(self.path)
        finally:  # A lock that stays held would keep the copy from being fetched again.
            os.close(self._lock)


class _Copy(NamedTuple):
    used_ns: int
    size: int
    path: Path


class ShardCache:
    """The copies in one folder, of at most `limit_bytes` in total. Any number of threads and processes may use it."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._checked: set[Path] = set()
        self._warned = False
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        storage.sweep(folder)

    def pin(self, shard: RemoteShard, waiting: Waiting) -> PinnedShard:
        """Return a copy of the shard. It is fetched if it is missing or damaged.

        Raises StorageError if it cannot be fetched or written, DatasetError if the shard was replaced or removed.
        """
        path = self.folder / shard.copy
        with _explained(path):
            while (pinned := self._pin_valid(path, shard.stat)) is None:
                # A lock that waits would not do: another process may fetch the copy and then read it for a long time
                # under its lock. The copy is usable as soon as it is there.
                if not self._fetch_unless_locked(path, shard, waiting):
                    waiting()
                    time.sleep(POLL_S)
        return pinned

    def trim(self) -> None:
        """Remove the least recently used copies until the limit holds. It may have been exceeded, or be lower now.

        If the disk fails, the copies stay, and the next fetch makes room.
        """
        with suppress(OSError), locked(self.folder / ".lock"):
            self._evict(0)

    def _pin_valid(self, path: Path, stat: ObjectStat) -> PinnedShard | None:
        lock = _lock(path, fcntl.LOCK_SH)
        if lock is None:
            return None
        is_valid = False
        try:
            is_valid = self._is_valid(path, stat)
        finally:
            if not is_valid:
                os.close(lock)
        return PinnedShard(path, lock) if is_valid else None

    def _fetch_unless_locked(self, path: Path, shard: RemoteShard, waiting: Waiting) -> bool:
        """Fetch a copy, unless another process has its lock. Return whether this process had the lock."""
        lock = _lock(path, fcntl.LOCK_EX)
        if lock is None:
            return False
        try:
            if not self._is_valid(path, shard.stat):  # Another process may have fetched it before the lock was free.
                self._fetch(path, shard, waiting)
        finally:
            os.close(lock)
        return True

    def _is_valid(self, path: Path, stat: ObjectStat) -> bool:
        """Whether a copy has the right size. At its first use by this process, its CRC32C is verified, too."""
        with suppress(FileNotFoundError):
            if path.stat().st_size == stat.st_size and (
                path in self._checked or storage.crc32c_of(path) == stat.crc32c
            ):
                self._checked.add(path)
                return True
        return False

    def _fetch(self, path: Path, shard: RemoteShard, waiting: Waiting) -> None:
        if path.exists():
            _log.warning("%s is damaged: fetching it again", path)
        with temporary_beside(path) as temporary, open(temporary, "w+b") as file:
            self._reserve(file.fileno(), shard.stat.st_size, waiting)
            _download(shard, file)
            # Without the lock, another process that adds up sizes could find the copy under neither of its names.
            with locked(self.folder / ".lock"):
                temporary.replace(path)
        self._checked.add(path)

    def _reserve(self, descriptor: int, size: int, waiting: Waiting) -> None:
        """Wait for room, then give the file its final size, so that other processes count it when they make room."""
        while (excess := self._make_room(descriptor, size)) > 0 and waiting():
            time.sleep(POLL_S)
        if excess > 0:
            # The training cannot go on without this shard, so the limit is exceeded.
            os.truncate(descriptor, size)
            if not self._warned:
                self._warned = True
                _log.warning(
                    "cache_gigabytes=%g is less than the size of the shards that are read at once: the cache is %s "
                    "larger for now",
                    self.limit_bytes / GIGABYTE,
                    format_size(excess),
                )

    def _make_room(self, descriptor: int, size: int) -> int:
        """Make room and take it. Return how many bytes are missing; 0 or less if the room was taken."""
        with locked(self.folder / ".lock"):
            excess = self._evict(size)
            if excess <= 0:
                os.truncate(descriptor, size)
            return excess

    def _evict(self, size: int) -> int:
        """Remove the least recently used copies until `size` more bytes fit. Return the bytes that still do not."""
        copies = sorted(self._copies())
        excess = sum(copy.size for copy in copies) + size - self.limit_bytes
        for copy in copies:
            if excess <= 0:
                break
            # Locks and files that are being fetched count, but are not removed.
            if not copy.path.name.startswith(".") and _remove(copy.path):
                excess -= copy.size
        return excess

    def _copies(self) -> Iterator[_Copy]:
        """Yield all copies, including those that are being fetched."""
        for path in self.folder.glob("*/*"):
            if stat := unless_missing(path.stat):
                yield _Copy(stat.st_mtime_ns, stat.st_size, path)


def remove_copies(version: Path) -> None:
    """Remove the copies of one version in a cache, except those that a process reads. `version` is their folder."""
    with locked(version.parent / ".lock"):
        storage.sweep(version)
        # A copy that was removed by hand has left its lock.
        for name in sorted({path.name.removeprefix(".").removesuffix(".lock") for path in version.iterdir()}):
            _remove(version / name)
        with suppress(OSError):  # It has a copy that a process reads.
            version.rmdir()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an error of the disk, mostly that it is full, into a StorageError with advice."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}): free some space in local_folder, lower cache_gigabytes, or "
            "choose another local_folder"
        ) from error


def _download(shard: RemoteShard, file: IO[bytes]) -> None:
    try:
        bucket_client().fetch(shard.object, file, shard.stat)
    except FileNotFoundError as error:
        raise DatasetError(
            f"{shard.object} was overwritten or removed while a training used it: restore it, or build the dataset "
            "again"
        ) from error


def _lock(path: Path, operation: int) -> int | None:
    """Return the descriptor of the lock of a copy, or None if another process has it. Closing it frees the lock."""
    name = path.with_name(f".{path.name}.lock")
    name.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        # Between `open` and `flock`, another process may have removed the file with its copy. A lock of the removed
        # file would exclude nobody, because others lock the new file with this name.
        if os.fstat(descriptor).st_ino == name.stat().st_ino:
            return descriptor
    os.close(descriptor)
    return None


def _remove(path: Path) -> bool:
    """Remove a copy and its lock, unless a process reads the copy. Return whether it was removed."""
    lock = _lock(path, fcntl.LOCK_EX)
    if lock is None:
        return False
    path.unlink(missing_ok=True)
    # This happens under its own lock. A process that opened the file before notices in `_lock` that it was removed.
    path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
    os.close(lock)
    return True
