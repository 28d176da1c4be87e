"""Archives of Comet, whole or absent, also those of a process that was killed.

comet/try-1/KEY.zip   what `comet upload` takes, of one try
comet/try-1/.open/    the same while it is written: what Comet has not packed yet, and a lock; the try is under way or
                      was killed. A dot before its name: it is not brought to a bucket

Comet writes its messages into a folder of the system's temporary ones, where no one finds them after a kill, and packs
them into a file that stands there empty until then. Of an online experiment that lost its server it packs them as
those of a new one, which `comet upload` refuses for a key that exists. So here they are kept beside the run, and packed
anew with a description of our own.
"""

import fcntl
import json
import shlex
import shutil
import sys
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pipeline.errors import DatasetError
from pipeline.storage.local import sync_folder, write_whole

_OPEN, _LOCK = ".open", "lock"
_MESSAGES, _ABOUT = "messages.json", "experiment.json"
_DEPTHS = (".", "*", "*/*", "runs/*/*")
"""Where trainings lie in that of one, of a run, of all runs, and in a workspace."""
_FAST = 1
"""Level of compression: messages shrink to a tenth at the lowest one."""


class Try:
    """A new folder `try-<n>` in `folder`, held by this process until close().

    The same key in the same folder would overwrite the archive of the try before. Raises OSError where it cannot be
    made.
    """

    def __init__(self, folder: Path, key: str, project: str, workspace: str | None) -> None:
        self.open = _new(folder) / _OPEN
        """Where Comet keeps what is not packed."""
        self.open.mkdir()
        self._lock = (self.open / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        _write_json(self.open / _ABOUT, _about(key, project, workspace))

    def close(self) -> Path | None:
        """Pack what Comet left; the archive, None where it left nothing."""
        with self._lock:
            return _pack(self.open)

    def discard(self) -> None:
        """Remove what Comet left: it is written elsewhere."""
        with self._lock:
            _remove(self.open)


def recover(folder: Path) -> list[Path]:
    """Pack what killed tries in `folder` left, and return these archives; a try under way is left alone."""
    packed = []
    for opened in sorted(folder.glob(f"try-*/{_OPEN}")):
        with _held(opened) as ours:
            archive = _pack(opened) if ours else None
        if archive:
            packed.append(archive)
    return packed


def recover_below(folder: Path) -> list[Path]:
    """The same of all trainings in a run or a workspace, or of one, by the folder of either.

    Raises DatasetError where there is none.
    """
    if not any(True for depth in _DEPTHS for _ in folder.glob(f"{depth}/run.json")):
        raise DatasetError(f"{folder} holds no run: name the folder of a run, or a workspace")
    return [
        archive for depth in _DEPTHS for comet in sorted(folder.glob(f"{depth}/comet")) for archive in recover(comet)
    ]


def archives_below(folder: Path) -> list[Path]:
    """All whole archives of all trainings in a run or a workspace, or of one, by the folder of either."""
    return [path for depth in _DEPTHS for comet in sorted(folder.glob(f"{depth}/comet")) for path in archives(comet)]


def archives(folder: Path) -> list[Path]:
    """All whole archives in `folder`, oldest first."""
    return sorted(folder.glob("try-*/*.zip"), key=lambda path: int(path.parent.name.removeprefix("try-")))


def upload_command(paths: Iterable[Path]) -> str:
    """What uploads archives, as a shell takes it."""
    beside = Path(sys.executable).with_name("comet")  # where it is installed, but on nobody's path
    return shlex.join([str(beside) if beside.exists() else "comet", "upload", *map(str, paths)])


def _new(folder: Path) -> Path:
    """Make and return the first folder try-<n> (from 1) that nobody has."""
    number = 1
    while True:
        try:
            (folder / f"try-{number}").mkdir(parents=True)
            return folder / f"try-{number}"
        except FileExistsError:
            number += 1


def _about(key: str, project: str, workspace: str | None) -> dict[str, Any]:
    """What an archive says of its experiment: as Comet has it of one that a later try may continue."""
    return {
        "offline_id": key,
        "project_name": project,
        "start_time": int(1000 * time.time()),
        "stop_time": None,
        "tags": [],
        "workspace": workspace,
        "resume_strategy": "get_or_create",
        "customer_error_reported": False,
        "customer_error_message": None,
        "user_provided_experiment_key": True,
        "comet_start_sourced": True,
    }


@contextmanager
def _held(opened: Path) -> Iterator[bool]:
    """Whether the lock of a try is ours for the block: its process is gone, and nobody else packs it."""
    if not (opened / _ABOUT).exists():  # in the making
        yield False
        return
    try:
        with (opened / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield (opened / _ABOUT).exists()
    except (BlockingIOError, FileNotFoundError):  # at work, or packed by another one just now
        yield False


def _pack(opened: Path) -> Path | None:
    source = _source(opened)
    about = json.loads((opened / _ABOUT).read_bytes())
    archive = opened.parent / f"{about['offline_id']}.zip"
    if source is not None and not archive.exists():  # else it was killed between packing and removing
        _write(archive, source, about)
        sync_folder(archive.parent)  # A power loss must not keep the removal alone.
    _remove(opened)
    return archive if archive.exists() else None


def _source(opened: Path) -> Path | zipfile.Path | None:
    """What Comet packed, or the folder of messages that it did not come to pack; None where there are no messages."""
    for packed in map(zipfile.Path, filter(zipfile.is_zipfile, opened.glob("*.zip"))):
        if (packed / _MESSAGES).exists() and _is_sound(packed.root):
            return packed
    return next((path.parent for path in opened.glob(f"*/{_MESSAGES}") if path.stat().st_size), None)


def _is_sound(packed: zipfile.ZipFile) -> bool:
    try:
        return packed.testzip() is None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError):  # as a power loss leaves it
        return False


def _write(archive: Path, source: Path | zipfile.Path, about: dict[str, Any]) -> None:
    described = {**about, "stop_time": int(1000 * time.time())}
    with (
        write_whole(archive, synced=True) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_FAST) as packed,
    ):
        packed.writestr(_ABOUT, json.dumps(described))
        for part in source.iterdir():
            if part.name != _ABOUT:
                with part.open("rb") as reader, packed.open(part.name, "w", force_zip64=True) as writer:
                    _copy(part.name, reader, writer)


def _copy(name: str, reader: IO[bytes], writer: IO[bytes]) -> None:
    if name != _MESSAGES:
        shutil.copyfileobj(reader, writer)
        return
    for line in reader:  # the last one may be torn
        if line.startswith(b"{") and line.endswith(b"}\n"):
            writer.write(line)


def _remove(opened: Path) -> None:
    shutil.rmtree(opened)
    with suppress(OSError):  # it holds an archive
        opened.parent.rmdir()


def _write_json(path: Path, content: Any) -> None:
    with write_whole(path, synced=True) as file:
        file.write(json.dumps(content).encode())
    sync_folder(path.parent)
