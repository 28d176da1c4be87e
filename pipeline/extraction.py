"""Extract a large source in several tasks, each for a range of its keys.

`divide` writes a file for each range. A task lists one range, sorts its parts, and writes the listing beside the file.
`join` makes the snapshot from all listings. Without Airflow, `extract` does all of it, with the engine of the settings.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline import storage
from pipeline.allowed import allowlists, require_allowed, require_output
from pipeline.config import Settings, settings_from
from pipeline.engines import engine_named
from pipeline.engines.task import Task
from pipeline.errors import SettingsError
from pipeline.preflight import preflight
from pipeline.sharding.sort import SplitRule, sorted_part
from pipeline.snapshot.extract import join_listings, list_range, list_source, sweep
from pipeline.snapshot.listing import RANGES, Listing, load_listing, save_listing
from pipeline.sources.detection import key_ranges
from pipeline.sources.key_range import MIN_IMAGES, KeyRange
from pipeline.storage import Place, place_of
from pipeline.system.progress import Show, no_progress, progress
from pipeline.workspace import place_hash, snapshots_folder

RANGE_IMAGES = "TENFOLD_RANGE_IMAGES"
MAX_RANGES = 1000
"""At most this many tasks list a source. Airflow maps a task at most 1,024 times."""

MAX_KEY = 100
"""The name of a task shows at most this many characters of a key."""


@dataclass(frozen=True)
class RangeFile:
    """The work of one task."""

    settings: dict[str, Any]
    keys: KeyRange
    number: int
    """Number of the range, from 1."""
    ranges: int
    """Number of all ranges."""
    started_ns: int
    """When the source was divided, in Unix nanoseconds."""


def extract(settings: Settings) -> Place:
    """List the source, and return the file of the snapshot. Several tasks of the engine list a large source.

    Raises:
        SourceError: If the source has no image of a class, or changes meanwhile.
    """
    paths = divide(settings)
    if not paths:
        return list_all(settings)
    with progress("extract", 0) as advance:
        engine_named(settings.engine)(Task(list_range_file, allowlists(settings)), paths, advance)
    return join(settings, paths)


def divide(settings: Settings) -> list[str]:
    """Write a file for each range of a large source, and return their paths. The list is empty for a small source.

    The variable TENFOLD_RANGE_IMAGES in the environment sets how many images a range has at least.

    Raises:
        SettingsError: If the settings or the variable are wrong.
        SourceError: If the source cannot be listed.
    """
    preflight(settings)
    if settings.example_kind == "table":  # One task reads it: a type is known only after the last row.
        return []
    ranges = key_ranges(settings, MAX_RANGES, _range_images())
    if len(ranges) == 1:
        return []
    sweep(settings)
    started_ns = time.time_ns()
    folder = snapshots_folder(settings) / RANGES / f"{started_ns}-{place_hash(settings.source_uri)}"
    paths = [folder / f"{number:04d}.json" for number in range(1, len(ranges) + 1)]
    for number, (path, keys) in enumerate(zip(paths, ranges, strict=True), 1):
        content = RangeFile(settings.model_dump(), keys, number, len(ranges), started_ns)
        with storage.write_whole(path, synced=True) as file:
            file.write(json.dumps(asdict(content)).encode())
    for changed in (folder, folder.parent, folder.parent.parent):  # All of them may be new.
        storage.sync_folder(changed)
    return [str(path) for path in paths]


def list_all(settings: Settings) -> Place:
    """List a source in this process, with settings that were checked, and return the file of the snapshot.

    Raises:
        SourceError: If the source has no example of a class, or changes meanwhile.
    """
    if settings.example_kind == "table":
        from pipeline.tables.extract import list_table  # Arrow takes a third of a second, and images do not need it.

        return list_table(settings)
    return list_source(settings)


def load_range_file(path: str) -> RangeFile:
    """Read a file that `divide` wrote."""
    content = storage.read_json(place_of(path))
    return RangeFile(**{**content, "keys": KeyRange(*content["keys"])})


def list_range_file(path: str, show: Show = no_progress) -> int:
    """List a range, and sort its parts for the plan. Return the number of its images.

    A range that was listed before is not listed again.

    Raises:
        SettingsError: If this machine does not allow a place of the settings.
        SourceError: If an image cannot be read, or changes meanwhile.
    """
    result = _listing_path(path)
    require_output(result)  # A cluster may have another administrator.
    range_file = load_range_file(path)
    settings = settings_from(range_file.settings)
    require_allowed(settings)
    if not result.exists():
        listing = list_range(settings, range_file.keys, show=show)
        for part in listing.parts:
            sorted_part(part, SplitRule.of(settings))
        save_listing(listing, result)
        storage.sync_folder(result.parent)
    return load_listing(result).listed


def join(settings: Settings, paths: Sequence[str]) -> Place:
    """Return the file of the snapshot that consists of all ranges. No row is read.

    Raises:
        SourceError: If the source has no image of a class, or changed between the listings.
    """
    started_ns = load_range_file(paths[0]).started_ns
    return join_listings(settings, started_ns, map(_listing_of, paths))


def describe_range(path: str) -> str:
    """Return a range as text, for example `3 of 20, from 'cats/0917.jpg'`."""
    range_file = load_range_file(path)
    first = range_file.keys.first
    if len(first) > MAX_KEY:  # Airflow stores up to 250 characters.
        first = first[:MAX_KEY] + "..."
    start = f", from {first!r}" if first else ""
    return f"{range_file.number} of {range_file.ranges}{start}"


def _range_images() -> int:
    value = os.environ.get(RANGE_IMAGES) or str(MIN_IMAGES)
    if not value.isdecimal() or not int(value):
        raise SettingsError(f"{RANGE_IMAGES} must be a number above 0, got {value!r}")
    return int(value)


def _listing_of(path: str) -> Listing:
    try:
        return load_listing(_listing_path(path))
    except FileNotFoundError as error:
        raise SettingsError(
            f"the range of {path} was not listed: list it first (in Airflow: clear the task `extract_range`)"
        ) from error


def _listing_path(path: str) -> Place:
    return place_of(path).with_suffix(".listing")
