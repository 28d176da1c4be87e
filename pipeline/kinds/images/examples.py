"""Images as examples of a shard: each is read, examined, and encoded."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import google_crc32c

from pipeline.dataset.content_hashes import example_hashes
from pipeline.errors import SourceError
from pipeline.gate.statistics import Statistics
from pipeline.images.examine import Examiner, UsableImage, is_misnamed
from pipeline.images.rejection import ABSENT, Rejection
from pipeline.plan.examples import Sums
from pipeline.plan.range_plan import RangePlan
from pipeline.records.format import ImageEncoder
from pipeline.records.tfrecord import Writer
from pipeline.snapshot.raw_example import RawExample, from_lines, place_of_key, quoted, why_unread
from pipeline.snapshot.raw_reader import RawReader, ReadImage
from pipeline.sources import Box
from pipeline.sources.key_range import bytes_of
from pipeline.system.progress import Advance


class ImageSums(Sums):
    """Counts and statistics of the images of one shard."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: Counter[tuple[tuple[str, ...], str, str]] = Counter()
        """Number of images by labels, suffix and format of the source file."""
        self._statistics = Statistics()
        self._perceptual_hashes: list[tuple[str, int]] = []
        self._profiles: Counter[str] = Counter()

    def add(self, key: str, labels: tuple[str, ...], group: str, image: UsableImage) -> None:
        """Count an image that was written."""
        encoded, _, height, width, _, source_format, brightness, perceptual_hash, profile = image
        self.hashes += example_hashes(encoded, quoted(group).encode("ascii"))
        self._kinds[labels, key.rpartition(".")[2], source_format] += 1
        self._statistics.add(height, width, len(encoded), brightness)
        if perceptual_hash is not None:
            self._perceptual_hashes.append((key, perceptual_hash))
        if profile:
            self._profiles[profile] += 1

    def facts(self) -> dict[str, Any]:
        """Return the counts of the images."""
        classes: Counter[str] = Counter()
        for (labels, *_), count in self._kinds.items():
            classes.update(dict.fromkeys(labels, count))
        return {
            "examples": self._kinds.total(),
            "classes": dict(classes),
            "misnamed": sum(count for (_, suffix, form), count in self._kinds.items() if is_misnamed(suffix, form)),
            "statistics": self._statistics.to_json(),
            "perceptual_hashes": self._perceptual_hashes,
            "profiles": dict(self._profiles),
        }


class ImageExamples:
    """The images of one plan file."""

    def __init__(self, range_plan: RangePlan) -> None:
        self._origin = range_plan.origin
        self._examine = Examiner(range_plan.rules).examine
        self._encode = ImageEncoder(range_plan.records, range_plan.labels, range_plan.texts).encode

    def read(self, lines: Iterable[bytes]) -> Iterator[ReadImage]:
        """Yield the images with the bytes of their files."""
        return RawReader(self._origin).read_all(from_lines(lines))

    def sums(self) -> ImageSums:
        """Return the sums of a new shard."""
        return ImageSums()

    def write(self, rows: Iterable[ReadImage], records: Writer, sums: ImageSums, advance: Advance) -> None:
        """Write images as records, or count them as rejected. Only one is in memory.

        Raises:
            SourceError: If an image changed since the snapshot.
        """
        for row, raw in rows:
            self._write(row, raw, records, sums)
            advance(1)

    def _write(self, row: RawExample, raw: bytes | None, records: Writer, sums: ImageSums) -> None:
        if raw is None:
            sums.reject(row.key, why_unread(row, self._origin) or ABSENT)
            return
        crc32c = google_crc32c.value(raw)
        if crc32c != row.crc32c:
            # Going on would give this version other bytes than its fingerprint promises.
            place = place_of_key(self._origin, row.key)
            raise SourceError(f"{place} changed after it was listed: run again to make a new version")
        image = self._examine(raw, [Box(*box) for box in row.boxes] if row.boxes else (), row.key)
        if isinstance(image, Rejection):
            sums.reject(row.key, image)
        else:
            # `ImageEncoder` remembers parts of records by their labels, so these must be hashable.
            labels, encoded = tuple(row.labels), image.encoded
            before = self._encode(image, labels, bytes_of(row.key))
            # The checksum of an unchanged image is known already, so its bytes are not read again.
            records.write(before, encoded, crc32c if encoded is raw else google_crc32c.value(encoded))
            sums.add(row.key, labels, row.group, image)
