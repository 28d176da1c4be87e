"""Archives of Comet, whole or absent, also those of a process that was killed.

comet/try-1/KEY.zip   the archive of one attempt, for `comet upload`. That of the last attempt also has the results, and
                      the decision on the promotion that follows them. A later decision has an archive of its own
comet/try-1/.open/    messages that Comet has not packed yet, and a lock: the attempt is under way or was killed. The
                      dot before its name keeps it out of buckets

Comet itself writes its messages into a temporary folder of the system, where nobody finds them after a kill, and packs
them into a file that is empty until then. If an online experiment loses its server, Comet packs the messages as a new
experiment, and `comet upload` refuses that for a key that exists. Here, the messages are stored beside the run, and are
packed again with a description of our own.
"""

import fcntl
import json
import shlex
import shutil
import sys
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.errors import DatasetError
from pipeline.monitor.comet_internals import DESCRIPTION, MESSAGES, description, is_whole_message, stopped
from pipeline.storage import sync_folder, write_json, write_whole

_OPEN, _LOCK = ".open", "lock"
_DEPTHS = (".", "*", "*/*", "runs/*/*")
"""Folders of trainings, relative to that of a training, of a run, of all runs, and of a workspace."""
_COMPRESSION_LEVEL = 1
"""The fastest level, at which messages already shrink to a tenth."""
ADDED_WITHIN_S = 600.0
"""Nothing is added to an older archive: a person may have uploaded it already, and would upload its values again."""


class Attempt:
    """A new folder `try-<n>` in `folder`, locked by this process until close().

    Each attempt has a folder of its own, because the same key in the same folder would overwrite the archive of the
    attempt before. Raises OSError if the folder cannot be made.
    """

    def __init__(self, folder: Path, key: str, project: str, workspace: str | None) -> None:
        self.open = _make_next_folder(folder) / _OPEN
        """The folder of the messages that Comet has not packed."""
        self.open.mkdir()
        self._lock = (self.open / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # After the lock: `recover` takes a folder with a description and without a lock for that of a killed attempt.
        write_json(self.open / DESCRIPTION, description(key, project, workspace), synced=True)
        sync_folder(self.open)

    def close(self, *, extends: bool = False) -> Path | None:
        """Pack what Comet left, and return the archive; None if Comet left nothing.

        With `extends`, what Comet left is added to the newest archive of the training, if that was packed within
        ADDED_WITHIN_S.
        """
        with self._lock:
            return (extends and _added(self.open)) or _pack(self.open)

    def discard(self) -> None:
        """Remove what Comet left, because Comet has it elsewhere."""
        with self._lock:
            _remove(self.open)


def recover(folder: Path) -> list[Path]:
    """Pack what killed attempts in `folder` left, and return these archives. Leaves attempts under way alone."""
    packed = []
    for opened in sorted(folder.glob(f"try-*/{_OPEN}")):
        with _lock(opened) as is_locked:
            archive = _pack(opened) if is_locked else None
        if archive:
            packed.append(archive)
    return packed


def recover_below(folder: Path) -> list[Path]:
    """Pack what killed attempts left of all trainings below the folder of a training, a run or a workspace.

    Raises DatasetError if the folder holds no run.
    """
    if not any(True for depth in _DEPTHS for _ in folder.glob(f"{depth}/run.json")):
        raise DatasetError(f"{folder} does not contain a run: name the folder of a run, or a workspace")
    return [
        archive for depth in _DEPTHS for comet in sorted(folder.glob(f"{depth}/comet")) for archive in recover(comet)
    ]


def archives_below(folder: Path) -> list[Path]:
    """Return all whole archives of all trainings below the folder of a training, a run or a workspace."""
    return [path for depth in _DEPTHS for comet in sorted(folder.glob(f"{depth}/comet")) for path in archives(comet)]


def archives(folder: Path) -> list[Path]:
    """Return all whole archives in `folder`, oldest first."""
    return sorted(folder.glob("try-*/*.zip"), key=lambda path: int(path.parent.name.removeprefix("try-")))


def upload_command(paths: Iterable[Path]) -> str:
    """Return the command that uploads archives, quoted for a shell."""
    beside = Path(sys.executable).with_name("comet")  # This folder is often not on the PATH of a shell.
    return shlex.join([str(beside) if beside.exists() else "comet", "upload", *map(str, paths)])


def _make_next_folder(folder: Path) -> Path:
    """Make and return the first folder try-<n> (from 1) that does not exist."""
    number = 1
    while True:
        try:
            (folder / f"try-{number}").mkdir(parents=True)
            return folder / f"try-{number}"
        except FileExistsError:
            number += 1


@contextmanager
def _lock(opened: Path) -> Iterator[bool]:
    """Lock an attempt for the block if its process has ended and nobody else packs it. Yields whether it is locked."""
    if not (opened / DESCRIPTION).exists():  # It is being made.
        yield False
        return
    try:
        with (opened / _LOCK).open("r+b") as lock:  # NFS grants exclusive locks only on writable files.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Looked at again: another process may have packed it before this one got the lock.
            yield (opened / DESCRIPTION).exists()
    except (BlockingIOError, FileNotFoundError):  # It is under way, or another process packs it now.
        yield False


def _pack(opened: Path) -> Path | None:
    source = _source(opened)
    described = json.loads((opened / DESCRIPTION).read_bytes())
    archive = opened.parent / f"{described['offline_id']}.zip"
    if source is not None and not archive.exists():  # An archive exists after a kill between packing and removing.
        _write(archive, [source], described)
        sync_folder(archive.parent)  # A power loss must not keep the removal alone.
    _remove(opened)
    return archive if archive.exists() else None


def _added(opened: Path) -> Path | None:
    """Add what Comet left to the newest archive, and return it; None if this archive cannot take it."""
    source, archive = _source(opened), next(reversed(archives(opened.parent.parent)), None)
    if source is None or archive is None or not zipfile.is_zipfile(archive):
        return None
    if time.time() - archive.stat().st_mtime > ADDED_WITHIN_S:
        return None
    own = {part.name for part in source.iterdir()} - {MESSAGES, DESCRIPTION}
    with zipfile.ZipFile(archive) as packed:
        if not _is_sound(packed) or own.intersection(packed.namelist()):
            return None
        before = zipfile.Path(packed)
        # A kill before the removal leaves the messages for an archive of their own. The server then gets them twice.
        _write(archive, [before, source], json.loads((before / DESCRIPTION).read_bytes()))
    sync_folder(archive.parent)
    _remove(opened)
    return archive


def _source(opened: Path) -> Path | zipfile.Path | None:
    """Return what Comet packed, or else the folder of messages that it did not pack; None if there are no messages."""
    for packed in map(zipfile.Path, filter(zipfile.is_zipfile, opened.glob("*.zip"))):
        if (packed / MESSAGES).exists() and _is_sound(packed.root):
            return packed
    return next((path.parent for path in opened.glob(f"*/{MESSAGES}") if path.stat().st_size), None)


def _is_sound(packed: zipfile.ZipFile) -> bool:
    try:
        return packed.testzip() is None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError):  # A power loss may leave such a file.
        return False


def _write(archive: Path, sources: Sequence[Path | zipfile.Path], described: dict[str, Any]) -> None:
    with (
        write_whole(archive, synced=True) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL) as packed,
    ):
        packed.writestr(DESCRIPTION, json.dumps(stopped(described)))
        with packed.open(MESSAGES, "w", force_zip64=True) as writer:
            for source in sources:
                with (source / MESSAGES).open("rb") as reader:
                    writer.writelines(filter(is_whole_message, reader))
        for part in (part for source in sources for part in source.iterdir()):
            if part.name not in (DESCRIPTION, MESSAGES):
                with part.open("rb") as reader, packed.open(part.name, "w", force_zip64=True) as writer:
                    shutil.copyfileobj(reader, writer)


def _remove(opened: Path) -> None:
    shutil.rmtree(opened)
    with suppress(OSError):  # It holds an archive.
        opened.parent.rmdir()
