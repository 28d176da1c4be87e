"""Removes folders of a workspace. After a kill at any point, another removal of the same folder does the rest.

The file that makes a folder a dataset or a training goes first, so that no reader finds half of either.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from pipeline import storage
from pipeline.config.allowed import require_folder
from pipeline.dataset.manifest import COMMIT, PARALLEL_REQUESTS
from pipeline.dataset.shard_cache import remove_copies
from pipeline.runs.files import RUN
from pipeline.runs.unused import Kind, Stored
from pipeline.storage import BucketPath
from pipeline.system.flock import try_lock
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

_FIRST: Mapping[Kind, str] = {"version": COMMIT, "window": COMMIT, "run": RUN, "copy of a run": RUN}
"""The file of a folder that is removed before all others."""
_ORDER: Sequence[Kind] = ("copy of a run", "run", "window", "version")
"""What uses others is removed before them: a window before its versions. A copy goes while its run says that the bucket
has all of it."""


def remove_all(unused: Sequence[Stored]) -> None:
    """Remove folders that nothing uses.

    Raises:
        SettingsError: A link in a folder leads to a place that the administrator does not allow.
    """
    ordered = sorted(unused, key=lambda each: _ORDER.index(each.kind) if each.kind in _ORDER else len(_ORDER))
    with progress("remove", len(ordered), "folders", sum(each.size for each in ordered)) as advance:
        for each in ordered:
            require_folder(each.folder)
            _remove(each)
            advance(1, each.size)


def _remove(stored: Stored) -> None:
    first = _FIRST.get(stored.kind)
    if first:
        (stored.folder / first).unlink(missing_ok=True)
    if isinstance(stored.folder, Path):
        with suppress(FileNotFoundError):  # Another program has removed it meanwhile.
            _remove_local(stored.folder, stored.kind)
    else:
        keys = (key for key, _ in storage.objects(stored.folder))
        for _ in ordered_map(partial(_remove_object, stored.folder), keys, PARALLEL_REQUESTS):
            pass


def _remove_local(folder: Path, kind: Kind) -> None:
    if kind == "copies of shards":
        remove_copies(folder)
    elif kind == "decoded images":
        _remove_unless_locked(folder)
    else:
        if kind in _FIRST:
            storage.sync_folder(folder)  # A power loss must not bring the first file back without the others.
        shutil.rmtree(folder)
    if kind in ("run", "copy of a run"):
        with suppress(OSError):  # The run has other trainings.
            folder.parent.rmdir()


def _remove_object(folder: BucketPath, key: str) -> None:
    (folder / key).unlink(missing_ok=True)


def _remove_unless_locked(folder: Path) -> None:
    """Remove decoded images, unless a training reads them."""
    with open(folder / ".lock", "wb") as lock:
        if try_lock(lock.fileno()):
            shutil.rmtree(folder)
