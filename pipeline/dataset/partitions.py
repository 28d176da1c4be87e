"""Which version each partition of a dataset name holds, in a small file beside the versions.

    partitions/2026-01-31.json          a date, of a source with {date} in it
    partitions/2026-01-31T07:00.json    an hour or minute of one
    partitions/latest.json              a source without dates

A partition that is built again points to its new version, and the old version stays. The newer of two versions is the
one whose source was listed later. A commit of an older listing never moves a partition back. A person can move it, or
withdraw it from the windows until its source has another version.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from pipeline import storage
from pipeline.dataset.manifest import PARALLEL_REQUESTS, is_committed
from pipeline.errors import ConflictError, DatasetError, FormatError, SettingsError, require_format
from pipeline.storage import Place
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import ordered_map
from pipeline.system.wording import first_of

LATEST = "latest"
"""The partition of a source without dates."""
PARTITION_FORMAT = 1
_SHOWN = 10
"""An error message shows at most this many partitions."""
_VERSION = re.compile("[0-9a-f]{16}")
_log = logging.getLogger(__name__)
_DATED = re.compile(r"(\d{4}-\d\d-\d\d(T\d\d:\d\d)?)\.json")


@dataclass(frozen=True)
class Partition:
    """The content of a partition's file."""

    partition: str
    version: str
    listed_ns: int
    """When the listing of the source began, or when a person moved the partition, in Unix nanoseconds."""
    withdrawn: bool = False
    """Whether a person withdrew this version. Windows then leave the partition out."""


def save_listed(work: Place, partition: str, listed_ns: int) -> None:
    """Store when the source of a partition was last found to hold the version with the folder `work`."""
    # An old snapshot can be planned again. It must not hide a newer listing that found the same version.
    newest = max(listed_ns, last_listed(work, partition))
    storage.write_json(_listed(work, partition), {"listed_ns": newest}, synced=True)


def last_listed(work: Place, partition: str) -> int:
    """Return when the newest listing began that found this version in the source of a partition; 0 if unknown."""
    content = _content(_listed(work, partition))
    try:
        return int(json.loads(content)["listed_ns"]) if content is not None else 0
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("%s is damaged (%r) and is written again", _listed(work, partition), error)
        return 0


def save_partition(folder: Place, made: Partition, last_listed: Callable[[str], int]) -> None:
    """Point a partition to a version, unless it already points to a version of a newer listing.

    If several commits run at once, the newest listing wins, in whatever order they write. A run that finds its version
    complete writes nothing here, so `last_listed` says when its source was listed. A withdrawn version therefore stays
    withdrawn. A file of another version of Tenfold is replaced, because this version cannot read its dataset.

    Args:
        folder: The folder of the dataset name.
        made: The partition and its version.
        last_listed: Returns when the source was last found to hold a version; 0 if unknown.

    Raises:
        DatasetError: The file of the partition is damaged.
    """
    path = _path(folder, made.partition)
    while True:
        before = _content(path)
        try:
            held = _parse(path, before) if before is not None else None
        except FormatError as error:
            _log.info("partition %s moves to version %s: %s", made.partition, made.version, error)
            held = None
        if held and held.version == made.version:
            if held.withdrawn:
                _log.warning(_stays_withdrawn(held))
            return
        if held and (listed_ns := max(held.listed_ns, last_listed(held.version))) >= made.listed_ns:
            _log.warning(_stays(replace(held, listed_ns=listed_ns), made))
            return
        # Another commit has changed the file first: the loop reads what it wrote.
        with suppress(ConflictError):
            _swap(path, before, made)
            return


def move_partition(folder: Place, name: str, version: str) -> Place:
    """Point a partition to the version that a person chose, and return its file. A later listing moves it again.

    `folder` is the folder of the dataset name, as `allowed_name_folder` returns it. Raises SettingsError if there is no
    such partition, DatasetError if there is no such version, and ConflictError if another process moved the partition
    at the same time.
    """
    _require_partition(folder, name)
    if not _VERSION.fullmatch(version) or not is_committed(folder / version):
        raise DatasetError(
            f"version {version!r} is not a committed dataset in {folder}: give the name of a version's folder there"
        )
    path = _path(folder, name)
    _swap(path, _content(path), Partition(name, version, time.time_ns()))
    return path


def withdraw_partition(folder: Place, name: str) -> Partition:
    """Take a partition out of all later windows, and return it. Its version stays as it is.

    A run that finds the same version does not bring it back. A new version does, and so does `move_partition`.
    `folder` is the folder of the dataset name. Raises SettingsError if there is no such partition, DatasetError if its
    file is damaged, and ConflictError if another process moved it at the same time.
    """
    _require_partition(folder, name)
    path = _path(folder, name)
    content = path.read_bytes()
    withdrawn = replace(_parse(path, content), listed_ns=time.time_ns(), withdrawn=True)
    _swap(path, content, withdrawn)
    return withdrawn


def _require_partition(folder: Place, name: str) -> None:
    """Raise SettingsError if a folder has no partition of this name."""
    known = [*_dated(folder), *([LATEST] if _path(folder, LATEST).exists() else [])]
    if name not in known:
        shown = first_of(known, _SHOWN) or "no partitions"
        raise SettingsError(f"{folder} has no partition {name!r}. It has {shown}: name one of them")


def newest_partitions(folder: Place, count: int) -> dict[str, str]:
    """Return the versions of the newest `count` partitions by their names, the newest first: dates, or else "latest".

    Withdrawn partitions are left out: older ones take their places. The result is empty if nothing was published.
    `folder` is the folder of the dataset name. Raises DatasetError if the file of a partition is damaged.
    """
    names = _dated(folder) or [LATEST]
    newest: dict[str, str] = {}
    while names and len(newest) < count:
        missing = count - len(newest)
        newest |= {name: held.version for name, held in _read(folder, names[:missing]) if not held.withdrawn}
        names = names[missing:]
    return newest


def _read(folder: Place, names: Sequence[str]) -> Iterator[tuple[str, Partition]]:
    """Yield partitions by their names, without those that were removed meanwhile."""
    paths = [_path(folder, name) for name in names]
    for name, path, content in zip(names, paths, ordered_map(_content, paths, PARALLEL_REQUESTS), strict=True):
        if content is not None:
            yield name, _parse(path, content)


def _dated(folder: Place) -> list[str]:
    partitions = folder / "partitions"
    files = partitions.iterdir() if partitions.is_dir() else ()
    # Other files that a person put there, such as "2026-01-31 (copy).json", do not match.
    return sorted((match[1] for path in files if (match := _DATED.fullmatch(path.name))), reverse=True)


def _path(folder: Place, name: str) -> Place:
    return folder / "partitions" / f"{name}.json"


def _listed(work: Place, partition: str) -> Place:
    return work / "listed" / f"{partition}.json"


def _content(path: Place) -> bytes | None:
    return unless_missing(path.read_bytes)


def _swap(path: Place, before: bytes | None, after: Partition) -> None:
    content = {"format": PARTITION_FORMAT, **asdict(after)}
    storage.swap(path, before, json.dumps(content).encode() + b"\n")


def _parse(path: Place, content: bytes) -> Partition:
    mend = "build its partition again"
    try:
        fields = json.loads(content)
        require_format(fields.pop("format", None), PARTITION_FORMAT, path, mend)
        partition = Partition(**fields)
        if not _VERSION.fullmatch(partition.version):  # It becomes part of a path.
            raise ValueError(f"Tenfold never gives the version {partition.version!r}")
        return partition
    except (ValueError, AttributeError, TypeError) as error:
        raise DatasetError(f"{path} does not name a version ({error!r}): remove the file and {mend}") from error


def _stays(held: Partition, made: Partition) -> str:
    return (
        f"partition {made.partition} stays at version {held.version}, because the source of that version was listed at "
        f"{_at(held.listed_ns)}, and the source of version {made.version} not later, at {_at(made.listed_ns)}. To use "
        f"version {made.version} anyway, run `python -m pipeline partition {made.partition} {made.version}` with the "
        "settings of this run"
    )


def _stays_withdrawn(held: Partition) -> str:
    return (
        f"partition {held.partition} stays withdrawn, because this run found its withdrawn version {held.version}. To "
        f"use it, run `python -m pipeline partition {held.partition} {held.version}` with the settings of this run"
    )


def _at(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
