"""Images in ranges of their keys, for `pipeline/stages/extract.py`."""

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.config import Settings
from pipeline.snapshot import extract
from pipeline.snapshot.listing import Listing
from pipeline.sources.detection import key_ranges
from pipeline.sources.key_range import MIN_IMAGES, KeyRange
from pipeline.storage import Place
from pipeline.system.environment import whole_number
from pipeline.system.progress import Show

MAX_KEY = 100
"""The name of a task shows at most this many characters of a key."""

list_all = extract.list_source


def divide(settings: Settings, folder: Place, max_ranges: int) -> list[Any]:
    """Return ranges of keys, each with at least about TENFOLD_RANGE_IMAGES images."""
    ranges = key_ranges(settings, max_ranges, whole_number("TENFOLD_RANGE_IMAGES", MIN_IMAGES))
    if len(ranges) > 1:
        extract.sweep(settings)
    return ranges


def list_range(settings: Settings, content: Any, show: Show) -> Listing:
    """List the images in a range of keys."""
    return extract.list_range(settings, KeyRange(*content), show=show)


def join(settings: Settings, started_ns: int, contents: Sequence[Any], listings: Iterable[Listing]) -> Place:
    """Write the snapshot of all ranges."""
    return extract.join_listings(settings, started_ns, listings)


def describe(content: Any) -> str:
    """Return the first key of a range in words."""
    first = KeyRange(*content).first
    if len(first) > MAX_KEY:  # Airflow stores up to 250 characters.
        first = first[:MAX_KEY] + "..."
    return f"from {first!r}" if first else ""
