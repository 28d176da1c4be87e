"""Images as examples of a shard: each is read, examined, and encoded."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import google_crc32c

from pipeline.dataset.content_hashes import hashes_of
from pipeline.errors import SourceError
from pipeline.gate.statistics import Statistics
from pipeline.images.examine import Examiner, UsableImage, is_misnamed
from pipeline.images.rejection import ABSENT, Rejection
from pipeline.plan.examples import Sums, in_blocks
from pipeline.plan.range_plan import RangePlan
from pipeline.records.format import ImageEncoder
from pipeline.records.tfrecord import Writer
from pipeline.snapshot.raw_example import RawExample, from_lines, place_of_key, quoted, why_unread
from pipeline.snapshot.raw_reader import BATCH_BYTES, RawReader, ReadImage
from pipeline.sources import Box
from pipeline.sources.key_range import bytes_of
from pipeline.sources.suffixes import suffix_of
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

    def add(self, written: Sequence[tuple[RawExample, UsableImage]]) -> None:
        """Count images that were written. There is at least one."""
        rows, images = zip(*written, strict=True)
        encoded, _, heights, widths, _, formats, brightness, perceptual_hashes, profiles = zip(*images, strict=True)
        groups = [quoted(row.group).encode("ascii") for row in rows] if any(row.group for row in rows) else None
        self.hashes += hashes_of(encoded, groups)
        suffixes = [suffix_of(row.key) for row in rows]
        self._kinds.update(zip([tuple(row.labels) for row in rows], suffixes, formats, strict=True))
        self._statistics.add(zip(heights, widths, map(len, encoded), brightness, strict=True))
        self._perceptual_hashes += [
            (row.key, value) for row, value in zip(rows, perceptual_hashes, strict=True) if value is not None
        ]
        self._profiles.update(filter(None, profiles))

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
        """Write images as records, or count them as rejected. Only a few are in memory, or one large image.

        Raises:
            SourceError: If an image changed since the snapshot.
        """
        for written in in_blocks(self._write(rows, records, sums, advance), _size, BATCH_BYTES):
            sums.add(written)
            del written  # A large image would stay in memory until the next one is written.

    def _write(
        self, rows: Iterable[ReadImage], records: Writer, sums: ImageSums, advance: Advance
    ) -> Iterator[tuple[RawExample, UsableImage]]:
        """Yield the images that were written."""
        for row, raw in rows:
            advance(1)
            if raw is None:
                sums.reject(row.key, why_unread(row, self._origin) or ABSENT)
                continue
            crc32c = google_crc32c.value(raw)
            if crc32c != row.crc32c:
                # Going on would give this version other bytes than its fingerprint promises.
                place = place_of_key(self._origin, row.key)
                raise SourceError(f"{place} changed after it was listed: run again to make a new version")
            image = self._examine(raw, [Box(*box) for box in row.boxes] if row.boxes else (), row.key)
            if isinstance(image, Rejection):
                sums.reject(row.key, image)
                continue
            # `ImageEncoder` remembers parts of records by their labels, so these must be hashable.
            before = self._encode(image, tuple(row.labels), bytes_of(row.key))
            encoded = image.encoded
            # The checksum of an unchanged image is known already, so its bytes are not read again.
            records.write(before, encoded, crc32c if encoded is raw else google_crc32c.value(encoded))
            yield row, image
            del raw, image, encoded, before


def _size(written: tuple[RawExample, UsableImage]) -> int:
    return len(written[1].encoded)
