"""Which version each partition of a data set name holds, in a small file beside the versions.

    partitions/2026-01-31.json          a date, of a source with {date} in it
    partitions/2026-01-31T07:00.json    an hour or minute of one
    partitions/latest.json              a source without dates

A partition that is built again points to its new version; the old one stays where it is.
"""

import json
import re

from pipeline import storage
from pipeline.allowed import require_allowed
from pipeline.config import Settings
from pipeline.dataset import ASKERS
from pipeline.errors import DatasetError
from pipeline.parallel import ordered_map
from pipeline.storage import Place
from pipeline.workspace import name_folder

LATEST = "latest"
_DATED = re.compile(r"(\d{4}-\d\d-\d\d(T\d\d:\d\d)?)\.json")


def partition_of(settings: Settings) -> str:
    """The name of the partition that these settings build: their data date, where the source has one."""
    return settings.data_date or LATEST


def save_partition(folder: Place, name: str, version: str) -> None:
    """Point a partition to its version, in the `folder` of the data set name; the last one to come wins."""
    path = _path(folder, name)
    content = json.dumps({"partition": name, "version": version}).encode() + b"\n"
    if _content(path) != content:  # a backfill that finds all complete writes nothing
        with storage.write_whole(path) as file:
            file.write(content)
        storage.sync(path)


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


def _content(path: Place) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _version(path: Place, content: bytes) -> str:
    try:
        return str(json.loads(content)["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path} names no version ({error!r}): remove it, and build its partition again") from error
