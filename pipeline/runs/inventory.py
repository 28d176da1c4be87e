"""What a workspace has: the folders that a person might remove, with their sizes and what they use.

The copies on this machine (`local_folder`) belong to it. Links are followed, because what is behind them may use other
folders. Whatever may belong to another program, or cannot be understood, gets a reason to stay.
"""

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipeline import storage
from pipeline.config.allowed import require_allowed, require_folder, require_output, require_outputs
from pipeline.config.settings import Settings
from pipeline.config.workspace import RANGES, champion_folder, place_hash
from pipeline.dataset.manifest import COMMIT, PARALLEL_REQUESTS
from pipeline.dataset.partitions import LISTED, load_partition, partition_names
from pipeline.errors import DatasetError, FormatError, PromotionError, SizeError
from pipeline.runs.champion import effective_promotions, pointer_of
from pipeline.runs.decision import decision_in
from pipeline.runs.files import PROMOTION, RESULT, RUN, read_optional
from pipeline.runs.unused import FOREIGN, LINK, LISTINGS, UNREADABLE, Contents, Kind, Promoted, Stored
from pipeline.storage import BucketPath, Place, place_of
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

_ID = re.compile("[0-9a-f]{16}")
"""The name of the folder of a version or of a window."""
_TRAINING = re.compile("[0-9a-f]{12}")
_PLAN = re.compile("([0-9a-f]{16})-[0-9a-f]{8}")
_DIVISION = re.compile("[0-9]+-[0-9a-f]{8}")
_Item = TypeVar("_Item")
_log = logging.getLogger(__name__)
_CHECKPOINTS = "checkpoints/"
_LISTED = f"{LISTED}/"
_OF_VERSION = re.compile(
    r"(index/)?[^/]+\.(tfrecord|tfrecord\.gz|idx|tmp|lock|labels\.txt)|shards-[^/]+\.jsonl|content_hashes\.bin|card\.html|features\.json"
    r"|dataset_info\.json|(rejected|duplicates|skipped)\.jsonl"
)
"""The files of a version that has no `dataset.json` yet, or no longer. A folder with another file stays."""
_OF_IMAGES = re.compile(r"(containers|unfinished)/.*|[0-9a-f]{2}/[^/]+", re.DOTALL)
"""The files of `workspace/raw`. The workspace may be a folder in which another program has a folder of this name."""
_TOLD = frozenset({COMMIT, RUN, RESULT, PROMOTION})
"""These files of a folder say what it is."""


class _Found(NamedTuple):
    kind: Kind
    folder: Place
    name: str = ""


class _File(NamedTuple):
    name: str
    """Relative to the folder that was listed."""
    size: int
    changed_s: float


@dataclass
class _Facts:
    """What is known of the files of a folder. It may have millions, so their names are not kept."""

    count: int = 0
    size: int = 0
    changed_s: float = 0.0
    told: set[str] = field(default_factory=set)
    """Those of `_TOLD` that are there."""
    has_checkpoint: bool = False
    has_listings_only: bool = True
    is_of_version: bool = True
    """Whether a build of a version writes such files and no others."""
    is_of_images: bool = True
    """Whether copies of images have such names."""

    def add(self, file: _File) -> None:
        """Add a file."""
        self.count += 1
        self.size += file.size
        self.changed_s = max(self.changed_s, file.changed_s)
        self.told |= _TOLD & {file.name}
        self.has_checkpoint |= file.name.startswith(_CHECKPOINTS)
        self.has_listings_only &= file.name.startswith(_LISTED)
        self.is_of_version &= bool(_OF_VERSION.fullmatch(file.name))
        self.is_of_images &= bool(_OF_IMAGES.fullmatch(file.name))


def contents_of(settings: Settings) -> Contents:
    """Return what the workspace of the settings has, with its published datasets and its copies on this machine.

    Raises:
        SettingsError: The administrator does not allow a folder, or a link in it.
        DatasetError, PromotionError, FormatError: A date or a champion cannot be read, so nobody knows what it uses. If
            the settings have a dataset name, those of other names only cost a warning.
    """
    require_allowed(settings)
    workspace, datasets = place_of(settings.workspace), settings.datasets_folder
    local = Path(settings.local_folder)
    # Another user of the workspace may have made a link in place of a folder.
    require_outputs([datasets, *(workspace / name for name in ("work", "runs", "raw", "models"))])
    names = _names(workspace, datasets)
    found = [each for name in names for each in _of_name(settings, name)]
    found += [_Found("run", folder) for run in _folders(workspace / "runs") for folder in _matching(run, _TRAINING)]
    found += [_Found("images", workspace / "raw")] * (workspace / "raw").is_dir()
    found += _of_this_machine(settings)
    roots = {workspace, datasets, local, workspace / "work", workspace / "runs", local / "runs"}
    with progress("look at", 0, "files") as advance:
        stored = []
        for each, count in ordered_map(partial(_stored, roots=roots), found, PARALLEL_REQUESTS):
            stored.append(each)
            advance(count)
    return Contents(
        stored=stored,
        current=frozenset(
            version
            for name in names
            for version in _unless_other(settings, name, partial(_versions_of_dates, datasets / name))
        ),
        promoted={
            folder.name: _unless_other(settings, folder.name, partial(_promoted, workspace, folder.name))
            for folder in _folders(workspace / "models")
        },
    )


def _unless_other(settings: Settings, name: str, read: Callable[[], list[_Item]]) -> list[_Item]:
    """Return what `read` does; nothing if it fails for another dataset name than that of the settings."""
    try:
        return read()
    except (DatasetError, PromotionError, FormatError) as error:
        if settings.dataset_name in ("", name):
            raise
        _log.warning(
            "what the dataset name %s uses is unknown, so only %s is cleaned: %s", name, settings.dataset_name, error
        )
        return []


def _names(workspace: Place, datasets: Place) -> list[str]:
    """Return the dataset names. Another folder beside the published datasets may belong to another program."""
    require_outputs(folder := _folders(datasets))
    published = {each.name for each in folder if any((each / own).is_dir() for own in ("partitions", "labels"))}
    return sorted(published | {each.name for each in _folders(workspace / "work")})


def _of_name(settings: Settings, name: str) -> Iterator[_Found]:
    folder, work = settings.datasets_folder / name, place_of(settings.workspace) / "work" / name
    require_outputs([folder, work, folder / "windows", work / "snapshots" / RANGES])
    yield from (_Found("version", each, name) for each in _matching(folder, _ID))
    yield from (_Found("window", each, name) for each in _matching(folder / "windows", _ID))
    yield from (_Found("plan", each, name) for each in _matching(work, _PLAN))
    yield from (_Found("division", each, name) for each in _matching(work / "snapshots" / RANGES, _DIVISION))


def _of_this_machine(settings: Settings) -> Iterator[_Found]:
    local = Path(settings.local_folder)
    yield from (_Found("copies of shards", each) for each in _matching(local / "shards", _ID))
    yield from (_Found("decoded images", each) for each in _matching(local / "decoded", _ID))
    # If the workspace is no bucket, the runs are in the workspace itself.
    for run in _folders(local / "runs" / place_hash(settings.workspace)):
        yield from (_Found("copy of a run", each) for each in _matching(run, _TRAINING))


def _folders(place: Place) -> list[Place]:
    """Return the folders in a place, and links to folders; none if the place is missing.

    Raises DatasetError if a link leads nowhere: nobody knows what its target uses.
    """
    found = unless_missing(lambda: list(storage.folders(place))) or []
    if isinstance(place, Path):
        entries = unless_missing(lambda: list(os.scandir(place))) or []
        for link in (place, *(Path(each) for each in entries if each.is_symlink())):
            if link.is_symlink() and not link.exists():
                raise DatasetError(f"{link} is a link to a missing place: bring the place back, or remove the link")
    return sorted(found, key=str)


def _matching(place: Place, pattern: re.Pattern[str]) -> list[Place]:
    return [each for each in _folders(place) if pattern.fullmatch(each.name)]


def _is_linked(folder: Place, roots: Collection[Place]) -> bool:
    """Whether a folder, or a folder above it and below the roots, is a link."""
    above = folder
    while isinstance(above, Path) and above not in roots and above != above.parent:
        if above.is_symlink():
            return True
        above = above.parent
    return False


def _stored(found: _Found, roots: Collection[Place]) -> tuple[Stored, int]:
    """Return what a folder has, and the number of its files."""
    is_linked = _is_linked(found.folder, roots)
    if is_linked:
        require_folder(found.folder)
    facts = _Facts()
    for file in _files(found.folder):
        facts.add(file)
    stored = Stored(
        kind=found.kind,
        folder=found.folder,
        size=facts.size,
        changed_s=facts.changed_s if facts.count else _changed_s(found.folder),
        name=found.name,
        version=found.folder.name,
        is_complete=COMMIT in facts.told,
    )
    match found.kind:
        case "run" | "copy of a run":
            stored = _training(stored, facts)
        case "window":
            stored = replace(stored, parts=_parts(found.folder) if stored.is_complete else frozenset())
        case "plan":
            stored = replace(stored, version=found.folder.name.partition("-")[0])
            if facts.count and facts.has_listings_only:
                stored = replace(stored, stays=LISTINGS)
        case "images" if not facts.is_of_images:
            stored = replace(stored, stays=FOREIGN)
    if found.kind in ("version", "window") and not (stored.is_complete or facts.is_of_version):
        stored = replace(stored, stays=FOREIGN)
    return (replace(stored, stays=LINK) if is_linked else stored), facts.count


def _training(stored: Stored, facts: _Facts) -> Stored:
    is_complete = RESULT in facts.told
    stored = replace(stored, version="", is_complete=is_complete, can_continue=facts.has_checkpoint and not is_complete)
    if RUN not in facts.told:  # Its removal removes this file last.
        return replace(stored, can_continue=False, stays=FOREIGN)
    try:
        run = _object_in(stored.folder / RUN)
        settings = run.get("settings")
        settings = settings if isinstance(settings, dict) else {}
        decision = decision_in(_object_in(stored.folder / PROMOTION)) if PROMOTION in facts.told else None
    except (ValueError, SizeError):
        return replace(stored, stays=UNREADABLE)
    return replace(
        stored,
        name=str(settings.get("dataset_name", "")),
        version=str(run.get("dataset_version", "")),
        continues="/".join(str(settings.get("continues", "")).rstrip("/").split("/")[-2:]),
        is_asked=decision is not None and decision.outcome == "asked",
    )


def _object_in(file: Place) -> Mapping[str, Any]:
    """Return the JSON object in a file, which another program may have removed meanwhile.

    Raises ValueError or SizeError if it is damaged, and OSError if it cannot be read.
    """
    require_output(file)
    content = read_optional(file)
    if content is not None and not isinstance(content, dict):
        raise ValueError(f"{file} is not a JSON object")
    return content or {}


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
    require_folder(folder / "partitions")
    _folders(folder / "partitions")  # A link to a missing place must not look like a name without dates.
    if not (folder / "partitions").is_dir():
        return []
    loaded = ordered_map(partial(load_partition, folder), partition_names(folder), PARALLEL_REQUESTS)
    return [each.version for each in loaded if each]


def _promoted(workspace: Place, name: str) -> list[Promoted]:
    require_folder(champion_folder(workspace, name))
    standing = effective_promotions(pointer_of(workspace, name).history)
    return [Promoted("/".join(each.run.rstrip("/").split("/")[-2:]), each.dataset_version) for each in standing]
