"""Plan file -> shards. Each image is read, examined and written in turn; a task keeps one in memory at a time."""

import json
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO

import google_crc32c

from pipeline import storage
from pipeline.errors import SourceError
from pipeline.example import encode_image
from pipeline.extract import read_raw
from pipeline.plan import ShardSpec
from pipeline.plan_files import RangePlan, read_range
from pipeline.progress import Advance
from pipeline.quality.examine import Rejection, Rules, examine
from pipeline.snapshot import RawImage, from_line, key_bytes
from pipeline.tfrecord import frame


@dataclass(frozen=True)
class ShardResult:
    """What was written of one shard; its file marks the shard as finished."""

    name: str
    split: str
    examples: int
    bytes: int
    crc32c: str
    classes: dict[str, int]
    rejected: list[dict[str, str]]


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
                _write_shard(plan_path, range_plan, spec, map(from_line, lines), advance)


def results_folder(plan_path: Path) -> Path:
    """Where the results of shards are kept, beside the plans."""
    return plan_path.parent.parent / "results"


def load_result(plan_path: Path, shard: str) -> ShardResult | None:
    """What was written of a shard, if it was finished."""
    try:
        return ShardResult(**storage.read_json(results_folder(plan_path) / f"{shard}.json"))
    except FileNotFoundError:
        return None


def _is_finished(plan_path: Path, range_plan: RangePlan, spec: ShardSpec) -> bool:
    result = load_result(plan_path, spec.name)
    places = (Path(folder) / spec.name for folder in (range_plan.written, range_plan.published))
    return result is not None and any(place.exists() and place.stat().st_size == result.bytes for place in places)


def _write_shard(
    plan_path: Path, range_plan: RangePlan, spec: ShardSpec, rows: Iterator[RawImage], advance: Advance
) -> None:
    with storage.write_new(Path(range_plan.written) / spec.name) as file:
        writer = _ShardWriter(range_plan, file)
        for row in rows:
            writer.add(row)
            advance(1)
    with storage.write_whole(results_folder(plan_path) / f"{spec.name}.json") as file:
        file.write(json.dumps(asdict(writer.result(spec))).encode())


class _ShardWriter:
    """Turns raw images into records of one file, and keeps the sums over them."""

    def __init__(self, range_plan: RangePlan, file: IO[bytes]) -> None:
        self._root = Path(range_plan.source_uri)
        self._label_ids = {label: number for number, label in enumerate(range_plan.labels)}
        self._rules = Rules(max_pixels=range_plan.max_pixels)
        self._file = file
        self._bytes = self._crc = 0
        self._classes: Counter[str] = Counter()
        self._rejected: list[dict[str, str]] = []

    def add(self, row: RawImage) -> None:
        image = examine(self._read(row), self._rules)
        if isinstance(image, Rejection):
            self._rejected.append({"path": row.key, "reason": image.reason, "advice": image.advice})
            return
        self._append(
            encode_image(
                encoded=image.encoded,
                image_format=image.format,
                height=image.height,
                width=image.width,
                filename=key_bytes(row.key),
                label=self._label_ids[row.label],
                text=row.label,
            )
        )
        self._classes[row.label] += 1

    def result(self, spec: ShardSpec) -> ShardResult:
        return ShardResult(
            name=spec.name,
            split=spec.split,
            examples=self._classes.total(),
            bytes=self._bytes,
            crc32c=f"{self._crc:08x}",
            classes=dict(self._classes),
            rejected=self._rejected,
        )

    def _read(self, row: RawImage) -> bytes:
        encoded = read_raw(self._root, row.key)
        if google_crc32c.value(encoded) != row.crc32c:
            # Going on would give this version other bytes than its fingerprint promises.
            raise SourceError(f"{self._root / row.key} changed after it was listed: run again, for a new version")
        return encoded

    def _append(self, data: bytes) -> None:
        record = frame(data)
        self._file.write(record)
        self._bytes += len(record)
        self._crc = google_crc32c.extend(self._crc, record)
