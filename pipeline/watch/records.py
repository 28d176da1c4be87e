"""A local folder with the record of each training of a comparison: its own folder, or a copy of its files in a bucket.

Apart from the copies of the live pages: a record may take minutes, and must not hold their locks or their questions.
"""

import shutil
import stat
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import DatasetError, SizeError, StorageError
from pipeline.monitor.record import record_folders
from pipeline.report import COMPARISON_FILES
from pipeline.runs.mirror import fetch
from pipeline.storage import BucketPath, Place, objects, require_size
from pipeline.watch.questions import NoAnswer, Questions
from pipeline.watch.tables import MAX_FILE_BYTES

MAX_RECORD_BYTES = 512 << 20
"""Maximum size of all records of a training that the page of a comparison reads: ten hours with eight GPUs have less.
The command `report compare` has no such limit."""
MAX_TOTAL_BYTES = 2 << 30
"""Maximum size of the records of all trainings of a comparison, and of all copies."""
MAX_IDLE_S = 600.0
"""Seconds after which a later comparison removes a copy that no comparison has used since."""


@dataclass
class _Copy:
    folder: Path
    used: float
    """Time of the last use, by the monotonic clock in seconds."""
    size: int = 0
    """Size of the files that a comparison reads, in bytes."""


class RecordFolders:
    """Local folders of trainings with all that a comparison reads. Any number of threads may use it."""

    def __init__(self) -> None:
        self._questions = Questions()
        self._folder = Path(tempfile.mkdtemp(prefix="tenfold-compared-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._copies: dict[str, _Copy] = {}
        self._lock = threading.Lock()

    def local_folder(self, training: Place, room: "Room") -> Path:
        """Return a folder with all that a comparison reads of a training.

        Args:
            training: The folder of the training.
            room: That of all trainings of the comparison.

        Raises:
            SizeError: The files together, or one of them, are too large.
            DatasetError: A file is no regular file, such as a pipe, which would block its reader.
            StorageError: The files are still being copied. The copy goes on, so that a later call gets it.
            AccessError: The bucket cannot be used.
        """
        if isinstance(training, Path):
            _require_readable(training)
            room.take(training, size_of(training))
            return training
        copy = self._copy_of(str(training))
        try:
            self._questions.ask(training.bucket, training, lambda: self._fetch(copy, training, room))
        except NoAnswer as error:
            raise StorageError(f"{training} is still being copied. Reload the page in a minute") from error
        _require_readable(copy.folder)
        room.take(training, size_of(copy.folder))
        return copy.folder

    def _copy_of(self, name: str) -> _Copy:
        with self._lock:
            now = time.monotonic()
            copy = self._copies.pop(name, None) or _Copy(self._folder / name.replace("/", "|"), now)
            for other in [key for key, each in self._copies.items() if now > each.used + MAX_IDLE_S]:
                self._remove(other)
            # A cleaner of temporary files may have removed the folder since.
            copy.folder.mkdir(parents=True, exist_ok=True)
            copy.used = now
            self._copies[name] = copy  # The last one was used most recently.
            return copy

    def _fetch(self, copy: _Copy, training: BucketPath, room: "Room") -> None:
        size = sum(each.stat.st_size for each in objects(training) if each.key.startswith(COMPARISON_FILES))
        room.take(training, size)
        with self._lock:
            copy.size = size
            for other in [key for key, each in self._copies.items() if each is not copy]:
                if sum(each.size for each in self._copies.values()) > MAX_TOTAL_BYTES:
                    self._remove(other)
        fetch(copy.folder, training, COMPARISON_FILES, MAX_FILE_BYTES)

    def _remove(self, name: str) -> None:
        shutil.rmtree(self._copies.pop(name).folder, ignore_errors=True)


class Room:
    """What the trainings of a comparison may have together, in bytes. Any number of threads may use it."""

    def __init__(self, size: int | None = None) -> None:
        self._size = MAX_TOTAL_BYTES if size is None else size
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, training: Place, size: int) -> None:
        """Take `size` bytes for a training, in place of those that it took before. Raises SizeError if it is full."""
        with self._lock:
            self._taken.pop(str(training), None)
            if size > min(self._size - sum(self._taken.values()), MAX_RECORD_BYTES):
                raise SizeError(
                    f"the record of {training} has {size / 1e6:,.0f} MB. A page reads {MAX_RECORD_BYTES / 1e6:,.0f} MB "
                    f"of a run and {MAX_TOTAL_BYTES / 1e6:,.0f} MB of all runs: compare fewer runs, or use `report "
                    "compare`"
                )
            self._taken[str(training)] = size


def size_of(folder: Path) -> int:
    """Return the size of the files in a local folder that a comparison reads."""
    return sum(map(_size_of, _files(folder)))


def _require_readable(folder: Path) -> None:
    """Raise an error if a file of a run could exhaust the memory of the API server, or block it: others may write it.

    Raises:
        SizeError, DatasetError: As of `RecordFolders.local_folder`.
    """
    for path in _files(folder):
        require_size(path, _size_of(path), MAX_FILE_BYTES)


def _files(folder: Path) -> list[Path]:
    files = [folder / name for name in COMPARISON_FILES if not name.endswith("/")]
    return [*files, *(path for record in record_folders(folder).values() for path in record.glob("*"))]


def _size_of(path: Path) -> int:
    try:
        status = path.stat()
    except FileNotFoundError:  # A training that goes on has closed the segment, or has not written the file yet.
        return 0
    if not stat.S_ISREG(status.st_mode):
        raise DatasetError(f"{path} is no regular file: check who made it, and remove it")
    return status.st_size
