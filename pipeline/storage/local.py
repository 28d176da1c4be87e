"""Local files that are whole or absent.

Every write goes to a temporary name beside its target, which names host and process, and reaches the target in one
rename or link. A reader therefore sees all of a file or none of it, and a kill leaves nothing but a temporary file
that `sweep` can tell from a live one.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

import google_crc32c

from pipeline.errors import ConflictError, SettingsError

NO_HARD_LINKS = (
    "its file system has no hard links (such as SMB, exFAT or gcsfuse): use a local disk, NFS, or a gs:// address"
)
WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_BOOT_ID, _PROCESS_IDS = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
FULL = (errno.ENOSPC, errno.EDQUOT)
CHUNK_BYTES = 1 << 20
BLOCK_BYTES = 512
"""Unit of `st_blocks`, whatever the block size of the file system."""
ORPHAN_AGE_S = 86_400
CLOCK_SLACK_S = 2.0  # a process's birth is counted in ticks since boot, a file's time by the wall clock
_TEMPORARY = re.compile(r"^\..+\.(?P<host>[^.]+)\.(?P<pid>\d+)\.[0-9a-f]{8}\.tmp(\.keras)?$")


def crc32c_of_file(path: Path) -> int:
    """Return CRC32C of a whole file, read in pieces of 1 MiB, at more than 1 GB/s."""
    crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc = google_crc32c.extend(crc, chunk)
    return crc


@contextmanager
def temporary_beside(path: Path, ending: str = ".tmp") -> Iterator[Path]:
    """A name beside `path` for what is to become it, which says whose it is; gone at the end unless renamed.

    Its `ending` may be ".tmp.keras", since Keras chooses the format of a model by the name's end.
    """
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(_temporary_name(path.name) + ending)
    try:
        yield temporary
    except OSError as error:
        explain_full_disk(error, temporary)
        if error.filename is None:  # a write to a full disk does not say which file it was
            error.filename = str(path)
        raise
    finally:
        if temporary.exists():
            temporary.unlink(missing_ok=True)


def explain_full_disk(error: OSError, file: Path | int, needed: int | None = None) -> None:
    """Add to the error of a full disk how many bytes are needed, and how many are free without `file`.

    Args:
        error: Any error. It is changed only if it means a full disk or quota, and has not been changed before.
        file: Path or descriptor of the file that was being written.
        needed: Final size of the file, if it is known.
    """
    if error.errno not in FULL or error.strerror != os.strerror(error.errno):
        return
    with suppress(OSError):
        status, disk = os.stat(file), os.statvfs(file)  # noqa: PTH116 - of a descriptor, too
        size = f"more than {status.st_size:,}" if needed is None else f"{needed:,}"
        free = disk.f_bavail * disk.f_frsize + status.st_blocks * BLOCK_BYTES
        of_disk = f", {free:,} are free" if error.errno == errno.ENOSPC else ""
        error.strerror = f"{error.strerror}: {size} bytes are needed{of_disk}"


@contextmanager
def full_disk_explained(file: IO[bytes], needed: int | None = None) -> Iterator[None]:
    """Call `explain_full_disk` for an error of this block, which writes `file`. The file is flushed at the end."""
    try:
        yield
        file.flush()
    except OSError as error:
        explain_full_disk(error, file.fileno(), needed)
        raise


@contextmanager
def write_whole(path: Path, synced: bool = False) -> Iterator[IO[bytes]]:
    """Open `path` for writing; it appears, or replaces what stood there, only when the block ends well.

    If `synced`, the content is on the disk before the name says that it is there. `sync_folder` brings the name.
    """
    with temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            yield file
            _sync_content(file, synced)
        temporary.replace(path)


def remove_torn(path: Path, crc32c: int) -> bool:
    """Remove a file whose content does not have this checksum. Return False if the file is sound.

    The file is renamed before it is read: another process that removes the same torn file may have put a sound one in
    its place, and nobody may remove that one.
    """
    with temporary_beside(path) as aside:
        try:
            path.rename(aside)
        except FileNotFoundError:  # The other process is about to write it.
            return True
        if crc32c_of_file(aside) != crc32c:
            return True
        _link(aside, path)
        return False


@contextmanager
def write_new(path: Path, synced: bool = False) -> Iterator[IO[bytes]]:
    """Like `write_whole`, but never replaces: what already stands at `path` must have the same content.

    Raises ConflictError, which names the file, if its content differs.
    """
    with temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            yield file
            _sync_content(file, synced)
        if not _link(temporary, path):
            _require_equal(temporary, path)


def swap(path: Path, before: bytes | None, after: bytes) -> None:
    """Put `after` where `before` still stands whole, or where nothing does (None).

    Raises ConflictError if it was changed meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "wb") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)  # a rename cannot be told what it may replace
        if (path.read_bytes() if path.exists() else None) != before:
            raise changed_meanwhile(path)
        with write_whole(path, synced=True) as file:
            file.write(after)
        sync_folder(path.parent)


def changed_meanwhile(place: object) -> ConflictError:
    """Return what `swap` raises."""
    return ConflictError(
        f"another program changed {place} in the meantime, so it was left untouched: check it, and run again"
    )


def copy_bytes(reader: IO[bytes], writer: IO[bytes]) -> None:
    """Copy all that `reader` has left, in pieces of 1 MiB."""
    shutil.copyfileobj(reader, writer, CHUNK_BYTES)


@contextmanager
def temporary_for_upload(name: str) -> Iterator[Path]:
    """A temporary file that is to be uploaded: in the system's folder for them, gone at the end.

    What a killed process left there goes with the next one.
    """
    system = Path(tempfile.gettempdir())
    for left in filter(_is_orphan, system.glob(".tenfold.*.tmp")):
        shutil.rmtree(left, ignore_errors=True)
    folder = system / (_temporary_name("tenfold") + ".tmp")
    folder.mkdir(mode=0o700)
    try:
        yield folder / name
    finally:
        shutil.rmtree(folder)


def nearest(folder: Path) -> Path:
    """Return `folder`, or the nearest folder above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder, and its own, to the disk: one call serves all files that were written there."""
    for path in (folder, folder.parent):
        sync_path(path)


def sync_tree(folder: Path) -> None:
    """Bring all files and folders below a folder to the disk, and its own name, however they were written."""
    for path in (*folder.rglob("*"), folder, folder.parent):
        sync_path(path)


def sync_path(path: Path) -> None:
    """Bring the content of a file that another library wrote, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> int:
    """Remove the temporary files of dead processes below `folder`; return how many.

    A file of this host goes when its process is gone; any other only after a day, since a live twin may own it.
    """
    orphans = [path for path in folder.rglob(".*.tmp*") if _is_orphan(path)]
    for path in orphans:
        path.unlink(missing_ok=True)
    return len(orphans)


def _sync_content(file: IO[bytes], synced: bool) -> None:
    if synced:
        file.flush()
        os.fsync(file.fileno())


def _temporary_name(name: str) -> str:
    """Return a name that says which process writes the file, for `_is_orphan`."""
    return f".{name}.{this_host()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"


@cache
def this_host() -> str:
    """Return a name for where process ids mean the same: this host since it started, and this namespace of ids.

    Containers of one name may share a workspace, and a process of one is no process of the other.
    """
    ids = [_BOOT_ID.read_text(), str(_PROCESS_IDS.readlink())] if _BOOT_ID.exists() else []
    digest = hashlib.blake2b("".join(ids).encode(), digest_size=4).hexdigest()
    return f"{socket.gethostname().replace('.', '-') or 'localhost'}-{digest}"


def _link(temporary: Path, path: Path) -> bool:
    """Give `temporary` its final name unless the name is taken; say whether it was free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in WITHOUT_LINKS:  # to look and then to rename would be two steps: two runs could both win
            raise SettingsError(f"{path.parent} cannot be used: {NO_HARD_LINKS}") from error
        raise
    return True


def _require_equal(temporary: Path, path: Path) -> None:
    same_size = temporary.stat().st_size == path.stat().st_size
    if not (same_size and crc32c_of_file(temporary) == crc32c_of_file(path)):
        raise ConflictError(
            f"{path} already exists with other content and was left untouched: move it away, or publish elsewhere"
        )


def _is_orphan(path: Path) -> bool:
    match = _TEMPORARY.match(path.name)
    if not match:
        return False
    with suppress(FileNotFoundError):
        written = path.stat().st_mtime
        if match["host"] == this_host() and not _is_alive(int(match["pid"]), written):
            return True
        return time.time() - written > ORPHAN_AGE_S
    return False


def _is_alive(pid: int, written: float) -> bool:
    """Return whether a process of this id is alive that may have written at that time.

    The system reuses ids, and a killed process keeps its id until its parent has asked for its end.
    """
    import psutil  # a task that finds nothing to sweep need not load it

    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= written + CLOCK_SLACK_S
    except psutil.NoSuchProcess:
        return False
