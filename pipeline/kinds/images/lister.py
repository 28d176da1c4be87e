"""Images in ranges of their keys, for `pipeline/stages/extract.py`. The functions are those of `Lister`."""

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.config.settings import Settings
from pipeline.snapshot import extract
from pipeline.snapshot.listing import Listing
from pipeline.snapshot.options import extract_options
from pipeline.sources.detection import key_ranges
from pipeline.sources.key_range import MIN_IMAGES, KeyRange
from pipeline.storage import Place
from pipeline.system.environment import whole_number
from pipeline.system.progress import Show

MAX_KEY = 100
"""The name of a task shows at most this many characters of a key."""


def divide(settings: Settings, folder: Place, max_ranges: int) -> list[Any]:
    """Return ranges of keys, each with at least about TENFOLD_RANGE_IMAGES images."""
    options = extract_options(settings)
    min_images = whole_number("TENFOLD_RANGE_IMAGES", MIN_IMAGES)
    ranges = key_ranges(options.place, options.source, max_ranges, min_images)
    if len(ranges) > 1:
        extract.sweep(options)
    return ranges


def list_all(settings: Settings) -> Place:
    """List the whole source in this process."""
    return extract.list_source(extract_options(settings))


def list_range(settings: Settings, content: Any, show: Show) -> Listing:
    """List the images in a range of keys."""
    return extract.list_range(extract_options(settings), KeyRange(*content), show=show)


def join(settings: Settings, started_ns: int, contents: Sequence[Any], listings: Iterable[Listing]) -> Place:
    """Write the snapshot of all ranges."""
    return extract.join_listings(extract_options(settings), started_ns, listings)


def describe(content: Any) -> str:
    """Return the first key of a range in words."""
    first = KeyRange(*content).first
    if len(first) > MAX_KEY:  # Airflow stores up to 250 characters.
        first = first[:MAX_KEY] + "..."
    return f"from {first!r}" if first else ""
