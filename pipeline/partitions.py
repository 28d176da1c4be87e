"""Which version each partition of a data set name holds, in a small file beside the versions.

    partitions/2026-01-31.json          a date, of a source with {date} in it
    partitions/2026-01-31T07:00.json    an hour or minute of one
    partitions/latest.json              a source without dates

A partition that is built again points to its new version; the old one stays where it is. Which of two versions is newer
is decided by when their source was listed: a commit of an old listing never takes a partition back. A person can.
"""

import json
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from pipeline import storage
from pipeline.allowed import require_allowed
from pipeline.config import Settings
from pipeline.dataset import ASKERS, is_committed
from pipeline.errors import ConflictError, DatasetError, SettingsError
from pipeline.parallel import ordered_map
from pipeline.storage import Place
from pipeline.workspace import name_folder, work_folder

LATEST = "latest"
_VERSION = re.compile("[0-9a-f]{16}")
_log = logging.getLogger(__name__)
_DATED = re.compile(r"(\d{4}-\d\d-\d\d(T\d\d:\d\d)?)\.json")


def partition_of(settings: Settings) -> str:
    """The name of the partition that these settings build: their data date, where the source has one."""
    return settings.data_date or LATEST


@dataclass(frozen=True)
class Partition:
    """The content of a partition's file."""

    partition: str
    version: str
    listed_ns: int
    """When the listing of the source began that moved the partition, in Unix nanoseconds; or when a person did."""


def save_listed(settings: Settings, version: str, listed_ns: int) -> None:
    """Keep when the source of these settings was found to hold a version: of each date, since several may hold one."""
    with storage.write_whole(_listed(settings, version)) as file:
        file.write(json.dumps({"listed_ns": listed_ns}).encode())


def last_listed(settings: Settings, version: str) -> int:
    """When the listing began that found the source of these settings to hold a version; 0 if that is not known."""
    content = _content(_listed(settings, version))
    return int(json.loads(content)["listed_ns"]) if content is not None else 0


def save_partition(folder: Place, made: Partition, last_listed: Callable[[str], int]) -> None:
    """Point a partition to its version, in the `folder` of the dataset name, unless it has one of a newer listing.

    Of several commits at once the newest listing wins, in whatever order they come. `last_listed` returns when the
    source was last found to hold a version, 0 if that is not known: a run that finds all complete writes nothing here.

    Raises DatasetError if the file of the partition is damaged.
    """
    path = _path(folder, made.partition)
    while True:
        before = _content(path)
        held = _parse(path, before) if before is not None else None
        if held and held.version == made.version:
            return
        if held and (listed_ns := max(held.listed_ns, last_listed(held.version))) >= made.listed_ns:
            _log.warning(_stays(replace(held, listed_ns=listed_ns), made))
            return
        with suppress(ConflictError):  # another commit was first: look at what it wrote
            _swap(path, before, made)
            return


def move_partition(settings: Settings, name: str, version: str) -> Place:
    """Point a partition to a version because a person says so; return its file. A later listing moves it again.

    Raises DatasetError if there is no such partition or version, ConflictError if the partition moved meanwhile,
    SettingsError if the administrator does not allow a place.
    """
    require_allowed(settings)
    folder = name_folder(settings)
    if name not in (LATEST, *_dated(folder)):
        raise SettingsError(f"partition must be one of {folder / 'partitions'}, such as 2026-01-31, got {name!r}")
    if not _VERSION.fullmatch(version) or not is_committed(folder / version):
        raise DatasetError(f"version {version!r} holds no dataset in {folder}: name the folder of a version there")
    path = _path(folder, name)
    _swap(path, _content(path), Partition(name, version, time.time_ns()))
    return path


def newest_partitions(settings: Settings, count: int) -> dict[str, str]:
    """The versions of the newest `count` partitions by their names, the newest first: dates, or else "latest".

    Empty where nothing was published. Raises DatasetError where the file of a partition is damaged, SettingsError where
    the administrator does not allow a place.
    """
    require_allowed(settings)
    folder = name_folder(settings)
    names = _dated(folder)[:count] or [LATEST]
    paths = [_path(folder, name) for name in names]
    contents = zip(names, paths, ordered_map(_content, paths, ASKERS), strict=True)
    return {name: _version(path, content) for name, path, content in contents if content is not None}


def _dated(folder: Place) -> list[str]:
    partitions = folder / "partitions"
    files = partitions.iterdir() if partitions.is_dir() else ()
    # Not "2026-01-31 (copy).json", nor anything else that a person put beside them.
    return sorted((match[1] for path in files if (match := _DATED.fullmatch(path.name))), reverse=True)


def _path(folder: Place, name: str) -> Place:
    return folder / "partitions" / f"{name}.json"


def _listed(settings: Settings, version: str) -> Place:
    return work_folder(settings, version) / "listed" / f"{partition_of(settings)}.json"


def _content(path: Place) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _swap(path: Place, before: bytes | None, after: Partition) -> None:
    storage.swap(path, before, json.dumps(asdict(after)).encode() + b"\n")


def _parse(path: Place, content: bytes) -> Partition:
    version = _version(path, content)
    try:
        listed_ns = json.loads(content).get("listed_ns")
        # A file of an earlier release does not say it: what was listed after the file was written is newer.
        return Partition(path.stem, version, path.stat().st_mtime_ns if listed_ns is None else int(listed_ns))
    except (ValueError, TypeError) as error:
        raise _damaged(path, error) from error


def _version(path: Place, content: bytes) -> str:
    try:
        return str(json.loads(content)["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Place, error: Exception) -> DatasetError:
    return DatasetError(f"{path} names no version ({error!r}): remove it, and build its partition again")


def _stays(held: Partition, made: Partition) -> str:
    return (
        f"partition {made.partition} stays at version {held.version}, of {_at(held.listed_ns)}: version {made.version} "
        f"comes from a listing of the source that is not newer, of {_at(made.listed_ns)}; to use it all the same, run "
        f"`python -m pipeline partition {made.partition} {made.version}` with the settings of this run"
    )


def _at(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
