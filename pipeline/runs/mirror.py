"""Mirrors a run whose workspace is a bucket: the run is in a local folder, and its changes are uploaded to the bucket.

A training appends to its record five times a second and renames checkpoints when they are complete. Both need a file
system. Closed segments of the record are uploaded once, and only the segment that grows is uploaded again
(pipeline/monitor/record.py). A retry on another worker fetches the folder first, and goes on from the last checkpoint.
`mirror.json`, in the folder and in the bucket, names the worker whose changes the bucket has: the one that came last.
"""

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pipeline import storage
from pipeline.config.allowed import require_output
from pipeline.errors import ConflictError, RunTakenOver, TenfoldError
from pipeline.monitor.open_metrics import METRICS
from pipeline.monitor.record import closed_name
from pipeline.rendezvous.servers import CLUSTER, SERVERS
from pipeline.runs.files import BEST, CHANGES, FAILURE, RESULT, RUN
from pipeline.storage import CHUNK_BYTES, BucketPath, ObjectStat, Place, crc32c_of
from pipeline.storage.local import sync_tree
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import ordered_map

EVERY_S = 10.0
"""Changes are uploaded every few seconds."""
IDLE_SHARE = 9
"""The pause is at least this many times the last upload, so that large models do not fill the link all the time."""
OWNER = "mirror.json"
_LOCAL = ("lock", FAILURE, OWNER, METRICS, CHANGES)
"""These files are about processes of this worker, and are not uploaded. The training writes its changes to the bucket
itself, because others do so, too: the local file is a copy."""
_LAST = (RUN, BEST, RESULT)
"""These files name others, or promise that all is there. They are uploaded after those, with the content that they had
before."""
_OF_OTHERS = (f"{SERVERS}/", f"{CLUSTER}/")
"""The other servers mirror the first folder themselves, and all servers use the second one in the bucket directly."""
_CHECKPOINTS, _MODELS = "checkpoints/", "model-"
_REPLACED = (_CHECKPOINTS, _MODELS)
"""A training removes these files when it has newer ones."""
SYNC_ATTEMPTS = 3
"""A training may remove a file between listing and reading. All are then listed again at once, this many times."""
FETCH_ATTEMPTS = 5
"""A training that goes on may replace a file between listing and reading. The whole list is then tried again."""
FETCHERS = 8
"""Files are fetched in this many threads, because a long record has hundreds of small segments."""
_log = logging.getLogger(__name__)


class _Version(NamedTuple):
    size: int
    mtime_ns: int


class Mirror:
    """Uploads the files of a folder to a bucket, with each call of `sync`."""

    def __init__(self, folder: Path, place: BucketPath) -> None:
        self._folder, self._place = folder, place
        self._owner = _owner(folder)
        self._there: dict[str, _Version | None] | None = None
        """For each file in the bucket, its local version; None if the two differ. None until the bucket is listed."""

    def sync(self) -> None:
        """Upload all files that are new or have changed, and remove those that were replaced.

        Raises:
            StorageError, AccessError: If the bucket cannot be used.
            RunTakenOver: If another worker has taken the run over.
            FileNotFoundError: If files were removed meanwhile in all of SYNC_ATTEMPTS attempts.
        """
        for attempt in range(SYNC_ATTEMPTS):
            try:
                # If uploads take longer than epochs, the newest checkpoint is gone after those of several models.
                self._sync_listed(only_newest_model=attempt > 0)
                return
            except FileNotFoundError:
                if attempt == SYNC_ATTEMPTS - 1:
                    raise

    def _sync_listed(self, only_newest_model: bool) -> None:
        there = self._known()
        # Before the checkpoints are listed: those of a training that is complete are its last ones.
        is_complete = (self._folder / RESULT).exists()
        # Files that are written last are read first: the files that they rely on were there before, and are found, too.
        checkpoints = _files(self._folder / _CHECKPOINTS, _CHECKPOINTS)
        names = _LAST if is_complete else [name for name in _LAST if name != RESULT]
        last = [(name, _version(path), path.read_bytes()) for name in names if (path := self._folder / name).exists()]
        files = {name: version for name, version in _files(self._folder).items() if not name.startswith(_CHECKPOINTS)}
        changed = [name for name in files if name not in _LAST and there.get(name) != files[name]]
        files |= checkpoints
        last = [(name, version, content) for name, version, content in last if there.get(name) != version]
        # The folder has a newer file instead of these, or the closed segment of the record.
        replaced = [
            name for name in there if name not in files and (name.startswith(_REPLACED) or closed_name(name) in files)
        ]
        has_newer = any(there.get(name) != version for name, version in checkpoints.items())
        if changed or last or has_newer or replaced:
            self._require_ours()
        models = sorted(name for name in files if name.startswith(_MODELS))
        self._bring_newest_first({name: files[name] for name in models[-1 if only_newest_model else 0 :]})
        for name in changed:
            if name not in models:
                self._bring(name, files[name])
        for name, version, content in last:
            if name == RESULT:  # Once it is there, another training may continue from the last checkpoint.
                self._bring_newest_first(checkpoints)
            self._replace(name, content)
            there[name] = version
        self._bring_newest_first(checkpoints)
        # After the uploads: at any time, the bucket has a checkpoint and the models that it needs.
        for name in replaced:
            (self._place / name).unlink(missing_ok=True)
            del there[name]

    def _bring_newest_first(self, files: Mapping[str, _Version]) -> None:
        """Upload new checkpoints or models. If the worker is killed meanwhile, the next one loses least.

        Older ones that were replaced meanwhile are left out. Raises FileNotFoundError if the newest one was replaced.
        """
        for name in sorted(files, reverse=True):
            if self._known().get(name) != files[name]:
                self._require_ours()  # Uploads may have taken minutes, and the next worker writes under the same names.
                try:
                    self._bring(name, files[name])
                except FileNotFoundError:
                    if name == max(files):
                        raise

    def _bring(self, name: str, version: _Version) -> None:
        _copy(self._folder / name, self._place / name)
        self._known()[name] = version

    def _replace(self, name: str, content: bytes) -> None:
        """Replace a file of the run, but only while this worker owns it: the file of a later worker stays."""
        place = self._place / name
        while True:
            before = unless_missing(place.read_bytes)
            # After the read: if another worker takes the run over later, its write makes `swap` fail.
            self._require_ours()
            with suppress(ConflictError):
                storage.swap(place, before, content)
                return

    def _known(self) -> dict[str, _Version | None]:
        if self._there is None:
            # Versions from before the comparison: a file that grows meanwhile differs from them, and is uploaded again.
            files = _files(self._folder)
            self._there = {
                name: files[name] if name in files and _is_equal(self._folder / name, stat) else None
                for name, stat in _objects(self._place).items()
            }
        return self._there

    def _require_ours(self) -> None:
        if _owner(self._place) != self._owner:
            raise RunTakenOver(f"another worker is writing {self._place} now: let it finish the run, or run again")


@contextmanager
def mirrored(
    folder: Path, place: Place, leave: Callable[[TenfoldError], None], every_s: float = EVERY_S
) -> Iterator[None]:
    """Upload changes in `folder` to `place` every few seconds, and the rest at the end. Do nothing for a local place.

    An outage during the block costs warnings. If another worker takes the run over, a thread calls `leave` with the
    error, because nothing of the block would be kept. If the bucket cannot be used at the end, it raises what
    `Mirror.sync` does, unless the block itself failed.
    """
    if isinstance(place, Path):
        yield
        return
    mirror, ended = Mirror(folder, place), threading.Event()
    thread = threading.Thread(target=_keep_up, args=(mirror, ended, leave, every_s), name="mirror", daemon=True)
    thread.start()
    try:
        yield
    # The error of the block is the one to report, so an outage of the bucket is only a warning here.
    except BaseException:
        _end(thread, ended)
        with suppress(RunTakenOver):
            _tried(mirror)
        raise
    _end(thread, ended)
    mirror.sync()


def _keep_up(mirror: Mirror, ended: threading.Event, leave: Callable[[TenfoldError], None], every_s: float) -> None:
    took = 0.0
    while not ended.wait(max(every_s, IDLE_SHARE * took)):
        start = time.monotonic()
        try:
            # A failed attempt may have waited for minutes, and the next one must not wait for nine times as long.
            took = time.monotonic() - start if _tried(mirror) else 0.0
        except RunTakenOver as error:
            leave(error)
            return


def _tried(mirror: Mirror) -> bool:
    """Return whether all changes are in the bucket. Raises RunTakenOver."""
    try:
        mirror.sync()
        return True
    except RunTakenOver:
        raise
    except (TenfoldError, OSError) as error:
        _log.warning("the run cannot be copied to the bucket for now: %s", error)
        return False


def _end(thread: threading.Thread, ended: threading.Event) -> None:
    ended.set()
    thread.join()


def claim(folder: Path, place: BucketPath) -> None:
    """Take a run over: make `folder` equal to the bucket if another worker wrote there last, and become the owner.

    Raises:
        StorageError, AccessError: If the bucket cannot be used.
    """
    theirs = _owner(place)
    if theirs and theirs == _owner(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    # Until all is fetched, the folder has no owner: after a kill, the next call fetches it again.
    (folder / OWNER).unlink(missing_ok=True)
    there = _objects(place)
    if there:
        _log.info("fetching the files of the run that another worker wrote, from %s", place)
    # Files of steps that the other worker did not go on from.
    for name in _files(folder).keys() - there.keys():
        (folder / name).unlink()
    fetch(folder, place, tuple(there))
    sync_tree(folder)  # Otherwise, a power loss could keep the owner's name, and tear files that were fetched before.
    token = uuid.uuid4().hex.encode()
    _write(place / OWNER, token)
    _write(folder / OWNER, token)


def fetch(folder: Path, place: BucketPath, names: tuple[str, ...], max_bytes: int | None = None) -> None:
    """Fetch the files below `place` whose names start with one of `names`, unless `folder` has the same content.

    If a file is replaced meanwhile, such as the record of a training that goes on, all are listed again.

    Raises:
        SettingsError: If the administrator does not allow `place`.
        FileNotFoundError: If that happens in all of FETCH_ATTEMPTS attempts.
        SizeError: If a file has more than `max_bytes`.
    """
    require_output(place)
    for attempts_left in reversed(range(FETCH_ATTEMPTS)):
        try:
            _fetch_differing(folder, place, names, max_bytes)
            return
        except FileNotFoundError:
            if not attempts_left:
                raise


def _fetch_differing(folder: Path, place: BucketPath, names: tuple[str, ...], max_bytes: int | None) -> None:
    def fetch_one(entry: storage.Object) -> None:
        path = storage.file_of(folder, entry.key)
        if max_bytes is not None:
            storage.require_size(place / entry.key, entry.stat.st_size, max_bytes)
        if not _is_equal(path, entry.stat):
            _copy(place / entry.key, path)

    wanted = (
        found
        for found in storage.objects(place)
        # Web consoles create an empty object with a slash at its end for a folder.
        if found.key.startswith(names) and found.key.rpartition("/")[2]
    )
    for _ in ordered_map(fetch_one, wanted, FETCHERS):
        pass


def _objects(place: BucketPath) -> dict[str, ObjectStat]:
    return {name: stat for name, stat in storage.objects(place) if _is_ours(name)}


def _files(folder: Path, before: str = "") -> dict[str, _Version]:
    """Return the mirrored files of a folder, by `before` and their names: all but locks and unfinished files.

    The name of an unfinished file, or of its folder, starts with a dot.
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
    return unless_missing((place / OWNER).read_bytes)


def _write(place: Place, content: bytes) -> None:
    with storage.write_whole(place) as file:
        file.write(content)


def _copy(source: Place, target: Place) -> None:
    with source.open("rb") as reader, storage.write_whole(target) as writer:
        shutil.copyfileobj(reader, writer, CHUNK_BYTES)
