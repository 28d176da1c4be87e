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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pipeline import storage
from pipeline.config.allowed import require_output
from pipeline.dataset.manifest import PARALLEL_REQUESTS, is_committed
from pipeline.errors import BadInput, ConflictError, DatasetError, FormatError, SettingsError, require_format
from pipeline.storage import Place
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import ordered_map
from pipeline.system.wording import first_of

LATEST = "latest"
"""The partition of a source without dates."""
LISTED = "listed"
"""This folder of a plan says when the source of each date was listed, and why the version was refused. The state of a
date follows from it, so nothing removes it."""
PARTITION_FORMAT = 1
MAX_PARTITION_BYTES = 100_000
"""Maximum size of the file of a partition, which others may have written."""
MAX_REFUSAL = 2000
"""Maximum length of a stored error message, in characters."""
MAX_REFUSAL_BYTES = 100_000
"""Maximum size of the file of an error message."""
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


@dataclass(frozen=True)
class Listed:
    """A listing of the source of a partition, and the version that it found."""

    listed_ns: int
    """When the listing began, in Unix nanoseconds."""
    dataset: str
    """The folder of the version as `BuildFolders.address_of` returns it, whether it is published or not."""
    refused: str = ""
    """Why the version was not published after this listing; empty if nothing is known."""


def save_listed(work: Place, partition: str, listed_ns: int, dataset: str) -> None:
    """Store when the source of a partition was last found to hold the version with the folder `work`.

    `dataset` is the folder in which the version is published, as `BuildFolders.address_of` returns it.
    """
    # An old snapshot can be planned again. It must not hide a newer listing that found the same version.
    newest = max(listed_ns, last_listed(work, partition))
    storage.write_json(_listed(work, partition), {"listed_ns": newest, "dataset": dataset}, synced=True)


@contextmanager
def saving_refusal(work: Place, partition: str, listed_ns: int) -> Iterator[None]:
    """Store the error with which the block refuses the version with the folder `work`, and raise it again.

    `listed_ns` is when the listing began that found the version.
    """
    try:
        yield
    except BadInput as error:
        # In a file of its own: another run may store a newer listing at the same time.
        path = _refused(work, partition)
        if _listed_ns(path) <= listed_ns:
            storage.write_json(path, {"listed_ns": listed_ns, "why": str(error)[:MAX_REFUSAL]})
        raise


def last_listed(work: Place, partition: str) -> int:
    """Return when the newest listing began that found this version in the source of a partition; 0 if unknown."""
    return _listed_ns(_listed(work, partition))


def _listed_ns(path: Place) -> int:
    content = _content(path)
    try:
        return int(json.loads(content)["listed_ns"]) if content is not None else 0
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("%s is damaged (%r) and is written again", path, error)
        return 0


def listed_dates(work: Place) -> dict[str, Listed]:
    """Return the newest listing of each date that found the version with the folder `work`.

    Raises SettingsError if a file is a link to a place that the administrator does not allow.
    """
    files: list[Place] = unless_missing(lambda: list((work / LISTED).iterdir())) or []
    names = {path.name for path in files}
    found = {}
    for match in filter(None, map(_DATED.fullmatch, names)):
        # A damaged file is written again by the next run of the date.
        with suppress(ValueError, KeyError, TypeError):
            content = _allowed_json(_listed(work, match[1]))
            listed = Listed(int(content["listed_ns"]), str(content["dataset"]))
            path = _refused(work, match[1])
            refusal = _allowed_json(path) if path.name in names else {"listed_ns": 0}
            is_of_it = refusal["listed_ns"] == listed.listed_ns
            found[match[1]] = replace(listed, refused=str(refusal["why"])) if is_of_it else listed
    return found


def save_partition(folder: Place, made: Partition, last_listed: Callable[[str], int]) -> Partition | None:
    """Point a partition to a version, unless it already points to a version of a newer listing.

    Returns what it pointed to before; None if it did not move, or if it is new.

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
            return None
        if held and (listed_ns := max(held.listed_ns, last_listed(held.version))) >= made.listed_ns:
            _log.warning(_stays(replace(held, listed_ns=listed_ns), made))
            return None
        # Another commit has changed the file first: the loop reads what it wrote.
        with suppress(ConflictError):
            _swap(path, before, made)
            return held


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
    """Leave a partition out of windows until it has another version, and return it. Its version stays as it is.

    A run that finds the same version does not bring it back. A new version does, and so does `move_partition`.
    `folder` is the folder of the dataset name. Raises SettingsError if there is no such partition, DatasetError if its
    file is damaged, and ConflictError if another process moved it at the same time.
    """
    _require_partition(folder, name)
    path = _path(folder, name)
    content = _content(path)
    if content is None:
        raise ConflictError(f"another process removed partition {name} of {folder} at the same moment")
    withdrawn = replace(_parse(path, content), listed_ns=time.time_ns(), withdrawn=True)
    _swap(path, content, withdrawn)
    return withdrawn


def _require_partition(folder: Place, name: str) -> None:
    """Raise SettingsError if a folder has no partition of this name."""
    known = partition_names(folder)
    if name not in known:
        shown = first_of(known, _SHOWN) or "no partitions"
        raise SettingsError(f"{folder} has no partition {name!r}. It has {shown}: name one of them")


def newest_partitions(folder: Place, count: int) -> dict[str, str]:
    """Return the versions of the newest `count` partitions by their names, the newest first: dates, or else "latest".

    Withdrawn partitions are left out: older ones take their places. The result is empty if nothing was published.
    `folder` is the folder of the dataset name. Raises DatasetError if the file of a partition is damaged.
    """
    names = dated_partitions(folder) or [LATEST]
    newest: dict[str, str] = {}
    while names and len(newest) < count:
        missing = count - len(newest)
        newest |= {name: held.version for name, held in _read(folder, names[:missing]) if not held.withdrawn}
        names = names[missing:]
    return newest


def _read(folder: Place, names: Sequence[str]) -> Iterator[tuple[str, Partition]]:
    """Yield each partition with its name. A partition that was removed in the meantime is left out."""
    paths = [_path(folder, name) for name in names]
    for name, path, content in zip(names, paths, ordered_map(_content, paths, PARALLEL_REQUESTS), strict=True):
        if content is not None:
            yield name, _parse(path, content)


def load_partition(folder: Place, name: str) -> Partition | None:
    """Return a partition; None if nothing of it was published.

    Raises:
        DatasetError: The file of the partition is damaged.
        SizeError: It is larger than any that Tenfold writes.
    """
    path = _path(folder, name)
    content = unless_missing(lambda: storage.read_limited(path, MAX_PARTITION_BYTES))
    return None if content is None else _parse(path, content)


def partition_names(folder: Place) -> list[str]:
    """Return all partitions of a dataset name, withdrawn ones too: dates, the newest first, then "latest"."""
    return [*dated_partitions(folder), *([LATEST] if _path(folder, LATEST).exists() else [])]


def dated_partitions(folder: Place) -> list[str]:
    """Return the partitions of a dataset name that are dates, the newest first."""
    partitions = folder / "partitions"
    files = partitions.iterdir() if partitions.is_dir() else ()
    # Other files that a person put there, such as "2026-01-31 (copy).json", do not match.
    return sorted((match[1] for path in files if (match := _DATED.fullmatch(path.name))), reverse=True)


def warn_about_ignored_latest(folder: Place) -> None:
    """Log a warning if a dataset name has dates and `latest`: windows then never have the examples of `latest`."""
    latest = _path(folder, LATEST)
    if latest.exists() and (dates := dated_partitions(folder)):
        _log.warning(
            "%r has partitions with a date (the newest is %s), and one without a date, %r. Windows and trainings "
            "ignore %r: set another dataset_name for the undated source, or remove %s if it is no longer needed",
            folder.name,
            dates[0],
            LATEST,
            LATEST,
            latest,
        )


def _path(folder: Place, name: str) -> Place:
    return folder / "partitions" / f"{name}.json"


def _listed(work: Place, partition: str) -> Place:
    return work / LISTED / f"{partition}.json"


def _refused(work: Place, partition: str) -> Place:
    return work / LISTED / f"{partition}.refused.json"


def _allowed_json(path: Place) -> Any:
    require_output(path)
    return storage.read_json(path, MAX_REFUSAL_BYTES)


def _content(path: Place) -> bytes | None:
    return unless_missing(path.read_bytes)


def _swap(path: Place, before: bytes | None, after: Partition) -> None:
    content = {"format": PARTITION_FORMAT, **asdict(after)}
    if not after.withdrawn:
        del content["withdrawn"]  # The field is only there if it says something.
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
    held_since, listed = _at(held.listed_ns), _at(made.listed_ns)
    why = (
        f"stays withdrawn, because a person withdrew it at {held_since}, after this run listed its source at {listed}"
        if held.withdrawn
        else f"stays at version {held.version}, because the source of that version was listed at {held_since}, and the "
        f"source of version {made.version} not later, at {listed}"
    )
    return f"partition {made.partition} {why}. {_use_anyway(made)}"


def _stays_withdrawn(held: Partition) -> str:
    return (
        f"partition {held.partition} stays withdrawn, because this run found its withdrawn version {held.version}. "
        f"{_use_anyway(held)}"
    )


def _use_anyway(version: Partition) -> str:
    return (
        f"To use version {version.version} anyway, run `python -m pipeline partition {version.partition} "
        f"{version.version}` with the settings of this run"
    )


def _at(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
