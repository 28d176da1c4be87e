"""The bytes of raw images, wherever they lie: on disk, in a bucket, or in a bucket with copies in the workspace.

Light to import, like all that a shard task needs: it starts in tenths of a second.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import google_crc32c

from pipeline import storage
from pipeline.errors import SourceError
from pipeline.snapshot.raw_image import Origin, RawImage, place_of_key, read_raw, why_unread
from pipeline.storage import BucketPath
from pipeline.system.parallel import ordered_map

READERS = 32
"""Images of a bucket that are asked for at once: one alone would wait 30 ms and more for each."""
BATCH_BYTES = 65_536
"""Of files: more would be freed at once, and go back to the system, to be asked for page by page."""
_log = logging.getLogger(__name__)

ReadImage = tuple[RawImage, bytes | None]


class RawReader:
    """Reads the raw images of one origin; any number of threads may use it."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._cache = Path(origin.cache) if origin.cache else None

    def read(self, row: RawImage) -> bytes:
        """The bytes of one image as it was when it was listed.

        Raises SourceError where it is gone, and where a bucket holds other bytes; a local file is for the caller to
        check, who needs its checksum anyway.
        """
        place = place_of_key(self.origin, row.key) if self.origin.remote else None
        if not isinstance(place, BucketPath):
            return read_raw(self.origin.root, row.key, row.size)
        return self._from_cache(place, row, self._cache) if self._cache else _fetch(place, row)

    def read_all(self, rows: Iterable[Sequence[RawImage]]) -> Iterator[ReadImage]:
        """Images in turn, with their bytes; None for those that are missing or rejected without being read.

        From a bucket, the next ones are under way meanwhile: memory holds an image for each of READERS.
        """
        if not self.origin.remote:
            return self._read_in_batches(rows)
        images = chain.from_iterable(rows)
        return ordered_map(self._read_if_there, images, READERS, READERS, lambda row: max(row.size, 0))

    def keep(self, row: RawImage) -> bool:
        """Bring an image of a bucket into the cache, if it is not there; say whether it was fetched."""
        place = place_of_key(self.origin, row.key)
        if self._cache is None or why_unread(row, self.origin) or not isinstance(place, BucketPath):
            return False
        with suppress(FileNotFoundError):
            if _copy_of(self._cache, place, row).stat().st_size == row.size:
                return False
        self._from_cache(place, row, self._cache)
        return True

    def _read_in_batches(self, rows: Iterable[Sequence[RawImage]]) -> Iterator[ReadImage]:
        # Read, then handed out: one by one, reading and examining drive each other out of the caches, at 1 us an image.
        origin = self.origin
        for several in chain.from_iterable(map(_batches, rows)):
            yield from [
                (row, None if why_unread(row, origin) else read_raw(origin.root, row.key, row.size)) for row in several
            ]

    def _read_if_there(self, row: RawImage) -> ReadImage:
        return row, None if why_unread(row, self.origin) else self.read(row)

    def _from_cache(self, place: BucketPath, row: RawImage, cache: Path) -> bytes:
        copy = _copy_of(cache, place, row)
        with suppress(FileNotFoundError):
            kept = copy.read_bytes()
            if _is(kept, row):
                return kept
            _log.warning("%s is damaged and is fetched again", copy)
        fetched = _fetch(place, row)
        with storage.write_whole(copy) as file:
            file.write(fetched)
        return fetched


def _batches(rows: Sequence[RawImage]) -> Iterator[Sequence[RawImage]]:
    """Rows in turn, as many at a time as hold about `BATCH_BYTES` together; one at least."""
    size = sum([row.size for row in rows])
    several = max(1, BATCH_BYTES * len(rows) // max(size, 1))
    for start in range(0, len(rows), several):
        yield rows[start : start + several]


def _copy_of(cache: Path, place: BucketPath, row: RawImage) -> Path:
    """Where a copy lies, by its content; by its place and generation where the bucket has no MD5 of it.

    Not by its CRC32C: among ten million images two may share it.
    """
    name = row.md5 or hashlib.blake2b(f"{place}#{row.generation}".encode(), digest_size=16).hexdigest()
    return cache / name[:2] / name


def _fetch(place: BucketPath, row: RawImage) -> bytes:
    """One generation of an object. Another one would be another image."""
    try:
        content = place.read_bytes(row.generation)
    except FileNotFoundError as error:
        raise SourceError(
            f"{place} changed or vanished after it was listed (generation {row.generation}): run again, for a new "
            "version of the data set"
        ) from error
    if not _is(content, row):
        raise SourceError(f"{place} does not hold what the bucket listed (size or CRC32C): run again")
    return content


def _is(content: bytes, row: RawImage) -> bool:
    return len(content) == row.size and google_crc32c.value(content) == row.crc32c
