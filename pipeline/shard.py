"""Plan file -> shards. Images are read, examined and written in small batches: memory holds one, or one large image."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from pipeline import storage
from pipeline.errors import SourceError
from pipeline.extract import read_raw
from pipeline.plan import ShardSpec
from pipeline.plan_files import RangePlan, read_range
from pipeline.progress import Advance
from pipeline.quality.examine import Rejection, UsableImage, examine, is_misnamed
from pipeline.quality.statistics import Statistics
from pipeline.records import ImageEncoder
from pipeline.results import ShardResult, load_result, results_folder, save_result
from pipeline.snapshot import RawImage, from_lines, key_bytes
from pipeline.sources import MISSING, Box
from pipeline.tfrecord import Writer, writer_of

BATCH_BYTES = 65_536  # more would be freed at once, and its memory go back to the system, to be asked for page by page
ABSENT = Rejection("the source lists it, and there is no such file", "bring the file, or take it off the list")


def write_range(plan_path: Path, advance: Advance) -> None:
    """Write the shards of one plan file that are not finished yet; `advance` is told of every image.

    Raises SourceError where an image vanished or changed since the snapshot, ConflictError where another file stands
    at a shard's name.
    """
    with open(plan_path, "rb") as file:
        range_plan = read_range(file)
        storage.sweep(results_folder(plan_path))
        for spec in range_plan.shards:
            lines = islice(file, spec.images)
            if _is_finished(plan_path, range_plan, spec):
                deque(lines, maxlen=0)  # on to the rows of the next shard
                advance(spec.images)
            else:
                _write_shard(plan_path, range_plan, spec, lines, advance)


def _is_finished(plan_path: Path, range_plan: RangePlan, spec: ShardSpec) -> bool:
    result = load_result(plan_path, spec.name)
    places = (Path(folder) / spec.name for folder in (range_plan.written, range_plan.published))
    return result is not None and any(place.exists() and place.stat().st_size == result.bytes for place in places)


def _write_shard(
    plan_path: Path, range_plan: RangePlan, spec: ShardSpec, lines: Iterator[bytes], advance: Advance
) -> None:
    path = Path(range_plan.written) / spec.name
    with storage.write_new(path) as file:
        records = writer_of(path, file)
        shard = _ShardWriter(range_plan, records)
        for rows in from_lines(lines):
            for batch in batches(rows, BATCH_BYTES):
                shard.add(batch)
            advance(len(rows))
        records.close()
    save_result(plan_path, shard.result(spec))


class _Kept(NamedTuple):
    row: RawImage
    raw: bytes
    image: UsableImage


def batches(rows: Sequence[RawImage], most_bytes: int) -> Iterator[Sequence[RawImage]]:
    """Rows in turn, as many at a time as hold no more than `most_bytes` together; one at least."""
    start = total = 0
    for end, row in enumerate(rows):
        total += row.size
        if total > most_bytes and end > start:
            yield rows[start:end]
            start, total = end, row.size
    if start < len(rows):
        yield rows[start:]


class _ShardWriter:
    """Turns raw images into records of one file, and keeps the sums over them."""

    def __init__(self, range_plan: RangePlan, records: Writer) -> None:
        self._root = range_plan.root
        self._rules = range_plan.rules
        self._encoder = ImageEncoder(range_plan.records, range_plan.labels, range_plan.texts)
        self._records = records
        self._labels: Counter[tuple[str, ...]] = Counter()
        self._misnamed = 0
        self._statistics = Statistics()
        self._rejected: list[dict[str, str]] = []
        self._perceptual_hashes: list[tuple[str, int]] = []

    def add(self, rows: Sequence[RawImage]) -> None:
        """Write a batch, each step over all of it: steps that take turns drive one another out of the caches."""
        raws = [self._read(row) for row in rows]
        found = [self._examine(row, raw) for row, raw in zip(rows, raws, strict=True)]
        kept = [
            _Kept(row, raw, image)
            for row, raw, image in zip(rows, raws, found, strict=True)
            if not isinstance(image, Rejection)
        ]
        if len(kept) < len(rows):
            self._reject(rows, found)
        self._write(kept)
        self._count(kept)

    def _read(self, row: RawImage) -> bytes:
        if row.size == MISSING:
            return b""
        encoded = read_raw(self._root, row.key, row.size)
        if google_crc32c.value(encoded) != row.crc32c:
            # Going on would give this version other bytes than its fingerprint promises.
            raise SourceError(f"{Path(self._root) / row.key} changed after it was listed: run again, for a new version")
        return encoded

    def _examine(self, row: RawImage, raw: bytes) -> UsableImage | Rejection:
        if row.size == MISSING:
            return ABSENT
        return examine(raw, self._rules, [Box(*box) for box in row.boxes] if row.boxes else ())

    def _reject(self, rows: Sequence[RawImage], found: Sequence[UsableImage | Rejection]) -> None:
        for row, rejection in zip(rows, found, strict=True):
            if isinstance(rejection, Rejection):
                self._rejected.append({"path": row.key, "reason": rejection.reason, "advice": rejection.advice})

    def _write(self, kept: Sequence[_Kept]) -> None:
        encode = self._encoder.encode
        heads = [encode(image, tuple(row.labels), key_bytes(row.key)) for row, _, image in kept]
        for head, (row, raw, image) in zip(heads, kept, strict=True):
            encoded = image.encoded
            self._records.write(head, encoded, row.crc32c if encoded is raw else google_crc32c.value(encoded))

    def _count(self, kept: Sequence[_Kept]) -> None:
        self._labels.update([tuple(row.labels) for row, _, _ in kept])
        for row, _, image in kept:
            self._statistics.add(image.height, image.width, len(image.encoded), image.brightness)
            self._misnamed += is_misnamed(row.key, image.found)
            if image.perceptual_hash is not None:
                self._perceptual_hashes.append((row.key, image.perceptual_hash))

    def _classes(self) -> dict[str, int]:
        classes: Counter[str] = Counter()
        for labels, count in self._labels.items():
            classes.update(dict.fromkeys(labels, count))
        return dict(classes)

    def result(self, spec: ShardSpec) -> ShardResult:
        return ShardResult(
            name=spec.name,
            split=spec.split,
            examples=self._labels.total(),
            bytes=self._records.size,
            crc32c=f"{self._records.crc32c:08x}",
            classes=self._classes(),
            rejected=self._rejected,
            misnamed=self._misnamed,
            statistics=self._statistics.to_json(),
            perceptual_hashes=self._perceptual_hashes,
        )
