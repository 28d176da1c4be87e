"""Copies of published shards on this host, shared by all its processes: each is fetched once, checked and whole.

    shards/<version>/<crc32c>-<shard>          a copy; its time of change says when it was last used
    shards/<version>/.<crc32c>-<shard>.lock    held together by those who read it, alone by who fetches or removes it
    shards/.lock                               held by who makes room, or names a copy

The locks are the kernel's (flock): those of a killed process are free at once.
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
from pipeline.dataset.manifest import Dataset, Shard, committed_objects
from pipeline.errors import DatasetError, SettingsError, StorageError
from pipeline.storage import BucketPath, ObjectStat, temporary_beside
from pipeline.storage.bucket_client import bucket_client

POLL_S = 0.05
READ_AT_ONCE = {"train": 8, "validation": 1}
"""Shards of each split that are read at once. 8 are enough to mix them, and to hide the latency of one."""
GIGABYTE = 1_000_000_000
_log = logging.getLogger(__name__)

Waiting = Callable[[], bool]
"""Asked again and again while there is no room: whether to wait on. May raise, to give up."""


@dataclass(frozen=True)
class RemoteShard:
    """A shard in a bucket, pinned to the generation that was found, and the name of its copy in a cache."""

    object: BucketPath
    stat: ObjectStat
    copy: Path
    """Relative to the folder of the cache."""


def remote_shards(folder: BucketPath, dataset: Dataset) -> dict[str, RemoteShard]:
    """Return the shards for training and validation, by name.

    Raises DatasetError naming the file that is missing, or has other bytes than were committed.
    """
    objects = committed_objects(folder, dataset)
    return {
        shard.name: RemoteShard(folder / shard.name, objects[shard.name], _copy_name(shard, dataset))
        for split in ("train", "validation")
        for shard in dataset.splits[split].shards
    }


def _copy_name(shard: Shard, dataset: Dataset) -> Path:
    """Return the name of a copy. In a window, it names the shard's own version, so that no shard is fetched twice."""
    name = PurePosixPath(shard.name)
    return Path(name.parent.name or dataset.version) / f"{shard.crc32c}-{name.name}"


def needed_room(dataset: Dataset) -> dict[str, int]:
    """Return the bytes of the shards that must be in the cache at once, by split: one more than are read, for padding.

    A cache of this size is never exceeded.
    """
    sizes = {
        split: sorted((shard.bytes for shard in dataset.splits[split].shards), reverse=True) for split in READ_AT_ONCE
    }
    return {split: sum(sizes[split][: count + 1]) for split, count in READ_AT_ONCE.items()}


def divided_room(dataset: Dataset, limit_bytes: int) -> dict[str, int]:
    """Divide the bytes of a cache between the splits in proportion to their sizes, but no less than each needs."""
    needed = needed_room(dataset)
    total = sum(dataset.splits[split].bytes for split in READ_AT_ONCE) or 1
    share = limit_bytes * dataset.splits["validation"].bytes // total
    validation = max(min(share, limit_bytes - needed["train"]), needed["validation"])
    return {"train": limit_bytes - validation, "validation": validation}


def require_room(dataset: Dataset, limit_bytes: int) -> None:
    """Raise SettingsError if a cache of `limit_bytes` cannot hold the shards that are read at once."""
    needed = sum(needed_room(dataset).values())
    if needed > limit_bytes:
        min_gigabytes = math.ceil(needed / GIGABYTE * 1000) / 1000
        raise SettingsError(
            f"cache_gigabytes must be at least {min_gigabytes:g} for this dataset, got {limit_bytes / GIGABYTE:g}: "
            f"{READ_AT_ONCE['train']} of its shards are read at once. Raise it, set read_shards=direct, or build more "
            "and smaller shards (num_shards)"
        )


class PinnedShard:
    """A copy that nobody removes until it is released."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def release(self) -> None:
        """Let it go; it counts as used until now."""
        with suppress(FileNotFoundError):  # somebody emptied the cache by hand
            os.utime(self.path)
        os.close(self._lock)


class _Copy(NamedTuple):
    used_ns: int
    size: int
    path: Path


class ShardCache:
    """The copies in one folder, of at most `limit_bytes` together. Any number of threads and processes may use it."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._checked: set[Path] = set()
        self._warned = False
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        storage.sweep(folder)

    def pin(self, shard: RemoteShard, waiting: Waiting) -> PinnedShard:
        """Return a copy of the shard, fetched where none is there or it is damaged.

        Raises StorageError if it cannot be fetched or written, DatasetError if the shard is gone.
        """
        path = self.folder / shard.copy
        with _explained(path):
            while (pinned := self._pin_valid(path, shard.stat)) is None:
                # Polled, and looked at again each time: who fetches it may be another, who then holds it for long.
                if not self._fetch_unless_locked(path, shard, waiting):
                    waiting()
                    time.sleep(POLL_S)
        return pinned

    def trim(self) -> None:
        """Remove what was used longest ago until the bound holds: more was needed at once, or the bound is lower now.

        A disk that fails leaves the copies as they are; the next fetch makes room.
        """
        with suppress(OSError), _locked(self.folder / ".lock"):
            self._evict(0)

    def _pin_valid(self, path: Path, stat: ObjectStat) -> PinnedShard | None:
        lock = _lock(path, fcntl.LOCK_SH)
        if lock is not None and self._is_valid(path, stat):
            return PinnedShard(path, lock)
        if lock is not None:
            os.close(lock)
        return None

    def _fetch_unless_locked(self, path: Path, shard: RemoteShard, waiting: Waiting) -> bool:
        """Fetch it, unless another has it; say whether none had."""
        lock = _lock(path, fcntl.LOCK_EX)
        if lock is None:
            return False
        try:
            if not self._is_valid(path, shard.stat):  # else another has fetched it meanwhile
                self._fetch(path, shard, waiting)
        finally:
            os.close(lock)
        return True

    def _is_valid(self, path: Path, stat: ObjectStat) -> bool:
        """Whether a copy stands there, of the right size and, seen for the first time, of the right CRC32C."""
        try:
            if path.stat().st_size == stat.st_size and (
                path in self._checked or storage.crc32c_of(path) == stat.crc32c
            ):
                self._checked.add(path)
                return True
        except FileNotFoundError:
            pass
        return False

    def _fetch(self, path: Path, shard: RemoteShard, waiting: Waiting) -> None:
        if path.exists():
            _log.warning("%s is damaged: fetching it again", path)
        with temporary_beside(path) as temporary, open(temporary, "w+b") as file:
            self._reserve(file.fileno(), shard.stat.st_size, waiting)
            _download(shard, file)
            with _locked(self.folder / ".lock"):  # who adds up sizes would find it under neither name
                temporary.replace(path)
        self._checked.add(path)

    def _reserve(self, descriptor: int, size: int, waiting: Waiting) -> None:
        """Give the file its size, which counts for whoever makes room next, once there is room for it."""
        while (excess := self._make_room(descriptor, size)) > 0 and waiting():
            time.sleep(POLL_S)
        if excess > 0:
            os.truncate(descriptor, size)
            self._warn(excess)

    def _make_room(self, descriptor: int, size: int) -> int:
        """Take the room, if it can be made; return how many bytes it lacks."""
        with _locked(self.folder / ".lock"):
            excess = self._evict(size)
            if excess <= 0:
                os.truncate(descriptor, size)
            return excess

    def _evict(self, size: int) -> int:
        """Remove what was used longest ago until `size` more bytes fit; return by how many they still do not."""
        copies = sorted(self._copies())
        excess = sum(copy.size for copy in copies) + size - self.limit_bytes
        for copy in copies:
            if excess <= 0:
                break
            if not copy.path.name.startswith(".") and _remove(copy.path):
                excess -= copy.size
        return excess

    def _copies(self) -> Iterator[_Copy]:
        """Yield all copies, those that are being fetched among them."""
        for path in self.folder.glob("*/*"):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            yield _Copy(stat.st_mtime_ns, stat.st_size, path)

    def _warn(self, excess: int) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "cache_gigabytes=%g is less than the size of the shards that are read at once: the cache is %.3g GB "
                "larger for now",
                self.limit_bytes / GIGABYTE,
                excess / GIGABYTE,
            )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A full disk, most of all."""
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
    """Return the descriptor of the lock of a copy, or None if another has it. Closing it lets go."""
    name = path.with_name(f".{path.name}.lock")
    name.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == name.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):  # held by another, or removed by now together with its copy
        pass
    os.close(descriptor)
    return None


def _remove(path: Path) -> bool:
    """Remove a copy that nobody reads, together with its lock; say whether nobody did."""
    lock = _lock(path, fcntl.LOCK_EX)
    if lock is None:
        return False
    path.unlink(missing_ok=True)
    path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
    os.close(lock)
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
