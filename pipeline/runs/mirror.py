"""A run whose workspace is a bucket: it lives in a local folder, and what changes there is brought to the bucket.

A training appends to its record five times a second and leaves checkpoints as they are written: both want a file
system. Of the record, closed segments are brought once, and again only the one that grows (pipeline/monitor/record.py).
A retry on another worker fetches the folder first, and goes on from the last checkpoint. `mirror.json`, here and there,
names whose changes the bucket has: those of the worker that came last.
"""

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pipeline import storage
from pipeline.errors import ConflictError, TenfoldError, TrainingError
from pipeline.rendezvous.servers import CLUSTER, SERVERS
from pipeline.runs.files import BEST, FAILURE, RESULT, RUN
from pipeline.storage import CHUNK_BYTES, BucketPath, ObjectStat, Place, crc32c_of, temporary_beside
from pipeline.storage.local import sync_tree
from pipeline.system.parallel import ordered_map

EVERY_S = 10.0
IDLE_SHARE = 9
"""Times the last mirroring took, to wait at least: a model is large."""
OWNER = "mirror.json"
_LOCAL = ("lock", FAILURE, OWNER)
_LAST = (RUN, BEST, RESULT)
"""Files that name others, or say that all is there: brought after them, as they read before."""
_OF_OTHERS = (f"{SERVERS}/", f"{CLUSTER}/")
"""What the other servers mirror, and what all of them read and write in the bucket."""
_CHECKPOINTS = "checkpoints/"
_REPLACED = (_CHECKPOINTS, "model-")
"""What a training removes when it has newer ones."""
FETCH_TRIES = 5
FETCHERS = 8
"""At once: the segments of a long record are hundreds of small files."""
_log = logging.getLogger(__name__)


class _Version(NamedTuple):
    size: int
    mtime_ns: int


_OTHER = _Version(-1, 0)


class Mirror:
    """Brings the files of a folder to a bucket, as often as it is told."""

    def __init__(self, folder: Path, place: BucketPath) -> None:
        self._folder, self._place = folder, place
        self._owner = _owner(folder)
        self._there: dict[str, _Version] | None = None
        """What the bucket has of each file."""

    def sync(self) -> None:
        """Bring all that is new or has changed, and remove what was replaced.

        Raises StorageError or AccessError if the bucket cannot be used, TrainingError if another worker has taken
        the run over, and FileNotFoundError if a file was removed meanwhile: the next time brings the rest.
        """
        there = self._known()
        # What is written last is looked at first: whatever it names or goes on from was there before, and is found.
        checkpoints = _files(self._folder / _CHECKPOINTS, _CHECKPOINTS)
        last = [(name, _version(path), path.read_bytes()) for name in _LAST if (path := self._folder / name).exists()]
        files = {name: version for name, version in _files(self._folder).items() if not name.startswith(_CHECKPOINTS)}
        changed = [name for name in files if name not in _LAST and there.get(name) != files[name]]
        files |= checkpoints
        last = [(name, version, content) for name, version, content in last if there.get(name) != version]
        # The folder has a newer file in place of these, or the same one compressed.
        replaced = [
            name for name in there if name not in files and (name.startswith(_REPLACED) or f"{name}.gz" in files)
        ]
        newer = [name for name in sorted(checkpoints, reverse=True) if there.get(name) != checkpoints[name]]
        if changed or last or newer or replaced:
            self._require_ours()
        for name in changed:
            self._bring(name, files[name])
        for name, version, content in last:
            self._replace(name, content)
            there[name] = version
        for name in newer:
            self._require_ours()  # Uploads may have taken minutes, and the next worker writes under the same names.
            with suppress(FileNotFoundError):  # removed meanwhile, for one that the next time brings
                self._bring(name, files[name])
        for name in replaced:
            (self._place / name).unlink(missing_ok=True)
            del there[name]

    def _bring(self, name: str, version: _Version) -> None:
        _upload(self._folder / name, self._place / name)
        self._known()[name] = version

    def _replace(self, name: str, content: bytes) -> None:
        """Replace a file of the run as it was when the run was ours: what another worker wrote since then stays."""
        place = self._place / name
        while True:
            before = _content(place)
            self._require_ours()  # after the look: whoever takes the run over writes later than that
            with suppress(ConflictError):
                storage.swap(place, before, content)
                return

    def _known(self) -> dict[str, _Version]:
        if self._there is None:
            files = _files(self._folder)  # as they are before they are compared: what grows meanwhile is newer
            self._there = {
                name: files[name] if name in files and _is_equal(self._folder / name, stat) else _OTHER
                for name, stat in _objects(self._place).items()
            }
        return self._there

    def _require_ours(self) -> None:
        if _owner(self._place) != self._owner:
            raise TrainingError(f"another worker is writing {self._place} now: let it finish the run, or run again")


@contextmanager
def mirrored(folder: Path, place: Place, every_s: float = EVERY_S) -> Iterator[None]:
    """Bring what changes in `folder` to `place` every few seconds, and all of it at the end; nothing if it is local.

    An outage meanwhile costs warnings. If the bucket cannot be used at the end it raises what `Mirror.sync` does,
    unless the block itself failed.
    """
    if isinstance(place, Path):
        yield
        return
    mirror, ended = Mirror(folder, place), threading.Event()
    thread = threading.Thread(target=_keep_up, args=(mirror, ended, every_s), name="mirror", daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        _end(thread, ended)
        _tried(mirror)
        raise
    _end(thread, ended)
    mirror.sync()


def _keep_up(mirror: Mirror, ended: threading.Event, every_s: float) -> None:
    took = 0.0
    while not ended.wait(max(every_s, IDLE_SHARE * took)):
        start = time.monotonic()
        _tried(mirror)
        took = time.monotonic() - start


def _tried(mirror: Mirror) -> None:
    try:
        mirror.sync()
    except FileNotFoundError:  # removed between listing and reading, as old models are
        pass
    except (TenfoldError, OSError) as error:
        _log.warning("the run cannot be copied to the bucket for now: %s", error)


def _end(thread: threading.Thread, ended: threading.Event) -> None:
    ended.set()
    thread.join()


def claim(folder: Path, place: BucketPath) -> None:
    """Make `folder` what the bucket has, where another worker wrote it last, and have the bucket follow it from now on.

    Raises StorageError or AccessError if the bucket cannot be used.
    """
    theirs = _owner(place)
    if theirs and theirs == _owner(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OWNER).unlink(missing_ok=True)
    there = _objects(place)
    if there:
        _log.info("fetching the files of the run that another worker wrote, from %s", place)
    for name in _files(folder).keys() - there.keys():  # a line of steps that the other worker did not go on from
        (folder / name).unlink()
    fetch(folder, place, tuple(there))
    sync_tree(folder)  # Else a power loss could keep the name of the owner, and tear what was fetched before it.
    token = uuid.uuid4().hex.encode()
    _write(place / OWNER, token)
    _write(folder / OWNER, token)


def fetch(folder: Path, place: BucketPath, names: tuple[str, ...]) -> None:
    """Fetch what lies below `place` and whose name starts with one of `names`, where `folder` has not the same.

    What is replaced meanwhile, as the record of a training that goes on, is looked for again. Raises FileNotFoundError
    where that happens again and again.
    """
    for tries_left in reversed(range(FETCH_TRIES)):
        try:
            _fetch_differing(folder, place, names)
            return
        except FileNotFoundError:
            if not tries_left:
                raise


def _fetch_differing(folder: Path, place: BucketPath, names: tuple[str, ...]) -> None:
    def fetch_one(entry: storage.Object) -> None:
        path = storage.file_of(folder, entry.key)
        if not _is_equal(path, entry.stat):
            with temporary_beside(path) as temporary:
                _download(place / entry.key, temporary)
                temporary.replace(path)

    wanted = (
        found
        for found in storage.objects(place)
        # Consoles make an empty object for a folder, with a slash at its end.
        if found.key.startswith(names) and found.key.rpartition("/")[2]
    )
    for _ in ordered_map(fetch_one, wanted, FETCHERS):
        pass


def _objects(place: BucketPath) -> dict[str, ObjectStat]:
    return {name: stat for name, stat in storage.objects(place) if _is_ours(name)}


def _files(folder: Path, before: str = "") -> dict[str, _Version]:
    """Return what is mirrored of a folder, by `before` and its name: all but locks and what is still being written.

    That has a dot before its name, or before that of its folder.
    """
    versions = {}
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        name = before + "/".join(parts)
        if _is_ours(name) and not any(part.startswith(".") for part in parts) and path.is_file():
            versions[name] = _version(path)
    return versions


def _is_ours(name: str) -> bool:
    return name not in _LOCAL and not name.startswith(_OF_OTHERS)


def _version(path: Path) -> _Version:
    stat = path.stat()
    return _Version(stat.st_size, stat.st_mtime_ns)


def _is_equal(path: Path, stat: ObjectStat) -> bool:
    return path.is_file() and path.stat().st_size == stat.st_size and crc32c_of(path) == stat.crc32c


def _owner(place: Place) -> bytes | None:
    return _content(place / OWNER)


def _content(place: Place) -> bytes | None:
    try:
        return place.read_bytes()
    except FileNotFoundError:
        return None


def _write(place: Place, content: bytes) -> None:
    with storage.write_whole(place) as file:
        file.write(content)


def _upload(path: Path, place: BucketPath) -> None:
    with open(path, "rb") as reader, storage.write_whole(place) as writer:
        shutil.copyfileobj(reader, writer, CHUNK_BYTES)


def _download(place: BucketPath, path: Path) -> None:
    with place.open("rb") as reader, open(path, "wb") as writer:
        shutil.copyfileobj(reader, writer, CHUNK_BYTES)
