"""Plan file -> shards. Each image is read, examined and written in turn; a task keeps one in memory at a time."""

from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

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
            for row in rows:
                shard.add(row)
            advance(len(rows))
        records.close()
    save_result(plan_path, shard.result(spec))


class _ShardWriter:
    """Turns raw images into records of one file, and keeps the sums over them."""

    def __init__(self, range_plan: RangePlan, records: Writer) -> None:
        self._root = Path(range_plan.root)
        self._rules = range_plan.rules
        self._encoder = ImageEncoder(range_plan.records, range_plan.labels, range_plan.texts)
        self._records = records
        self._labels: Counter[tuple[str, ...]] = Counter()
        self._misnamed = 0
        self._statistics = Statistics()
        self._rejected: list[dict[str, str]] = []
        self._perceptual_hashes: list[tuple[str, int]] = []

    def add(self, row: RawImage) -> None:
        if row.size == MISSING:
            self._reject(row, ABSENT)
            return
        raw = self._read(row)
        image = examine(raw, self._rules, [Box(*box) for box in row.boxes] if row.boxes else ())
        if isinstance(image, Rejection):
            self._reject(row, image)
        else:
            kept = image.encoded is raw
            self._append(row, image, row.crc32c if kept else google_crc32c.value(image.encoded))

    def _reject(self, row: RawImage, rejection: Rejection) -> None:
        self._rejected.append({"path": row.key, "reason": rejection.reason, "advice": rejection.advice})

    def _read(self, row: RawImage) -> bytes:
        encoded = read_raw(self._root, row.key)
        if google_crc32c.value(encoded) != row.crc32c:
            # Going on would give this version other bytes than its fingerprint promises.
            raise SourceError(f"{self._root / row.key} changed after it was listed: run again, for a new version")
        return encoded

    def _append(self, row: RawImage, image: UsableImage, crc32c: int) -> None:
        labels = tuple(row.labels)
        self._records.write(self._encoder.encode(image, labels, key_bytes(row.key)), image.encoded, crc32c)
        self._labels[labels] += 1
        self._misnamed += is_misnamed(row.key, image.found)
        self._statistics.add(image.height, image.width, len(image.encoded), image.brightness)
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
