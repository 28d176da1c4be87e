"""Images in ranges of their keys, for `pipeline/stages/extract.py`."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from typing_extensions import override

from pipeline.config.settings import Settings
from pipeline.plan.example_kind import ReadingLister
from pipeline.snapshot import extract
from pipeline.snapshot.listing import Listing
from pipeline.snapshot.options import extract_options
from pipeline.sources.detection import key_ranges, read_part, unread_parts
from pipeline.sources.key_range import MIN_IMAGES, KeyRange
from pipeline.storage import Place
from pipeline.system.environment import whole_number
from pipeline.system.progress import Show
from pipeline.system.wording import shortened

MAX_KEY = 100
"""The name of a task shows at most this many characters of a key."""


class ImageLister(ReadingLister):
    """Lists images. A range has at least about TENFOLD_RANGE_IMAGES images."""

    memory: ClassVar[int] = 200_000_000
    """A process was seen to take 138 MB."""

    def __init__(self, settings: Settings) -> None:
        self._options = extract_options(settings)

    @override
    def unread(self, most: int) -> list[Any]:
        return unread_parts(self._options.place, self._options.source, most)

    @override
    def read(self, part: Any) -> int:
        return read_part(self._options.place, self._options.source, part)

    @override
    def divide(self, folder: Place, max_ranges: int) -> list[Any]:
        min_images = whole_number("TENFOLD_RANGE_IMAGES", MIN_IMAGES)
        ranges = key_ranges(self._options.place, self._options.source, max_ranges, min_images)
        if len(ranges) > 1:
            extract.sweep(self._options)
        return ranges

    @override
    def list_all(self) -> Place:
        return extract.list_source(self._options)

    @override
    def list_range(self, content: Any, show: Show) -> Listing:
        return extract.list_range(self._options, KeyRange(*content), show)

    @override
    def join(self, started_ns: int, contents: Sequence[Any], listings: Iterable[Listing]) -> Place:
        return extract.join_listings(self._options, started_ns, listings)

    @override
    def describe(self, content: Any) -> str:
        first = KeyRange(*content).first
        # Airflow stores up to 250 characters.
        return f"from {shortened(first, MAX_KEY)!r}" if first else ""
