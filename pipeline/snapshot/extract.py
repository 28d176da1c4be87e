"""Source -> snapshot: a sorted, frozen list of the raw images with labels, size and CRC32C.

Several tasks can list a large source, each a range of its keys. The snapshot is the sum of their listings.
"""

import heapq
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from pipeline import storage
from pipeline.config import Settings
from pipeline.errors import BadInput, FileSystemError, SourceError
from pipeline.example_kinds import IMAGES
from pipeline.images.rejection import why_unread
from pipeline.preflight import preflight
from pipeline.snapshot.fetch import fetch_images
from pipeline.snapshot.groups import with_groups
from pipeline.snapshot.listing import RANGES, Listing, changed_source, listings_of, merged, snapshot_of
from pipeline.snapshot.part import PART_LIMITS, Part, PartLimits, blocks_of, rows_of, write_parts
from pipeline.snapshot.raw_example import Origin, RawExample, key_bytes, read_raw
from pipeline.snapshot.skipped import suffix_counts
from pipeline.snapshot.snapshot import Snapshot, load_snapshot, save_snapshot, skipped_path
from pipeline.sources import MISSING, Found, Listed, Skipped
from pipeline.sources.detection import find_source, images_of, layout_of, root_of
from pipeline.sources.key_range import EVERYTHING, KeyRange
from pipeline.storage import Place, place_of
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import Advance, Show, progress
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


def take_snapshot(
    settings: Settings, ranges: Sequence[KeyRange] = (EVERYTHING,), limits: PartLimits = PART_LIMITS
) -> Place:
    """List the source in this process, one range of keys after another, and return the file of the snapshot.

    Raises:
        SourceError: If the source has no image of a class, or changes meanwhile.
    """
    preflight(settings)
    return list_source(settings, ranges, limits)


def list_source(
    settings: Settings, ranges: Sequence[KeyRange] = (EVERYTHING,), limits: PartLimits = PART_LIMITS
) -> Place:
    """Do the same as `take_snapshot` with settings that were checked."""
    sweep(settings)
    started_ns = time.time_ns()
    return join_listings(settings, started_ns, (list_range(settings, keys, limits) for keys in ranges))


def sweep(settings: Settings) -> None:
    """Remove what killed processes left in the folders of snapshots and copies, once for all ranges."""
    storage.sweep(snapshots_folder(settings))
    if cache := origin_of(settings).cache:
        storage.sweep(Path(cache))


def list_range(settings: Settings, keys: KeyRange, limits: PartLimits = PART_LIMITS, show: Show = progress) -> Listing:
    """List the images in a range of keys, and write their rows as parts. Memory does not grow with the images.

    New images on a disk are read once for their CRC32C. A bucket knows it; new images of a bucket are copied into a
    local workspace.

    Raises:
        SourceError: If an image cannot be read, or changes meanwhile.
    """
    folder = snapshots_folder(settings)
    # A listing of everything is not joined with another one.
    is_range = keys != EVERYTHING
    listing = Listing(layout_of(settings) if is_range else "", remote=storage.is_bucket(settings.source_uri))
    with show("extract", 0) as advance:
        listing.parts += write_parts(blocks_of(_rows(settings, keys, listing, advance)), folder, limits)
    if is_range and (now := layout_of(settings)) != listing.layout:
        raise changed_source(listing.layout, now)
    # After a power loss, a snapshot or a listing must not name parts that are lost.
    storage.sync_folder(folder)
    # An image that cannot be fetched fails this task, and no later one.
    origin = _origin_of(settings, listing)
    fetch_images(rows_of(listing.parts), origin, count=listing.listed, total_bytes=listing.bytes, show=show)
    return listing


def join_listings(settings: Settings, started_ns: int, listings: Iterable[Listing]) -> Place:
    """Write the snapshot of the whole source, and return its file. No row is read.

    Args:
        settings: The settings with which all ranges were listed.
        started_ns: When the first listing began, in Unix nanoseconds.
        listings: The listings of all ranges, in the order of their keys.

    Raises:
        SourceError: If the source has no image of a class, or changed between the listings.
    """
    total = merged(listings)
    _require_images(settings, total)
    snapshot = _snapshot(settings, started_ns, total)
    path = snapshots_folder(settings) / f"{snapshot.fingerprint}-{place_hash(settings.source_uri)}.json"
    with storage.write_whole(skipped_path(path), synced=True) as file:
        file.writelines(total.skipped.lines())
    _log_listing(settings, total, skipped_path(path))
    # The description is written last: if it exists, so do the other files.
    return save_snapshot(snapshot, path)


def _require_images(settings: Settings, listing: Listing) -> None:
    source_uri = settings.source_uri
    if not listing.listed:
        others = "; ".join(f"{count} {reason}" for reason, count in listing.skipped.reasons_in_order().items())
        if suffixes := listing.skipped.suffixes_in_order():
            others += f": {suffix_counts(suffixes)}"
        raise SourceError(
            f"no images under source_uri {source_uri!r} ({others or 'it is empty'}): it must have one sub-folder for "
            "each class, with JPEG or PNG files, or be a list of images"
        )
    if listing.missing == listing.listed:
        raise SourceError(
            f"none of the {listing.listed} files that {source_uri!r} lists exists under {origin_of(settings).root}; "
            f"the first is {listing.first!r}: check the paths: they are relative to the folder of the list"
        )
    if len(listing.classes) < 2:
        raise SourceError(
            f"only one class, {next(iter(listing.classes))!r}, under source_uri {source_uri!r}: add images of at least "
            "one more class"
        )


def _snapshot(settings: Settings, started_ns: int, listing: Listing) -> Snapshot:
    return snapshot_of(
        listing,
        source_uri=settings.source_uri,
        origin=_origin_of(settings, listing),
        kind=IMAGES,
        # With `auto`, the settings do not name the kind of source.
        source_kind=find_source(settings.source, settings.source_kind).__name__.rpartition(".")[2],
        started_ns=started_ns,
    )


def _log_listing(settings: Settings, listing: Listing, skipped_names: Place) -> None:
    _log.info("%d images of %d classes, %.1f MB", listing.listed, len(listing.classes), listing.bytes / 1e6)
    if settings.group_pattern and not listing.grouped:
        _log.warning("group_pattern=%r matches no file name, so there are no groups", settings.group_pattern)
    if listing.known:
        _log.info("%d of them are unchanged since the last snapshot and were not read again", listing.known)
    for reason, count in listing.skipped.reasons_in_order().items():
        _log.warning("files skipped: %d %s", count, reason)
    if listing.skipped.reasons:
        _log.warning("%s names them", skipped_names)


def _rows(settings: Settings, keys: KeyRange, listing: Listing, advance: Advance) -> Iterator[RawExample]:
    """Yield every image in a range with its checksum, in order, and add it to the sums of `listing`."""
    origin = origin_of(settings)
    images = _only_images(images_of(settings, keys), listing)
    if settings.group_pattern:
        images = with_groups(images, settings.group_pattern)
    pending = _look_up(images, _last_rows(settings, keys), listing)
    chunks = ordered_map(
        lambda chunk: [_row(origin, each) for each in chunk], _chunks(pending), READERS, size_of=_largest
    )
    for rows in chunks:
        for row in rows:
            listing.add(row)
            yield row
        advance(len(rows))
    if keys == EVERYTHING:  # Checked before the last part is complete, so that a small refused source leaves no file.
        _require_images(settings, listing)


def _chunks(pending: Iterator[_Pending]) -> Iterator[list[_Pending]]:
    while chunk := list(islice(pending, CHUNK)):
        yield chunk


def _largest(chunk: Sequence[_Pending]) -> int:
    """Return the bytes of memory that reading a chunk takes: those of its largest image that is read."""
    return max(0, *(0 if pending.crc32c else pending.image.size for pending in chunk))


def _only_images(items: Iterable[Found], listing: Listing) -> Iterator[Listed]:
    for item in items:
        if isinstance(item, Listed):
            yield item
        elif isinstance(item, Skipped):
            listing.skipped.add(item)
        else:
            listing.state(item)


def _look_up(images: Iterable[Listed], known: Iterator[RawExample], listing: Listing) -> Iterator[_Pending]:
    """Yield each image with its checksum from the last snapshot. Both are ordered by key, so no row stays in memory."""
    last = next(known, None)
    for image in images:
        key = key_bytes(image.key)
        # The generation of a file is the time of its last change, which a program cannot set.
        wanted = (image.key, image.size, image.generation)
        # Skip the images that have disappeared since the last snapshot, and other versions of this image.
        while last and (
            key_bytes(last.key) < key or (last.key == image.key and (last.key, last.size, last.generation) != wanted)
        ):
            last = next(known, None)
        is_same = last is not None and last.key == image.key
        listing.known += is_same
        yield _Pending(image, last.crc32c if last and is_same else image.crc32c)


def _last_rows(settings: Settings, keys: KeyRange) -> Iterator[RawExample]:
    """Yield the rows of earlier listings in a range, except rows of files that changed shortly before their listing.

    They come from the last snapshot of this source, and from the ranges that a killed `extract` has listed since then.
    A bucket needs none, because it knows the checksums.
    """
    if storage.is_bucket(settings.source_uri):
        return
    try:
        rows = [_rows_at_rest(parts, keys, started_ns) for parts, started_ns in _known_parts(settings)]
        yield from heapq.merge(*rows, key=lambda row: key_bytes(row.key))
    except (FileNotFoundError, FileSystemError) as error:  # A file of a part was removed, or is too short.
        _log.warning("the last snapshot cannot be read (%s): reading the remaining files again", error)


def _known_parts(settings: Settings) -> Iterator[tuple[list[Part], int]]:
    """Yield parts that were listed before, and when their listing began, in Unix nanoseconds."""
    folder, place = snapshots_folder(settings), place_hash(settings.source_uri)
    newest_ns = 0
    # The name of a snapshot ends in a hash of its source: another source may have the same keys.
    snapshots: Iterable[Place] = folder.glob(f"*-{place}.json")
    if newest := max(snapshots, key=lambda path: path.stat().st_mtime_ns, default=None):
        with suppress(BadInput):  # It is damaged, or another version of Tenfold wrote it: everything is read again.
            last = load_snapshot(newest)
            newest_ns = last.started_ns
            yield last.parts, newest_ns
    for started_ns, listings in listings_of(folder / RANGES, place):
        if started_ns > newest_ns:
            yield sorted((part for listing in listings for part in listing.parts), key=_first_key), started_ns


def _first_key(part: Part) -> bytes:
    return key_bytes(part.first)


def _rows_at_rest(parts: Iterable[Part], keys: KeyRange, started_ns: int) -> Iterator[RawExample]:
    for row in rows_of(part for part in parts if keys.overlaps(part.first, part.last)):
        # A file that changed shortly before the listing may have changed again afterwards, within the same tick.
        if row.size != MISSING and row.generation < started_ns - CLOCK_SLACK_NS:
            yield row


def _row(origin: Origin, pending: _Pending) -> RawExample:
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
    return RawExample(
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


def _origin_of(settings: Settings, listing: Listing) -> Origin:
    return replace(origin_of(settings), remote=listing.remote)
