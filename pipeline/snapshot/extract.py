"""Source -> snapshot: a sorted, frozen list of the raw images with labels, size and CRC32C.

Several tasks can list a large source, each a range of its keys. The snapshot is the sum of their listings.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from pipeline import storage
from pipeline.config.example_kinds import IMAGES
from pipeline.snapshot.checksums import known_rows, rows_with_checksums
from pipeline.snapshot.groups import with_groups
from pipeline.snapshot.listing import Listing, changed_source, require_images, write_snapshot
from pipeline.snapshot.options import ExtractOptions
from pipeline.snapshot.part import PART_LIMITS, blocks_of, rows_of, write_parts
from pipeline.snapshot.raw_example import RawExample
from pipeline.snapshot.raw_reader import fetch_images, unfinished_copies
from pipeline.sources import Found, Listed, Skipped
from pipeline.sources.detection import find_source, images_of, layout_of, name_of
from pipeline.sources.kept_files import remove_unused
from pipeline.sources.key_range import EVERYTHING, KeyRange
from pipeline.storage import Place, place_of
from pipeline.system.progress import Advance, Show, progress
from pipeline.system.wording import format_size

_log = logging.getLogger(__name__)


def list_source(options: ExtractOptions) -> Place:
    """List the source in this process, and return the file of the snapshot.

    Raises:
        SourceError: If the source has no image of a class, or changes meanwhile.
    """
    sweep(options)
    started_ns = time.time_ns()
    return join_listings(options, started_ns, [list_range(options, EVERYTHING, started_ns)])


def sweep(options: ExtractOptions) -> None:
    """Remove what killed processes left in the folders of snapshots and copies, once for all ranges.

    Also remove what listings kept, if none has used it for a month.
    """
    storage.sweep(options.folder)
    storage.sweep(place_of(options.source.copies))
    remove_unused(place_of(options.source.copies))
    if cache := options.origin.cache:
        storage.sweep(unfinished_copies(Path(cache)))


def list_range(options: ExtractOptions, keys: KeyRange, started_ns: int, show: Show = progress) -> Listing:
    """List the images in a range of keys, and write their rows as parts. Memory does not grow with the images.

    New images on a disk are read once for their CRC32C. A bucket knows it; new images of a bucket are copied into a
    local workspace.

    Args:
        options: The options of all ranges.
        keys: The range.
        started_ns: When the first listing of a range began, or the source was divided, in Unix nanoseconds. What was
            listed before is not read again.
        show: Shows the progress.

    Raises:
        SourceError: If an image cannot be read, or changes meanwhile.
    """
    # A listing of everything is not joined with another one.
    is_range = keys != EVERYTHING
    layout = layout_of(options.place, options.source) if is_range else ""
    listing = Listing(layout, remote=storage.is_bucket(options.source_uri))
    with show("extract", 0, "images") as advance:
        rows = chain.from_iterable(_rows(options, keys, started_ns, listing, advance))
        listing.parts += write_parts(blocks_of(rows), options.folder, PART_LIMITS)
    if is_range and (now := layout_of(options.place, options.source)) != layout:
        raise changed_source(layout, now)
    # After a power loss, a snapshot or a listing must not name parts that are lost.
    storage.sync_folder(options.folder)
    if listing.copied and listing.copied == listing.listed:  # Nothing is read from the source any more.
        listing.remote = storage.is_bucket(options.source.copies)
    # An image that cannot be fetched fails this task, and no later one.
    origin = replace(options.origin, remote=listing.remote)
    fetch_images(rows_of(listing.parts), origin, count=listing.listed, total_bytes=listing.bytes, show=show)
    return listing


def join_listings(options: ExtractOptions, started_ns: int, listings: Iterable[Listing]) -> Place:
    """Write the snapshot of the whole source, and return its file. No row is read.

    Args:
        options: The options with which all ranges were listed.
        started_ns: When the first listing began, in Unix nanoseconds.
        listings: The listings of all ranges. They must be in the order of their keys.

    Raises:
        SourceError: If the source has no image of a class, or changed between the listings.
    """
    rest = iter(listings)
    total = next(rest)
    for listing in rest:
        total.merge(listing)
    require_images(total, options.source_uri, options.origin.root)
    path = write_snapshot(
        total,
        options.folder,
        source_uri=options.source_uri,
        origin=replace(options.origin, remote=total.remote),
        kind=IMAGES,
        # With `auto`, the options do not name the kind of source.
        source_kind=name_of(find_source(options.place, options.source.kind)),
        started_ns=started_ns,
    )
    _log_listing(options, total, path)
    return path


def _log_listing(options: ExtractOptions, listing: Listing, snapshot: Place) -> None:
    _log.info("%d images of %d classes, %s", listing.listed, len(listing.classes), format_size(listing.bytes))
    if options.group_pattern and not listing.grouped:
        _log.warning("group_pattern=%r matches no file name, so there are no groups", options.group_pattern)
    if listing.known:
        _log.info("%d of them are unchanged since the last snapshot and were not read again", listing.known)
    listing.log_skipped(snapshot)


def _rows(
    options: ExtractOptions, keys: KeyRange, started_ns: int, listing: Listing, advance: Advance
) -> Iterator[list[RawExample]]:
    """Yield the images in a range with checksums, in order, several at a time. Add them to the sums of `listing`."""
    images = _only_images(images_of(options.place, options.source, keys), listing)
    if options.group_pattern:
        images = with_groups(images, options.group_pattern)
    for rows in rows_with_checksums(images, known_rows(options, keys, started_ns), options.origin, listing):
        listing.add(rows)
        yield rows
        advance(len(rows))
    if keys == EVERYTHING:  # Checked before the last part is complete, so that a small refused source leaves no file.
        require_images(listing, options.source_uri, options.origin.root)


def _only_images(items: Iterable[Found], listing: Listing) -> Iterator[Listed]:
    for item in items:
        if isinstance(item, Listed):
            yield item
        elif isinstance(item, Skipped):
            listing.skipped.add(item)
        else:
            listing.stated_labels, listing.texts = list(item.names), dict(item.texts)
