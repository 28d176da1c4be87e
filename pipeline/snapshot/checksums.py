"""The checksum of each listed image: from a bucket, from an earlier listing, or from reading the file."""

import heapq
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from pipeline import storage
from pipeline.config.workspace import RANGES, place_hash
from pipeline.errors import BadInput, FileSystemError, SourceError
from pipeline.images.rejection import why_unread
from pipeline.snapshot.listing import Listing, divisions_of, parts_listed_in, warn_of_unusable
from pipeline.snapshot.options import ExtractOptions
from pipeline.snapshot.part import Part, rows_of
from pipeline.snapshot.raw_example import LocalImages, Origin, RawExample
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.sources import MISSING, UNMEASURED, Listed
from pipeline.sources.key_range import KeyRange, bytes_of
from pipeline.storage import Place
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import map_in_threads_if_slow

READERS = 8
"""This many threads read files for their checksums, if their file system is slow."""
CHUNK = 64
"""A thread reads this many images one after another before it takes the next ones."""
MANY_WAITS = 16
"""A file system is slow if a thread waits this often while it reads CHUNK images."""
CLOCK_SLACK_NS = 2_000_000_000
"""A file may change twice within one tick of the clock of its file system, and then looks unchanged."""
_Pair = tuple[Listed, Sequence[RawExample]]
"""An image, and what earlier listings found at its key."""
_log = logging.getLogger(__name__)


def rows_with_checksums(
    images: Iterable[Listed], known: Iterator[RawExample], origin: Origin, listing: Listing
) -> Iterator[list[RawExample]]:
    """Yield images as rows with checksums, several at a time and in order.

    The files are read whose checksums are not among the `known` rows. `listing.known` counts the other files of a disk.

    Raises SourceError if an image cannot be read, or changes meanwhile.
    """
    files = LocalImages(origin.root)
    pairs = _with_versions(images, known)
    chunks = iter(lambda: list(islice(pairs, CHUNK)), [])
    read = partial(_rows, origin=origin, files=files)
    for rows, count in map_in_threads_if_slow(read, chunks, READERS, MANY_WAITS):
        listing.known += count
        yield rows


def _rows(pairs: Iterable[_Pair], origin: Origin, files: LocalImages) -> tuple[list[RawExample], int]:
    """Return images as rows with checksums, and how many of them are known."""
    rows, count = [], 0
    for image, versions in pairs:
        known = _if_unchanged(image, versions, files) if versions else None
        rows.append(_row(known or image, origin, files))
        count += known is not None
    return rows, count


def _if_unchanged(image: Listed, versions: Iterable[RawExample], files: LocalImages) -> Listed | None:
    """Return an image with its known checksum; None if none of its known versions is that of the file."""
    key, labels, split, size, generation, crc32c, md5, group, boxes, extent, _ = image
    if size == UNMEASURED:
        size, generation, *_ = files.measure(key)
    for version in versions:
        # The generation of a file is the time of its last change, which a program cannot set.
        if (version.size, version.generation) == (size, generation):
            checksum = version.crc32c if crc32c is None else crc32c
            # `_replace` would take three times as long.
            return Listed(key, labels, split, size, generation, checksum, md5, group, boxes, extent)
    return None


def _row(image: Listed, origin: Origin, files: LocalImages) -> RawExample:
    key, labels, split, size, generation, crc32c, md5, group, boxes, extent, _ = image
    if crc32c is None and not why_unread(size, origin.max_file_bytes):
        # An unmeasured file is no link, so a link in its place may lead to what is not allowed.
        found = files.check(key, origin.max_file_bytes, size != UNMEASURED)
        if size == UNMEASURED:
            size, generation = found.size, found.generation
        # The size is part of the fingerprint. With the checksum of other bytes, the row would describe no file.
        if not (found.size == found.read == size or why_unread(size, origin.max_file_bytes)):
            path = Path(origin.root) / key
            raise SourceError(f"{path} changed while it was being listed: run again when nothing changes the source")
        crc32c = found.crc32c
    if why_unread(size, origin.max_file_bytes):
        crc32c = None
    # Without names, because a call with twelve of them takes half as long as reading a small image.
    return RawExample(key, labels, split, size, crc32c, group, boxes, generation, md5, (), extent or ())


def _with_versions(images: Iterable[Listed], known: Iterator[RawExample]) -> Iterator[_Pair]:
    """Yield each image with its known versions. Both are ordered by key, so no row stays in memory."""
    rest = iter(images)
    last = next(known, None)
    while last and (image := next(rest, None)):
        versions: list[RawExample] = []
        if last.key != image.key:
            key = bytes_of(image.key)
            # Skip the images that have disappeared since the last snapshot.
            while last and bytes_of(last.key) < key:
                last = next(known, None)
        while last and last.key == image.key:
            versions.append(last)
            last = next(known, None)
        yield image, versions
    yield from ((image, ()) for image in rest)


def known_rows(options: ExtractOptions, keys: KeyRange, started_ns: int) -> Iterator[RawExample]:
    """Yield the rows of earlier listings in a range, except rows of files that changed shortly before their listing.

    They come from the last snapshot of this source, and from the ranges that a killed `extract` has listed since then,
    before this one began at `started_ns`. A bucket needs none, because it knows the checksums.
    """
    if storage.is_bucket(options.source_uri):
        return
    rows = [_rows_at_rest(parts, keys, listed_ns) for parts, listed_ns in _known_parts(options, started_ns)]
    yield from heapq.merge(*rows, key=lambda row: bytes_of(row.key))


def _known_parts(options: ExtractOptions, before_ns: int) -> Iterator[tuple[list[Part], int]]:
    """Yield parts that were listed before, and when their listing began, in Unix nanoseconds."""
    newest_ns, of_source = 0, place_hash(options.source_uri)
    # The name of a snapshot ends in a hash of its source: another source may have the same keys.
    snapshots: Iterable[Place] = options.folder.glob(f"*-{of_source}.json")
    # Another run may remove one meanwhile.
    if newest := max(snapshots, key=lambda path: unless_missing(lambda: path.stat().st_mtime_ns) or 0, default=None):
        try:
            last = load_snapshot(newest)
        except (BadInput, FileNotFoundError):
            warn_of_unusable(newest)
        else:
            newest_ns = last.started_ns
            yield last.parts, newest_ns
    # The snapshot has the rows of all earlier ones. The other ranges of this listing have no key of this range.
    for started_ns, folder in divisions_of(options.folder / RANGES, of_source):
        if newest_ns < started_ns < before_ns:
            yield sorted(parts_listed_in(folder), key=lambda part: bytes_of(part.first)), started_ns


def _rows_at_rest(parts: Iterable[Part], keys: KeyRange, started_ns: int) -> Iterator[RawExample]:
    for part in parts:
        if not keys.overlaps(part.first, part.last):
            continue
        try:
            for row in rows_of([part]):
                # A file that changed shortly before the listing may have changed again afterwards, within one tick.
                if row.size != MISSING and row.generation < started_ns - CLOCK_SLACK_NS:
                    yield row
        except FileSystemError:  # A file of the part was removed, or is damaged. The rows before match their checksums.
            _log.warning(
                "%s, which an earlier listing wrote, is missing or damaged: the images from %r to %r are read again",
                part.rows_and_columns,
                part.first,
                part.last,
            )
