"""Plan file -> shards. Images are read, examined and written one by one, so that only one is in memory."""

import platform
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import IO

import google_crc32c

from pipeline import storage
from pipeline.allowed import require_output, require_source
from pipeline.dataset.content_hashes import content_hash
from pipeline.errors import SettingsError, SourceError
from pipeline.images.codecs import codec_versions
from pipeline.images.examine import Examiner, UsableImage, is_misnamed
from pipeline.images.rejection import ABSENT, Rejection
from pipeline.records.format import ImageEncoder
from pipeline.records.tfrecord import Writer, writer_of
from pipeline.sharding.merge import merged_lines, read_pieces
from pipeline.sharding.ranges import RangePlan, ShardSpec, load_range, read_range
from pipeline.sharding.results import ShardResult, WrittenShard, load_result, remove_torn, results_folder, save_result
from pipeline.sharding.statistics import Statistics
from pipeline.snapshot.raw_image import RawImage, from_lines, key_bytes, place_of_key, why_unread
from pipeline.snapshot.raw_reader import RawReader, ReadImage
from pipeline.sources import Box
from pipeline.storage import Place, place_of
from pipeline.system.progress import Advance


def write_range(plan_path: Place, advance: Advance) -> None:
    """Write the shards of one plan file that are not finished yet. Calls `advance` for every image.

    Raises:
        SourceError: If an image vanished or changed since the snapshot.
        ConflictError: If another file has the name of a shard.
        SettingsError: If the codecs of this machine differ from those of the machine that made the plan.
    """
    with plan_path.open("rb") as file:
        range_plan = read_range(file)
        _require_codecs(range_plan)
        # An attempt that was killed may have left temporary files.
        storage.sweep(results_folder(plan_path))
        finished = {spec for spec in range_plan.shards if _is_finished(plan_path, range_plan, spec)}
        advance(sum(spec.images for spec in finished))
        # One stream for all shards: while a shard is uploaded, the images of the next one are downloaded.
        lines = _lines(_rows(range_plan, file), range_plan.shards, finished)
        images = RawReader(range_plan.origin).read_all(from_lines(lines))
        writer = _ShardWriter(range_plan)
        for spec in range_plan.shards:
            if spec not in finished:
                _remove_torn(plan_path, range_plan, spec)
                save_result(plan_path, writer.write(spec, islice(images, spec.images), advance))


def write_plan_file(path: str) -> int:
    """Do the same as `write_range`, as the task of an engine. Return the number of images."""
    plan_path = place_of(path)
    write_range(plan_path, lambda _count, _size=0: None)
    return load_range(plan_path).images


def write_allowed_plan_file(path: str) -> int:
    """Do the same as `write_plan_file` on a machine whose administrator may allow other places.

    Raises:
        SettingsError: If the machine does not allow a folder that is written.
        SourceError: If it does not allow an image.
    """
    plan_path = place_of(path)
    with plan_path.open("rb") as file:
        range_plan = read_range(file)
        if not range_plan.codecs:
            raise SettingsError(
                f"an earlier release planned version {range_plan.version}: make the plan again with `build` or `shard` "
                "(in Airflow: clear `shard.plan` and all tasks after it)"
            )
        for folder in (plan_path.parent, range_plan.written, range_plan.origin.cache):
            if folder:
                require_output(place_of(str(folder)))
        start = file.tell()
        if range_plan.format > 1:
            for folder in {str(place_of(piece.lines).parent) for piece in read_pieces(file)}:
                require_output(place_of(folder))
            file.seek(start)
        for rows in from_lines(_rows(range_plan, file)):
            for row in rows:
                require_source(place_of_key(range_plan.origin, row.key))
    return write_plan_file(path)


def _require_codecs(range_plan: RangePlan) -> None:
    """Refuse to write with codecs that may give other bytes than the version promises."""
    planned = range_plan.codecs
    if not planned:  # An earlier release made the plan.
        return
    here = codec_versions(gzip=range_plan.records.compression == "gzip", perceptual_hash="imagehash" in planned)
    different = [
        f"{name} is {here.get(name, 'missing')} instead of {planned.get(name, 'missing')}"
        for name in sorted({*planned, *here})
        if planned.get(name) != here.get(name)
    ]
    if different:
        raise SettingsError(
            f"this machine ({platform.node()}) might write other bytes than version {range_plan.version} promises, "
            f"because its codecs differ from those of the machine that made the plan ({'; '.join(different)}): install "
            "the same packages on all machines, then make the plan again with `build` or `shard` (in Airflow: clear "
            "`shard.plan` and all tasks after it)"
        )


def _is_finished(plan_path: Place, range_plan: RangePlan, spec: ShardSpec) -> bool:
    result = load_result(plan_path, spec.name)
    if result is None:
        return False
    places = (place_of(folder) / spec.name for folder in (range_plan.written, range_plan.published))
    # The size is enough here: before a shard is published, its whole content is verified.
    return any(place.exists() and place.stat().st_size == result.bytes for place in places)


def _remove_torn(plan_path: Place, range_plan: RangePlan, spec: ShardSpec) -> None:
    """Remove a shard that was written completely, and whose file has other content since then."""
    result, path = load_result(plan_path, spec.name), place_of(range_plan.written) / spec.name
    # Without a result, `write_new` compares the file with the new one instead.
    if result is not None and path.exists():
        remove_torn(path, result)


def _rows(range_plan: RangePlan, file: IO[bytes]) -> Iterator[bytes]:
    """Yield all rows of a plan file whose first line was read."""
    return merged_lines(read_pieces(file)) if range_plan.format > 1 else iter(file)


def _lines(rows: Iterator[bytes], specs: Sequence[ShardSpec], finished: Collection[ShardSpec]) -> Iterator[bytes]:
    """Yield the rows of the shards that are not finished."""
    for spec in specs:
        lines = islice(rows, spec.images)
        if spec in finished:
            deque(lines, maxlen=0)  # Skip to the rows of the next shard.
        else:
            yield from lines


class _ShardWriter:
    """Writes the shards of a range one after another."""

    def __init__(self, range_plan: RangePlan) -> None:
        self._folder = place_of(range_plan.written)
        self._origin = range_plan.origin
        self._examine = Examiner(range_plan.rules).examine
        self._encode = ImageEncoder(range_plan.records, range_plan.labels, range_plan.texts).encode

    def write(self, spec: ShardSpec, images: Iterable[ReadImage], advance: Advance) -> WrittenShard:
        """Write some images as one shard. The file is complete or absent."""
        path, sums = self._folder / spec.name, _Sums()
        # The shard is synced, because the commit relies on it after a power loss.
        with storage.write_new(path, synced=True) as file:
            records = writer_of(path, file)
            for row, raw in images:
                self._add(row, raw, records, sums)
                advance(1)
            records.close()
        return WrittenShard(sums.result(spec, records), bytes(sums.hashes))

    def _add(self, row: RawImage, raw: bytes | None, records: Writer, sums: "_Sums") -> None:
        if raw is None:
            sums.reject(row, why_unread(row, self._origin) or ABSENT)
            return
        if google_crc32c.value(raw) != row.crc32c:
            # Going on would give this version other bytes than its fingerprint promises.
            place = place_of_key(self._origin, row.key)
            raise SourceError(f"{place} changed after it was listed: run again to make a new version")
        image = self._examine(raw, [Box(*box) for box in row.boxes] if row.boxes else ())
        if isinstance(image, Rejection):
            sums.reject(row, image)
        else:
            # `ImageEncoder` remembers parts of records by their labels, so these must be hashable.
            labels, encoded = tuple(row.labels), image.encoded
            before = self._encode(image, labels, key_bytes(row.key))
            # The checksum of an unchanged image is known already, so its bytes are not read again.
            records.write(before, encoded, row.crc32c if encoded is raw else google_crc32c.value(encoded))
            sums.add(row.key, labels, image)


class _Sums:
    """Counts and hashes of the images of one shard."""

    def __init__(self) -> None:
        self.hashes = bytearray()
        self._kinds: Counter[tuple[tuple[str, ...], str, str]] = Counter()
        """Number of images by labels, suffix and format of the source file."""
        self._statistics = Statistics()
        self._rejected: list[dict[str, str]] = []
        self._perceptual_hashes: list[tuple[str, int]] = []
        self._profiles: Counter[str] = Counter()

    def add(self, key: str, labels: tuple[str, ...], image: UsableImage) -> None:
        encoded, _, height, width, _, source_format, brightness, perceptual_hash, profile = image
        self.hashes += content_hash(encoded)
        self._kinds[labels, key.rpartition(".")[2], source_format] += 1
        self._statistics.add(height, width, len(encoded), brightness)
        if perceptual_hash is not None:
            self._perceptual_hashes.append((key, perceptual_hash))
        if profile:
            self._profiles[profile] += 1

    def reject(self, row: RawImage, rejection: Rejection) -> None:
        self._rejected.append({"path": row.key, "reason": rejection.reason, "advice": rejection.advice})

    def result(self, spec: ShardSpec, records: Writer) -> ShardResult:
        classes: Counter[str] = Counter()
        for (labels, *_), count in self._kinds.items():
            classes.update(dict.fromkeys(labels, count))
        return ShardResult(
            name=spec.name,
            split=spec.split,
            examples=self._kinds.total(),
            bytes=records.size,
            crc32c=f"{records.crc32c:08x}",
            ends=records.ends.hex(),
            hashes_crc32c=f"{google_crc32c.value(bytes(self.hashes)):08x}",
            classes=dict(classes),
            rejected=self._rejected,
            misnamed=sum(count for (_, suffix, form), count in self._kinds.items() if is_misnamed(suffix, form)),
            statistics=self._statistics.to_json(),
            perceptual_hashes=self._perceptual_hashes,
            profiles=dict(self._profiles),
        )
