"""Source -> snapshot: a sorted, frozen list of the raw images with labels, size and CRC32C."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import google_crc32c

from pipeline import storage
from pipeline.config import Settings
from pipeline.errors import SettingsError, SourceError
from pipeline.images.rejection import why_unread
from pipeline.preflight import preflight
from pipeline.snapshot.fetch import fetch_images
from pipeline.snapshot.fingerprint import Fingerprint
from pipeline.snapshot.groups import with_groups
from pipeline.snapshot.raw_image import Origin, RawImage, content_of, from_line, key_bytes, read_raw, to_line
from pipeline.snapshot.skipped import SkippedFiles, suffix_counts
from pipeline.snapshot.snapshot import Snapshot, columns_path, load_snapshot, save_snapshot, skipped_path, to_columns
from pipeline.sources import MISSING, Classes, Found, Listed, Skipped
from pipeline.sources.detection import find_source, images_of, root_of
from pipeline.storage import Place, place_of
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress
from pipeline.workspace import place_hash, snapshots_folder

READERS = 8
"""This many threads read files for their checksums."""
CHUNK = 256
"""A thread reads this many images one after another before it takes the next ones."""
CLOCK_SLACK_NS = 2_000_000_000
"""A file may change twice within one tick of the clock of its file system, and then looks unchanged."""
_log = logging.getLogger(__name__)


class _Pending(NamedTuple):
    """A listed image, and its checksum if the last snapshot of the same file has it."""

    image: Listed
    crc32c: int | None


def take_snapshot(settings: Settings) -> Place:
    """List the source, write the snapshot, and return its file.

    New images on a disk are read once for their CRC32C. A bucket knows it; new images of a bucket are copied into a
    local workspace. Raises SourceError if the source has no image of a class.
    """
    preflight(settings)
    folder = snapshots_folder(settings)
    storage.sweep(folder)
    with ExitStack() as stack:
        rows = stack.enter_context(storage.temporary_for(folder / "snapshot.jsonl"))
        columns = stack.enter_context(storage.temporary_for(folder / "snapshot.columns"))
        skipped = stack.enter_context(storage.temporary_for(folder / "snapshot.skipped"))
        with open(rows, "wb") as rows_file, open(columns, "wb") as columns_file, open(skipped, "wb") as skipped_file:
            sums = _Sums(settings, SkippedFiles(skipped_file))
            _write_rows(settings, sums, rows_file, columns_file)
        sums.require_images()
        # The names of the files contain the fingerprint, which is known only after the last row.
        snapshot = sums.snapshot(folder)
        # The description (.json) is written last, by `save_snapshot`: if it exists, so do the other files.
        storage.move_whole(skipped, skipped_path(storage.place_of(snapshot.rows)))
        storage.move_whole(columns, columns_path(storage.place_of(snapshot.rows)))
        storage.move_whole(rows, storage.place_of(snapshot.rows))
    sums.log(skipped_path(storage.place_of(snapshot.rows)))
    # This comes before the description is saved: an image that cannot be fetched fails `extract`, and no later task.
    fetch_images(snapshot)
    return save_snapshot(snapshot)


def _write_rows(settings: Settings, sums: "_Sums", rows_file: IO[bytes], columns_file: IO[bytes]) -> None:
    offset = 0
    for row in _rows(settings, sums):
        content = content_of(row)
        columns_file.write(to_columns(row, offset, sums.add(row, content)))
        offset += rows_file.write(to_line(content, row))


class _Sums:
    """Sums over the rows of a snapshot."""

    def __init__(self, settings: Settings, skipped: SkippedFiles) -> None:
        self._settings = settings
        self.skipped = skipped
        self._started_ns = time.time_ns()
        self._fingerprint = Fingerprint()
        self._label_ids: dict[str, int] = {}
        self._stated = Classes((), {})
        self._classes: Counter[str] = Counter()
        self._multi_label = self._has_boxes = False
        self._box_labels: set[str] = set()
        self._bytes = self._grouped = 0
        self._remote = storage.is_bucket(settings.source_uri)
        self._listed = self._missing = self.known = 0
        self._first = ""

    def state(self, classes: Classes) -> None:
        self._stated = classes
        self._label_ids = {name: number for number, name in enumerate(classes.names)}

    def add(self, row: RawImage, content: bytes) -> int:
        """Add one row. Returns the number of its first label."""
        self._fingerprint.add(content)
        self._first = self._first or row.key
        self._listed += 1
        self._missing += row.size == MISSING
        # MISSING is -1.
        self._bytes += max(row.size, 0)
        self._grouped += bool(row.group)
        # A local list may name images in a bucket.
        self._remote |= storage.is_bucket(row.key)
        self._classes.update(row.labels)
        self._multi_label |= len(row.labels) != 1
        self._has_boxes |= bool(row.boxes)
        self._box_labels.update(box.label for box in row.boxes if box.label)
        for label in row.labels:
            self._label_ids.setdefault(label, len(self._label_ids))
        return self._label_ids[row.labels[0]]

    def require_images(self) -> None:
        source_uri = self._settings.source_uri
        if not self._listed:
            others = "; ".join(f"{count} {reason}" for reason, count in self.skipped.reasons.items())
            if suffixes := self.skipped.suffixes:
                others += f": {suffix_counts(suffixes)}"
            raise SourceError(
                f"no images under source_uri {source_uri!r} ({others or 'it is empty'}): it must have one sub-folder "
                "for each class, with JPEG or PNG files, or be a list of images"
            )
        if self._missing == self._listed:
            raise SourceError(
                f"none of the {self._listed} files that {source_uri!r} lists exists under "
                f"{origin_of(self._settings).root}; the first is {self._first!r}: check the paths: they are relative "
                "to the folder of the list"
            )
        if len(self._classes) < 2:
            raise SourceError(
                f"only one class, {next(iter(self._classes))!r}, under source_uri {source_uri!r}: add images of at "
                "least one more class"
            )

    def snapshot(self, folder: Place) -> Snapshot:
        source_uri = self._settings.source_uri
        fingerprint = self._fingerprint.hexdigest()
        return Snapshot(
            source_uri=source_uri,
            origin=replace(origin_of(self._settings), remote=self._remote),
            # With `auto`, the settings do not name the kind.
            kind=find_source(self._settings.source, self._settings.source_kind).__name__.rpartition(".")[2],
            rows=str(folder / f"{fingerprint}-{place_hash(source_uri)}.jsonl"),
            started_ns=self._started_ns,
            fingerprint=fingerprint,
            listed=self._listed,
            bytes=self._bytes,
            labels=list(self._label_ids),
            stated_labels=list(self._stated.names),
            texts=dict(self._stated.texts),
            classes=dict(sorted(self._classes.items())),
            multi_label=self._multi_label,
            has_boxes=self._has_boxes,
            box_labels=sorted(self._box_labels - set(self._label_ids)),
            skipped=self.skipped.reasons,
            skipped_suffixes=self.skipped.suffixes,
        )

    def log(self, skipped_names: Place) -> None:
        _log.info("%d images of %d classes, %.1f MB", self._listed, len(self._classes), self._bytes / 1e6)
        if self._settings.group_pattern and not self._grouped:
            _log.warning("group_pattern=%r matches no file name, so there are no groups", self._settings.group_pattern)
        if self.known:
            _log.info("%d of them are unchanged since the last snapshot and were not read again", self.known)
        for reason, count in self.skipped.reasons.items():
            _log.warning("files skipped: %d %s", count, reason)
        if self.skipped.reasons:
            _log.warning("%s names them", skipped_names)


def _rows(settings: Settings, sums: _Sums) -> Iterator[RawImage]:
    """Yield every listed image with its checksum, in order. Skipped files are counted."""
    origin = origin_of(settings)
    images = _only_images(images_of(settings), sums)
    if settings.group_pattern:
        images = with_groups(images, settings.group_pattern)
    pending = _look_up(images, _last_rows(settings), sums)
    with progress("extract", 0) as advance:
        chunks = ordered_map(
            lambda chunk: [_row(origin, each) for each in chunk], _chunks(pending), READERS, size_of=_largest
        )
        for rows in chunks:
            yield from rows
            advance(len(rows))


def _chunks(pending: Iterator[_Pending]) -> Iterator[list[_Pending]]:
    while chunk := list(islice(pending, CHUNK)):
        yield chunk


def _largest(chunk: Sequence[_Pending]) -> int:
    """Return the bytes of memory that reading a chunk takes: those of its largest image that is read."""
    return max(0, *(0 if pending.crc32c else pending.image.size for pending in chunk))


def _only_images(items: Iterable[Found], sums: _Sums) -> Iterator[Listed]:
    for item in items:
        if isinstance(item, Listed):
            yield item
        elif isinstance(item, Skipped):
            sums.skipped.add(item)
        else:
            sums.state(item)


def _look_up(images: Iterable[Listed], known: Iterator[RawImage], sums: _Sums) -> Iterator[_Pending]:
    """Yield each image with its checksum from the last snapshot. Both are ordered by key, so no row stays in memory."""
    last = next(known, None)
    for image in images:
        key = key_bytes(image.key)
        # Skip the images that have disappeared since the last snapshot.
        while last and key_bytes(last.key) < key:
            last = next(known, None)
        is_same = last and last.key == image.key and (last.size, last.generation) == (image.size, image.generation)
        sums.known += bool(is_same)
        # The generation of a file is the time of its last change, which a program cannot set.
        yield _Pending(image, last.crc32c if last and is_same else image.crc32c)


def _last_rows(settings: Settings) -> Iterator[RawImage]:
    """Yield the rows of the last snapshot of this source whose files did not change shortly before it.

    A bucket needs none, because it knows the checksums.
    """
    if storage.is_bucket(settings.source_uri):
        return
    # The name of a snapshot ends in a hash of its source: another source may have the same keys.
    place = place_hash(settings.source_uri)
    snapshots: Iterable[Place] = snapshots_folder(settings).glob(f"*-{place}.json")
    newest = max(snapshots, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return
    try:
        last = load_snapshot(newest)
    except SettingsError:  # Another release wrote it. Everything is read again.
        return
    with storage.place_of(last.rows).open("rb") as rows:
        for row in map(from_line, rows):
            # A file that changed shortly before the listing may have changed again afterwards, within the same tick.
            if row.size != MISSING and row.generation < last.started_ns - CLOCK_SLACK_NS:
                yield row


def _row(origin: Origin, pending: _Pending) -> RawImage:
    image, crc32c = pending
    # The image is rejected without being read. 0 stands for no checksum.
    if why_unread(image.key, image.size, origin.max_file_bytes):
        crc32c = 0
    elif not crc32c:
        encoded = read_raw(origin.root, image.key, image.size)
        # The size is part of the fingerprint. With the checksum of other bytes, the row would describe no file.
        if len(encoded) != image.size:
            path = Path(origin.root) / image.key
            raise SourceError(f"{path} changed while it was being listed: run again when nothing changes the source")
        crc32c = google_crc32c.value(encoded)
    return RawImage(
        image.key, image.labels, image.split, image.size, crc32c, image.group, image.boxes, image.generation, image.md5
    )


def origin_of(settings: Settings) -> Origin:
    """Return where raw images are read: at the source, or from copies of a bucket if the workspace is local."""
    cache = place_of(settings.workspace) / "raw"
    return Origin(
        root=str(root_of(settings.source)),
        user_project=settings.user_project,
        cache=str(cache) if isinstance(cache, Path) else "",
        max_file_bytes=int(settings.max_file_megabytes * 1e6),
    )
