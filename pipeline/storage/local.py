"""Local files that are whole or absent.

Every write goes to a temporary file beside its target, and reaches the target in one rename or link. A reader therefore
sees all of a file or none of it. The temporary name contains the host, the process and its start, so that `sweep` can
tell a file that a killed process left from one that is being written, even if the clock of the file server is wrong.
"""

import errno
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
from pipeline.system.flock import locked

NO_HARD_LINKS = (
    "its file system has no hard links (such as SMB, exFAT or gcsfuse): use a local disk, NFS, or a gs:// address"
)
# A file system without hard links answers `link` with one of these errors.
WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_BOOT_ID, _PROCESS_IDS = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
FULL = (errno.ENOSPC, errno.EDQUOT)
"""The system raises these errors for a full disk and for a full quota."""
CHUNK_BYTES = 1 << 20
BLOCK_BYTES = 512
"""`st_blocks` is in this unit, whatever the block size of the file system."""
ORPHAN_AGE_S = 86_400
"""A temporary file to which nothing was written for this many seconds counts as left behind, on any host."""
_TEMPORARY = re.compile(r"^\..+\.(?P<host>[^.]+)\.(?P<pid>\d+)(-(?P<start>\d+))?\.[0-9a-f]{8}\.tmp(\.keras)?$")


def crc32c_of_file(path: Path) -> int:
    """Return CRC32C of a whole file, read in pieces of 1 MiB, at more than 1 GB/s."""
    with open(path, "rb") as file:
        return crc32c_of_open_file(file)


def crc32c_of_open_file(file: IO[bytes]) -> int:
    """Return CRC32C of a file from its position to its end."""
    crc = 0
    while chunk := file.read(CHUNK_BYTES):
        crc = google_crc32c.extend(crc, chunk)
    return crc


@contextmanager
def temporary_beside(path: Path, ending: str = ".tmp") -> Iterator[Path]:
    """Give a temporary name beside `path`, which contains the host and the process. The file is removed at the end.

    The caller renames or links the file to `path`. `ending` may be ".tmp.keras", because Keras chooses the format of a
    model by the suffix of its file.
    """
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(_temporary_name(path.name) + ending)
    try:
        yield temporary
    except OSError as error:
        explain_full_disk(error, temporary)
        # An error of `write`, such as that of a full disk, does not name the file.
        if error.filename is None:
            error.filename = str(path)
        raise
    finally:
        if temporary.exists():
            temporary.unlink(missing_ok=True)


def explain_full_disk(error: OSError, file: Path | int, needed: int | None = None) -> None:
    """Add to the error of a full disk how many bytes are needed, and how many are free without `file`.

    An error is changed only if it means a full disk or quota, and has not been changed before. `file` is the path or
    descriptor of the file that was being written, and `needed` its final size, if it is known.
    """
    if error.errno not in FULL or error.strerror != os.strerror(error.errno):
        return
    # The error of the full disk must reach the caller, even if the numbers cannot be read.
    with suppress(OSError):
        status, disk = os.stat(file), os.statvfs(file)  # noqa: PTH116 - of a descriptor, too
        size = f"more than {status.st_size:,}" if needed is None else f"{needed:,}"
        # The file is removed or written again, so the blocks that it occupies count as free.
        free = disk.f_bavail * disk.f_frsize + status.st_blocks * BLOCK_BYTES
        # If a quota is full, the free bytes of the disk say nothing.
        of_disk = f", {free:,} are free" if error.errno == errno.ENOSPC else ""
        error.strerror = f"{error.strerror}: {size} bytes are needed{of_disk}"


@contextmanager
def full_disk_explained(file: IO[bytes], needed: int | None = None) -> Iterator[None]:
    """Call `explain_full_disk` for an error of this block, which writes `file`. The file is flushed at the end."""
    try:
        yield
        # The buffered bytes may have no room. Without the flush, closing the file would raise outside of this block.
        file.flush()
    except OSError as error:
        explain_full_disk(error, file.fileno(), needed)
        raise


@contextmanager
def write(path: Path, replaces: bool, synced: bool = False) -> Iterator[IO[bytes]]:
    """Open `path` for writing.

    It appears, or replaces the existing file if `replaces`, only if the block ends without an error. If not `replaces`,
    a file that exists stays, and ConflictError is raised if its content differs. If `synced`, the content is on the
    disk before the file has its name. `sync_folder` syncs the name.
    """
    with temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            yield file
            if synced:
                file.flush()
                os.fsync(file.fileno())
        if replaces:
            temporary.replace(path)
        elif not _link(temporary, path):
            is_equal = temporary.stat().st_size == path.stat().st_size
            if not (is_equal and crc32c_of_file(temporary) == crc32c_of_file(path)):
                raise other_content(path)


def remove_torn(path: Path, crc32c: int) -> bool:
    """Remove a file whose content does not have this checksum. Return False if the file is intact.

    The file is renamed before it is read. Another process that repairs the same torn file may have written an intact
    one to its name already, and that one must not be removed.
    """
    with temporary_beside(path) as aside:
        try:
            path.rename(aside)
        except FileNotFoundError:  # The other process is about to write it.
            return True
        if crc32c_of_file(aside) != crc32c:
            return True
        # A link, not a rename: another process may have written the file again meanwhile, and that one stays.
        _link(aside, path)
        return False


def swap(path: Path, before: bytes | None, after: bytes) -> None:
    """Replace a file with content `before`, or create it if `before` is None. Raises ConflictError otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A rename replaces any content. Only a lock keeps the file unchanged between the comparison and the rename.
    with locked(path.with_name(f".{path.name}.lock")):
        if (path.read_bytes() if path.exists() else None) != before:
            raise changed_meanwhile(path)
        with write(path, replaces=True, synced=True) as file:
            file.write(after)
        sync_folder(path.parent)


def other_content(place: object) -> ConflictError:
    """Return the error that `write` raises if it does not replace."""
    return ConflictError(
        f"{place} already exists with other content and was left untouched: move it away, or publish elsewhere"
    )


def changed_meanwhile(place: object) -> ConflictError:
    """Return the error that `swap` raises."""
    return ConflictError(
        f"another program changed {place} in the meantime, so it was left untouched: check it, and run again"
    )


@contextmanager
def temporary_for_upload(name: str) -> Iterator[Path]:
    """Give a temporary file for an upload, in the system's folder for temporary files. It is removed at the end.

    The next call removes the files that a killed process left there.
    """
    system = Path(tempfile.gettempdir())
    for left in filter(_is_orphan, system.glob(".tenfold.*.tmp")):
        shutil.rmtree(left, ignore_errors=True)
    folder = system / (_temporary_name("tenfold") + ".tmp")
    # Other users may read the system's folder, but not the images of this one.
    folder.mkdir(mode=0o700)
    try:
        yield folder / name
    finally:
        shutil.rmtree(folder)


def nearest(folder: Path) -> Path:
    """Return `folder`, or the nearest folder above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder, and its own name, to the disk. One call serves all files that were written there."""
    # The parent holds the name of a new folder. Without it, a power loss could remove the folder with all files.
    for path in (folder, folder.parent):
        sync_path(path)


def sync_tree(folder: Path) -> None:
    """Sync all files and folders below a folder, and its own name, to the disk, whoever wrote them."""
    for path in (*folder.rglob("*"), folder, folder.parent):
        sync_path(path)


def sync_path(path: Path) -> None:
    """Sync the content of a file, or the names in a folder, to the disk. Another library may have written the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> int:
    """Remove the temporary files of dead processes below `folder`, and return their number.

    A file of this host is removed if its process has ended. A file of another host is removed if nothing was written to
    it for a day. Until then, it may belong to a live process.
    """
    # Another run may remove folders meanwhile. `os.walk` leaves them out, and `rglob` would raise an error.
    files = (Path(above, name) for above, _, names in os.walk(folder) for name in names if name.startswith("."))
    orphans = list(filter(_is_orphan, files))
    for path in orphans:
        path.unlink(missing_ok=True)
    return len(orphans)


def _temporary_name(name: str) -> str:
    """Return a temporary name with the host and the process that write the file, for `_is_orphan`."""
    pid = os.getpid()
    process = f"{pid}-{start}" if (start := _start_of(pid)) else str(pid)
    return f".{name}.{this_host()}.{process}.{uuid.uuid4().hex[:8]}"


@cache
def this_host() -> str:
    """Return a name for the scope in which process ids are unique: this host since its boot, and this PID namespace.

    Containers with the same host name may share a workspace, and a process of one is not visible to the other.
    """
    ids = [_BOOT_ID.read_text(), str(_PROCESS_IDS.readlink())] if _BOOT_ID.exists() else []
    digest = hashlib.blake2b("".join(ids).encode(), digest_size=4).hexdigest()
    # A dot separates the parts of a temporary name, so the host must not contain one.
    return f"{socket.gethostname().replace('.', '-') or 'localhost'}-{digest}"


def _link(temporary: Path, path: Path) -> bool:
    """Give `temporary` its final name unless the name is taken. Return whether the name was free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        # There is no replacement: with a check and then a rename, two runs could both win.
        if error.errno in WITHOUT_LINKS:
            raise SettingsError(f"{path.parent} cannot be used: {NO_HARD_LINKS}") from error
        raise
    return True


def _is_orphan(path: Path) -> bool:
    match = _TEMPORARY.match(path.name)
    if not match:
        return False
    with suppress(FileNotFoundError):
        if match["host"] == this_host():
            # However old the file is: a listing may write for more than a day. The clock of a file server may also be
            # wrong.
            return not _is_alive(int(match["pid"]), match["start"])
        return time.time() - path.stat().st_mtime > ORPHAN_AGE_S
    return False


def _is_alive(pid: int, start: str | None) -> bool:
    """Return whether the process with this id and this start is alive. Without a start, the id has to do.

    A killed process keeps its id, as a zombie, until its parent has waited for it.
    """
    import psutil  # A task that finds nothing to sweep does not load it.

    try:
        is_zombie = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    return not is_zombie and start in (None, _start_of(pid))


def _start_of(pid: int) -> str:
    """Return when a process began, in clock ticks since boot; empty if it has ended, or the system has no /proc.

    The system reuses ids, and the start tells the processes apart. No change of a clock changes it.
    """
    try:
        # The second field is the name of the program in parentheses, which may hold spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""
