"""Extract a large source in several tasks, each for a range of it.

`divide` writes a file for each range. A task lists one range, sorts its parts, and writes the listing beside the file.
`join` makes the snapshot from all listings. Without Airflow, `extract` does all of it, with the engine of the settings.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.config.allowed import allowlists, require_output
from pipeline.config.preflight import preflight
from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import RANGES, place_hash, require_allowed_folders, snapshots_folder
from pipeline.engines import Engine, opened_engine
from pipeline.engines.task import Task
from pipeline.errors import FileSystemError, require_format
from pipeline.plan.example_kind import Lister, kind_named
from pipeline.plan.options import split_rule
from pipeline.plan.sort import sorted_part
from pipeline.snapshot.listing import Listing, divisions_of, load_listing, save_listing
from pipeline.snapshot.part import EXTRACT_AGAIN, SNAPSHOT_FORMAT, damaged_file, read_extracted
from pipeline.storage import Place, place_of
from pipeline.system.arrow import one_thread
from pipeline.system.progress import Show, no_progress, progress

MAX_RANGES = 1000
"""At most this many tasks list a source. Airflow maps a task at most 1,024 times."""
DIVISIONS_KEPT_NS = 7 * 86_400 * 10**9
"""For this long, a person may clear tasks of a run that divided a source."""


@dataclass(frozen=True)
class RangeFile:
    """The work of one task."""

    settings: dict[str, Any]
    content: Any
    """The range, as its kind describes it."""
    number: int
    """Number of the range, from 1."""
    ranges: int
    started_ns: int
    """When the source was divided, in Unix nanoseconds."""


def extract(settings: Settings, engine: Engine | None = None) -> Place:
    """List the source, and return the file of the snapshot. Several tasks of the engine list a large source.

    Without an opened `engine`, it is that of the settings.

    Raises:
        SourceError: If the source has no example of a class, or changes meanwhile.
    """
    if not engine:
        with opened_engine(settings.engine) as opened:
            return extract(settings, opened)
    paths = divide(settings, engine)
    if not paths:
        return list_all(settings)
    task = Task(list_range_file, allowlists(), _lister(settings).memory)
    with progress("extract", 0, kind_named(settings.example_kind).nouns) as advance:
        engine(task, paths, advance)
    return join(settings, paths)


def divide(settings: Settings, engine: Engine | None = None) -> list[str]:
    """Write a file for each range of a large source, and return their paths. The list is empty for a small source.

    Variables in the environment set the size of a range: TENFOLD_RANGE_IMAGES, and TENFOLD_RANGE_MEGABYTES of a table
    or of containers.

    Args:
        settings: The settings of the source.
        engine: Reads a table for its schema, or containers of images, and lists the ranges. Without one, this
            process reads it, and tasks of Airflow list the ranges. The processes of the engine `local` start quickly,
            so they divide a smaller source, too.

    Raises:
        SettingsError: If the settings or a variable are wrong.
        SourceError: If the source cannot be listed.
    """
    preflight(settings)
    require_allowed_folders(settings)
    started_ns = time.time_ns()
    folder = snapshots_folder(settings) / RANGES / f"{started_ns}-{place_hash(settings.source_uri)}"
    lister = _lister(settings)

    def examine_each(contents: Sequence[Any]) -> Iterator[Any]:
        assert engine
        paths = _write_range_files(settings, folder / "examined", contents, started_ns)
        with progress(lister.examines, len(paths), "parts") as advance:
            engine(Task(examine_range_file, allowlists(), lister.memory), paths, advance)
        return map(_take_examined, paths)

    ranges = lister.divide(
        folder, MAX_RANGES, examine_each if engine else None, starts_quickly=bool(engine and settings.engine == "local")
    )
    _remove_divisions(folder.parent, place_hash(settings.source_uri), started_ns - DIVISIONS_KEPT_NS)
    if len(ranges) < 2:
        return []
    paths = _write_range_files(settings, folder, ranges, started_ns)
    for changed in (folder, folder.parent, folder.parent.parent):  # All of them may be new.
        storage.sync_folder(changed)
    return paths


def _remove_divisions(folder: Place, of_source: str, before_ns: int) -> None:
    """Remove old divisions of a source. If one became no snapshot, its files are read again."""
    for started_ns, division in divisions_of(folder, of_source):
        if started_ns >= before_ns:
            continue
        if isinstance(division, Path):
            shutil.rmtree(division, ignore_errors=True)  # Another run may remove it, too.
        else:
            for key, _ in storage.objects(division):
                (division / key).unlink(missing_ok=True)


def _write_range_files(settings: Settings, folder: Place, contents: Sequence[Any], started_ns: int) -> list[str]:
    paths = [folder / f"{number:04d}.json" for number in range(1, len(contents) + 1)]
    for number, (path, content) in enumerate(zip(paths, contents, strict=True), 1):
        range_file = RangeFile(settings.model_dump(), content, number, len(contents), started_ns)
        storage.write_json(path, {"format": SNAPSHOT_FORMAT, **asdict(range_file)}, synced=True)
    return [str(path) for path in paths]


@one_thread()
def examine_range_file(path: str) -> int:
    """Write what `divide` must know of a range, beside its file. Return 1: one range. Raises as `list_range_file`."""
    result = _examined_path(path)
    require_output(result)
    range_file = load_range_file(path)
    storage.write_json(result, _lister(_settings_of(range_file)).examine(range_file.content))
    return 1


def list_all(settings: Settings) -> Place:
    """List a source in this process, with settings that were checked, and return the file of the snapshot.

    Raises:
        SourceError: If the source has no example of a class, or changes meanwhile.
    """
    return _lister(settings).list_all()


def load_range_file(path: str) -> RangeFile:
    """Read a file that `divide` wrote.

    Raises FormatError if another version of Tenfold wrote it, SettingsError if the administrator does not allow it.
    Raises FileSystemError if it is missing or damaged.
    """
    require_output(place_of(path))
    try:
        content = storage.read_json(place_of(path))
    except FileNotFoundError as error:
        raise FileSystemError(
            f"{path} is missing, or this host does not see it yet: the ranges of a run are removed after a week. Run "
            "again, or " + EXTRACT_AGAIN
        ) from error
    except ValueError as error:
        raise damaged_file(path) from error
    require_format(content.pop("format", None), SNAPSHOT_FORMAT, path, EXTRACT_AGAIN)
    return RangeFile(**content)


@one_thread()
def list_range_file(path: str, show: Show = no_progress) -> int:
    """List a range, and sort its parts for the plan. Return the number of its rows.

    A range that was listed before is not listed again.

    Raises:
        SettingsError: If this machine does not allow a place of the settings.
        SourceError: If the source cannot be read, or changes meanwhile.
    """
    result = _listing_path(path)
    require_output(result)
    range_file = load_range_file(path)
    settings = _settings_of(range_file)
    if result.exists():
        return load_listing(result).listed
    listing = _lister(settings).list_range(range_file.content, range_file.started_ns, show)
    for part in listing.parts:
        sorted_part(part, split_rule(settings))
    save_listing(listing, result)
    storage.sync_folder(result.parent)
    return listing.listed


def join(settings: Settings, paths: Sequence[str]) -> Place:
    """Return the file of the snapshot that consists of all ranges. No row is read.

    Raises:
        SettingsError: If the administrator does not allow a place of the settings or of the ranges.
        SourceError: If the source has no example of a class, or changed between the listings.
        FileSystemError: If a range was not listed, or this host does not see its listing yet.
    """
    require_allowed_folders(settings)
    range_files = list(map(load_range_file, paths))
    contents = [range_file.content for range_file in range_files]
    return _lister(settings).join(range_files[0].started_ns, contents, map(_listing_of, paths))


def describe_range(path: str) -> str:
    """Return a range as text, for example `3 of 20, from 'cats/0917.jpg'`. Raises what `list_range_file` does."""
    range_file = load_range_file(path)
    start = _lister(_settings_of(range_file)).describe(range_file.content)
    return f"{range_file.number} of {range_file.ranges}{', ' * bool(start)}{start}"


def _settings_of(range_file: RangeFile) -> Settings:
    """Return the settings of a range. The machine of this task may have another administrator."""
    settings = settings_from(range_file.settings)
    require_allowed_folders(settings)
    return settings


def _lister(settings: Settings) -> Lister:
    return kind_named(settings.example_kind).lister(settings)


def _listing_of(path: str) -> Listing:
    """Return the listing of a range, which another host may have written just now.

    Raises FileSystemError if this host does not see it.
    """
    place = _listing_path(path)
    with suppress(FileNotFoundError):
        return load_listing(place)
    storage.refresh(place.parent)
    try:
        return load_listing(place)
    except FileNotFoundError as error:
        raise FileSystemError(
            f"the range of {path} was not listed, or this host does not see its listing yet: run again, or list it "
            "first (in Airflow: clear the task `extract_range`)"
        ) from error


def _take_examined(path: str) -> Any:
    """Return what `examine_range_file` wrote: up to tens of megabytes, which nothing else reads."""
    content = read_extracted(_examined_path(path))
    _examined_path(path).unlink()
    place_of(path).unlink()
    return content


def _examined_path(path: str) -> Place:
    return place_of(path).with_suffix(".examined")


def _listing_path(path: str) -> Place:
    return place_of(path).with_suffix(".listing")
