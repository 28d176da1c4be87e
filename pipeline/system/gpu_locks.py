"""A lock for each GPU of this machine, so that no two trainings use the same one."""

import fcntl
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.errors import FileSystemError
from pipeline.system.flock import try_lock

_TAKING = "taking"
"""The file whose lock a process holds for the moment in which it takes GPUs."""


def default_folder() -> Path:
    """Return the folder of the locks: one for all users and workspaces that share the folder for temporary files."""
    return Path(tempfile.gettempdir()) / "tenfold-gpus"


class GpuLocks:
    """The locks of this process. The kernel releases them when the process ends, however it ends.

    The servers of one training can hold a lock together. `folder` has an empty file for each GPU.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}
        """The descriptor of the open file of each GPU."""
        # A forked child, such as one of `multiprocessing.Pool`, would hold the locks after the end of this process.
        os.register_at_fork(after_in_child=self.release)

    def take(self, gpus: Sequence[str], count: int) -> list[str] | None:
        """Lock the first `count` free GPUs of `gpus`, and return them. If fewer are free now, lock none: None.

        Raises:
            FileSystemError: If this user may not open the files.
        """
        taking = self._open(_TAKING)
        free: dict[str, int] = {}
        try:
            if not try_lock(taking, fcntl.LOCK_EX):  # Another process is taking GPUs.
                return None
            for gpu in gpus:
                free[gpu] = self._open(gpu)
                if not try_lock(free[gpu], fcntl.LOCK_EX):
                    os.close(free.pop(gpu))
            taken = list(free)[:count] if len(free) >= count else []
            for gpu in taken:
                # A shared lock, which the other servers of this training can take, too.
                try_lock(free[gpu], fcntl.LOCK_SH)
                self._held[gpu] = free.pop(gpu)
            return taken or None
        finally:
            for descriptor in (*free.values(), taking):
                os.close(descriptor)

    def join(self, gpus: Sequence[str]) -> bool:
        """Also hold GPUs that another server of this training holds. Return False if that server has lost one."""
        for gpu in gpus:
            if gpu not in self._held:
                self._held[gpu] = self._open(gpu)
                if not try_lock(self._held[gpu], fcntl.LOCK_SH):
                    return False
        return True

    def release(self) -> None:
        """Release all locks of this process."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _open(self, name: str) -> int:
        # Other users share the folder and the files. The folder is not sticky: in a sticky folder, Linux refuses to
        # open the file of another user with O_CREAT (fs.protected_regular).
        with suppress(FileExistsError):
            self._folder.mkdir(parents=True)
            self._folder.chmod(0o777)
        # Not for writing, because the file may belong to another user. No link, which another user may have put there.
        name = name.replace("/", "-")  # Older drivers have it in the UUIDs of parts of a GPU.
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except PermissionError as error:
            raise FileSystemError(
                f"this user cannot use the locks of GPUs in {self._folder} ({error}): let all users write there with "
                f"`chmod 777 {self._folder}`, and run again"
            ) from error
        with suppress(PermissionError):
            os.fchmod(descriptor, 0o644)
        return descriptor
