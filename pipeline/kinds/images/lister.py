"""Images in ranges of their keys, for `pipeline/stages/extract.py`."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from typing_extensions import override

from pipeline.config.settings import Settings
from pipeline.plan.example_kind import Lister
from pipeline.snapshot import extract
from pipeline.snapshot.listing import ExamineEach, Listing
from pipeline.snapshot.options import extract_options
from pipeline.sources.detection import are_followed, key_ranges, read_part, unread_parts
from pipeline.sources.key_range import MIN_IMAGES, MIN_IMAGES_OF_PROCESS, KeyRange
from pipeline.storage import Place
from pipeline.system.environment import whole_number
from pipeline.system.progress import Show
from pipeline.system.resources import usable_cores
from pipeline.system.wording import shortened

RANGES_PER_CORE = 12
"""Processes of this machine list at most this many ranges for each core. With several ranges for each, all cores end at
about the same time. A smaller range also takes less memory while it is sorted: one of 62,000 images took 20 MB. With 12
ranges for each of 2 cores, a million images have ranges of 42,000."""
MAX_KEY = 100
"""The name of a task shows at most this many characters of a key."""


class ImageLister(Lister):
    """Lists images. A range has at least about TENFOLD_RANGE_IMAGES images."""

    examines: ClassVar[str] = "containers"
    memory: ClassVar[int] = 200_000_000
    """The largest process of a build of a million images in Parquet files took 149 MB: docs/explanation/scaling.md."""

    def __init__(self, settings: Settings) -> None:
        self._options = extract_options(settings)

    @override
    def divide(
        self, folder: Place, max_ranges: int, examine_each: ExamineEach | None = None, starts_quickly: bool = False
    ) -> list[Any]:
        place, source = self._options.place, self._options.source
        # Without this, the next lines read all containers in this process.
        for _ in range(2):
            if not (examine_each and len(parts := unread_parts(place, source, max_ranges)) > 1):
                break
            deque(examine_each(parts), maxlen=0)
            if not are_followed(parts):
                break
        usual = MIN_IMAGES_OF_PROCESS if starts_quickly else MIN_IMAGES
        min_images = whole_number("TENFOLD_RANGE_IMAGES", usual)
        if starts_quickly:
            max_ranges = min(max_ranges, RANGES_PER_CORE * usable_cores())
        ranges = key_ranges(place, source, max_ranges, min_images)
        if len(ranges) > 1:
            extract.sweep(self._options)
        return ranges

    @override
    def examine(self, content: Any) -> Any:
        return read_part(self._options.place, self._options.source, content)

    @override
    def list_all(self) -> Place:
        return extract.list_source(self._options)

    @override
    def list_range(self, content: Any, started_ns: int, show: Show) -> Listing:
        return extract.list_range(self._options, KeyRange(*content), started_ns, show)

    @override
    def join(self, started_ns: int, contents: Sequence[Any], listings: Iterable[Listing]) -> Place:
        return extract.join_listings(self._options, started_ns, listings)

    @override
    def describe(self, content: Any) -> str:
        first = KeyRange(*content).first
        # Airflow stores up to 250 characters.
        return f"from {shortened(first, MAX_KEY)!r}" if first else ""
