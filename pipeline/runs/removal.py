"""Removes folders of a workspace. After a kill at any point, another removal of the same folder does the rest.

No reader finds half of what a folder promises. The file that makes a folder a dataset goes first. Of a training, the
checkpoints go first and `run.json` last. Until then, it is a complete training without checkpoints, and then a training
that stopped before its first checkpoint.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pipeline import storage
from pipeline.config.allowed import require_folder
from pipeline.dataset.manifest import COMMIT, PARALLEL_REQUESTS
from pipeline.dataset.partitions import LISTED
from pipeline.dataset.shard_cache import remove_copies
from pipeline.runs.files import BEST, EARLY_END, RESULT, RUN
from pipeline.runs.run import ABOUT, EXPORT
from pipeline.runs.unused import Kind, Stored
from pipeline.storage import BucketPath, Place
from pipeline.system.flock import locked, try_lock
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

_CHECKPOINTS = "checkpoints"
_PROMISES = (RESULT, EARLY_END, BEST, f"{EXPORT}/{ABOUT}")
"""Files of a training that say that others are there."""
_ORDER: Sequence[Kind] = ("copy of a run", "run", "window", "version")
"""What uses others is removed before them: a window before its versions. A copy goes while its run says that the bucket
has all of it."""
_MIN_BATCH = 16
_MAX_LOOKS = 64
"""A look at a large workspace may take minutes. If folders are removed fast, there are at most this many looks."""
_VALID_S = 60.0
_LOOK_SHARE = 9
"""If folders are removed slowly, the next look comes after a minute, or after this many times the time of a look."""
READ = "a training reads it"
CHANGED = "it changed after the list was made"


@dataclass
class Removal:
    """What became of the folders that nothing used."""

    removed: list[Stored] = field(default_factory=list)
    stayed: dict[Stored, str] = field(default_factory=dict)
    """The folders that were not removed, each with the reason."""


def remove_all(unused: Sequence[Stored], look: Callable[[], Mapping[Stored, str]]) -> Removal:
    """Remove folders, unless something uses them by now. Removing all of them may take hours.

    Args:
        unused: The folders.
        look: Looks at the workspace again, and returns what `reasons_to_keep` does. It is called before the first
            folder, and then before every few folders.

    Raises:
        SettingsError: A link in a folder leads to a place that the administrator does not allow.
    """
    ordered = sorted(unused, key=lambda each: _ORDER.index(each.kind) if each.kind in _ORDER else len(_ORDER))
    batch, removal = max(_MIN_BATCH, -(-len(ordered) // _MAX_LOOKS)), Removal()
    reasons: Mapping[Stored, str] = {}
    by_folder: Mapping[Place, str] = {}
    valid_until = 0.0
    with progress("remove", len(ordered), "folders", sum(each.size for each in ordered)) as advance:
        for number, each in enumerate(ordered):
            if number % batch == 0 or time.monotonic() > valid_until:
                start = time.monotonic()
                reasons = look()
                by_folder = {known.folder: why for known, why in reasons.items()}
                now = time.monotonic()
                valid_until = now + max(_VALID_S, _LOOK_SHARE * (now - start))
            if each.folder in by_folder:  # Otherwise, another program has removed it meanwhile.
                why = by_folder[each.folder] or ("" if each in reasons else CHANGED) or _remove_allowed(each)
                if why:
                    removal.stayed[each] = why
                else:
                    removal.removed.append(each)
            advance(1, each.size)
    return removal


def _remove_allowed(stored: Stored) -> str:
    """Remove a folder. Return why it, or a part of it, stays; empty if nothing of it does."""
    require_folder(stored.folder)
    with suppress(FileNotFoundError):  # Another program has removed it meanwhile.
        return _remove(stored.folder, stored.kind)
    return ""


def _remove(folder: Place, kind: Kind) -> str:
    match kind:
        case "copies of shards" if isinstance(folder, Path):
            remove_copies(folder)
            return READ if folder.exists() else ""
        case "decoded images" if isinstance(folder, Path):
            return "" if _remove_unless_locked(folder) else READ
        case "run" | "copy of a run":
            _remove_training(folder)
        case "version" | "window":
            _remove_file(folder / COMMIT)
            _remove_content(folder)
        case "plan":
            _remove_content(folder, but=LISTED)
        case _:
            _remove_content(folder)
    return ""


def _remove_training(folder: Place) -> None:
    _remove_content(folder / _CHECKPOINTS)
    for name in _PROMISES:
        _remove_file(folder / name)
    _remove_content(folder, but=RUN)
    _remove_content(folder)
    if isinstance(folder, Path):
        with suppress(OSError):  # The run has other trainings.
            folder.parent.rmdir()


def _remove_file(file: Place) -> None:
    """Remove a file, so that a power loss does not bring it back without the files that are removed after it."""
    if file.exists():
        file.unlink(missing_ok=True)
        storage.sync_folder(file.parent)


def _remove_content(folder: Place, but: str = "") -> None:
    """Remove a folder, except one file or folder in it."""
    if isinstance(folder, BucketPath):
        keys = (key for key, _ in storage.objects(folder) if key.partition("/")[0] != but)
        for _ in ordered_map(partial(_remove_object, folder), keys, PARALLEL_REQUESTS):
            pass
        return
    if not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        if path.name == but:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    storage.sync_folder(folder)  # A power loss must not bring a file back without those that are removed next.
    with suppress(OSError):  # It has what stays.
        folder.rmdir()


def _remove_object(folder: BucketPath, key: str) -> None:
    (folder / key).unlink(missing_ok=True)


def _remove_unless_locked(folder: Path) -> bool:
    """Remove decoded images, unless a training reads them. Return whether they were removed."""
    # A training makes its folder, and then locks it, under the lock of all folders.
    with locked(folder.parent / ".lock"), open(folder / ".lock", "wb") as lock:
        if is_locked := try_lock(lock.fileno()):
            shutil.rmtree(folder)
        return is_locked
