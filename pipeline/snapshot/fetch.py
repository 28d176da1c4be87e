"""Copy images of a bucket into the workspace, if the workspace is local.

Copies are stored by content, so that a second run, another number of shards or a renamed folder fetches nothing again.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from pipeline import storage
from pipeline.snapshot.raw_image import RawImage, from_line
from pipeline.snapshot.raw_reader import READERS, RawReader
from pipeline.snapshot.snapshot import Snapshot
from pipeline.storage import place_of
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

_log = logging.getLogger(__name__)


def fetch_images(snapshot: Snapshot) -> int:
    """Fetch all images of a snapshot that are in a bucket into its cache. Returns how many were not there yet.

    Raises SourceError if one changed or vanished after it was listed.
    """
    if not snapshot.origin.cache or not snapshot.origin.remote:
        return 0
    storage.sweep(Path(snapshot.origin.cache))
    reader = RawReader(snapshot.origin)
    fetched = 0
    with progress("fetch", snapshot.listed, total_bytes=snapshot.bytes) as advance:
        results = ordered_map(
            lambda row: (row, reader.fetch_to_cache(row)),
            _rows(snapshot),
            READERS,
            # `ordered_map` bounds the bytes in memory. MISSING is -1.
            size_of=lambda row: max(row.size, 0),
        )
        for row, is_new in results:
            fetched += is_new
            advance(1, max(row.size, 0))
    _log.info("%d images fetched; %d were already in %s", fetched, snapshot.listed - fetched, snapshot.origin.cache)
    return fetched


def _rows(snapshot: Snapshot) -> Iterator[RawImage]:
    with place_of(snapshot.rows).open("rb") as rows:
        yield from map(from_line, rows)
