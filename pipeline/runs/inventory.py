"""What a workspace has: the folders that a person might remove, with their sizes and what they use.

The copies on this machine (`local_folder`) belong to it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import storage
from pipeline.config.allowed import require_allowed, require_folder, require_outputs
from pipeline.config.settings import Settings
from pipeline.config.workspace import RANGES, champion_folder, place_hash
from pipeline.dataset.manifest import COMMIT, PARALLEL_REQUESTS
from pipeline.dataset.partitions import load_partition, partition_names
from pipeline.errors import SizeError
from pipeline.runs.champion import effective_promotions, pointer_of
from pipeline.runs.files import RESULT, RUN, read_or_empty
from pipeline.runs.unused import Contents, Kind, Promoted, Stored
from pipeline.storage import BucketPath, Place, place_of
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

_ID = re.compile("[0-9a-f]{16}")
"""The name of the folder of a version or of a window."""
_TRAINING = re.compile("[0-9a-f]{12}")
_PLAN = re.compile("([0-9a-f]{16})-[0-9a-f]{8}")
_DIVISION = re.compile("[0-9]+-[0-9a-f]{8}")
_CHECKPOINTS = "checkpoints/"


class _Found(NamedTuple):
    kind: Kind
    folder: Place
    name: str = ""


class _File(NamedTuple):
    name: str
    """Relative to the folder that was listed."""
    size: int
    changed_s: float


def contents_of(settings: Settings) -> Contents:
    """Return what the workspace of the settings has, with its published datasets and its copies on this machine.

    Raises:
        SettingsError: The administrator does not allow a folder, or a link in it.
        DatasetError, PromotionError, FormatError: A date or a champion cannot be read, so nobody knows what it uses.
    """
    require_allowed(settings)
    workspace, datasets = place_of(settings.workspace), settings.datasets_folder
    # Another user of the workspace may have made a link in place of a folder.
    require_outputs([datasets, *(workspace / name for name in ("work", "runs", "raw"))])
    names = sorted({folder.name for place in (datasets, workspace / "work") for folder in _folders(place)})
    found = [each for name in names for each in _of_name(settings, name)]
    found += [_Found("run", folder) for run in _folders(workspace / "runs") for folder in _matching(run, _TRAINING)]
    found += [_Found("images", workspace / "raw")] * (workspace / "raw").is_dir()
    found += _of_this_machine(settings)
    with progress("look at", len(found), "folders") as advance:
        stored = []
        for each in ordered_map(_stored, found, PARALLEL_REQUESTS):
            stored.append(each)
            advance(1)
    return Contents(
        stored=stored,
        current=frozenset(version for name in names for version in _versions_of_dates(datasets / name)),
        promoted={name: _promoted(workspace, name) for name in _names_of_models(workspace)},
    )


def _of_name(settings: Settings, name: str) -> Iterator[_Found]:
    folder, work = settings.datasets_folder / name, place_of(settings.workspace) / "work" / name
    require_outputs([folder / "windows", work / "snapshots" / RANGES])
    yield from (_Found("version", each, name) for each in _matching(folder, _ID))
    yield from (_Found("window", each, name) for each in _matching(folder / "windows", _ID))
    yield from (_Found("plan", each, name) for each in _matching(work, _PLAN))
    yield from (_Found("division", each, name) for each in _matching(work / "snapshots" / RANGES, _DIVISION))


def _of_this_machine(settings: Settings) -> Iterator[_Found]:
    local = Path(settings.local_folder)
    yield from (_Found("copies of shards", each) for each in _matching(local / "shards", _ID))
    yield from (_Found("decoded images", each) for each in _folders(local / "decoded"))
    # If the workspace is no bucket, the runs are in the workspace itself.
    for run in _folders(local / "runs" / place_hash(settings.workspace)):
        yield from (_Found("copy of a run", each) for each in _matching(run, _TRAINING))


def _folders(place: Place) -> list[Place]:
    """Return the folders in a place; none if it is missing. Links are left out: their files belong elsewhere."""
    found = unless_missing(lambda: list(storage.folders(place))) or []
    return sorted((each for each in found if not (isinstance(each, Path) and each.is_symlink())), key=str)


def _matching(place: Place, pattern: re.Pattern[str]) -> list[Place]:
    return [each for each in _folders(place) if pattern.fullmatch(each.name)]


def _stored(found: _Found) -> Stored:
    files = list(_files(found.folder))
    names = {file.name for file in files}
    stored = Stored(
        kind=found.kind,
        folder=found.folder,
        size=sum(file.size for file in files),
        changed_s=max((file.changed_s for file in files), default=_changed_s(found.folder)),
        name=found.name,
        version=found.folder.name,
        is_complete=COMMIT in names,
    )
    match found.kind:
        case "run" | "copy of a run":
            return _training(stored, names)
        case "window":
            return replace(stored, parts=_parts(found.folder) if stored.is_complete else frozenset())
        case "plan":
            return replace(stored, version=found.folder.name.partition("-")[0])
        case _:
            return stored


def _training(stored: Stored, names: set[str]) -> Stored:
    # Without its `run.json`, nothing can continue a training: its removal was interrupted.
    run = read_or_empty(stored.folder / RUN) if RUN in names else {}
    is_complete = RESULT in names or not run
    has_checkpoint = any(name.startswith(_CHECKPOINTS) for name in names)
    return replace(
        stored,
        name=str((run.get("settings") or {}).get("dataset_name", "")),
        version=str(run.get("dataset_version", "")),
        is_complete=is_complete,
        can_continue=has_checkpoint and not is_complete,
    )


def _parts(window: Place) -> frozenset[str]:
    """Return the versions of a window. A window that cannot be read has none, because nothing can use it."""
    try:
        content: Mapping[str, Any] = storage.read_json(window / COMMIT)
        return frozenset(map(str, content["window"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, SizeError, FileNotFoundError):
        return frozenset()


def _files(folder: Place) -> Iterator[_File]:
    """Yield all files below a folder, links as they are."""
    if isinstance(folder, BucketPath):
        for key, stat in storage.objects(folder):
            yield _File(key, stat.st_size, stat.st_mtime_ns / 1e9)
        return
    for parent, _, names in os.walk(folder):
        for path in (Path(parent) / name for name in names):
            if facts := unless_missing(path.lstat):  # A program that runs now may have removed it.
                yield _File(path.relative_to(folder).as_posix(), facts.st_size, facts.st_mtime)


def _changed_s(folder: Place) -> float:
    """Return when an empty folder was changed, in Unix seconds. A bucket has no empty folders."""
    if isinstance(folder, BucketPath):
        return 0.0
    stat = unless_missing(folder.stat)
    return stat.st_mtime if stat else 0.0


def _versions_of_dates(folder: Place) -> list[str]:
    """Return the versions to which the dates of a dataset name point, withdrawn ones too."""
    if not (folder / "partitions").is_dir():
        return []
    loaded = ordered_map(partial(load_partition, folder), partition_names(folder), PARALLEL_REQUESTS)
    return [each.version for each in loaded if each]


def _names_of_models(workspace: Place) -> list[str]:
    return [folder.name for folder in _folders(workspace / "models")]


def _promoted(workspace: Place, name: str) -> list[Promoted]:
    require_folder(champion_folder(workspace, name))
    standing = effective_promotions(pointer_of(workspace, name).history)
    return [Promoted("/".join(each.run.rstrip("/").split("/")[-2:]), each.dataset_version) for each in standing]
