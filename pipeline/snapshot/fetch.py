"""Copy images of a bucket into the workspace, if the workspace is local.

Copies are stored by content, so that a second run, another number of shards or a renamed folder fetches nothing again.
"""

import logging
from collections.abc import Iterable

from pipeline.snapshot.raw_example import Origin, RawExample
from pipeline.snapshot.raw_reader import READERS, RawReader
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import Show, progress

_log = logging.getLogger(__name__)


def fetch_images(
    rows: Iterable[RawExample], origin: Origin, *, count: int, total_bytes: int, show: Show = progress
) -> int:
    """Fetch `count` images that are in a bucket into the cache. Returns how many were not there yet.

    Raises SourceError if one changed or vanished after it was listed.
    """
    if not origin.cache or not origin.remote:
        return 0
    reader = RawReader(origin)
    fetched = 0
    with show("fetch", count, total_bytes=total_bytes) as advance:
        results = ordered_map(
            lambda row: (row, reader.fetch_to_cache(row)),
            rows,
            READERS,
            # `ordered_map` bounds the bytes in memory. MISSING is -1.
            size_of=lambda row: max(row.size, 0),
        )
        for row, is_new in results:
            fetched += is_new
            advance(1, max(row.size, 0))
    _log.info("%d images fetched; %d were already in %s", fetched, count - fetched, origin.cache)
    return fetched
