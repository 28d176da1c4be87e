"""Read the bytes of raw images from a disk, from a bucket, or from copies of a bucket in the workspace.

This module is light to import, like all modules of a shard task, which starts in tenths of a second.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path

import google_crc32c

from pipeline import storage
from pipeline.config.allowed import Outputs, Sources
from pipeline.errors import SourceError
from pipeline.snapshot.raw_example import (
    LocalImages,
    OpenFiles,
    Origin,
    RawExample,
    local_path,
    place_of_key,
    why_unread,
)
from pipeline.sources import Extent
from pipeline.storage import BucketPath, is_bucket, place_of
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import Show, progress

READERS = 32
"""This many images of a bucket are requested at the same time, because one request takes 30 ms or more."""
BATCH_BYTES = 65_536
"""This many bytes of files are read at once. More would return to the system when freed, and be faulted in again."""
_log = logging.getLogger(__name__)

ReadImage = tuple[RawExample, bytes | None]


class RawReader:
    """Reads the raw images of one origin, if the administrator allows them. It is thread-safe.

    Anyone who can write to the workspace can change the keys of a plan, so each image is checked before it is read.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._sources, self._outputs = Sources(), Outputs()
        self._parts = OpenFiles()
        self._cache = Path(origin.cache) if origin.cache else None

    @cached_property
    def _files(self) -> LocalImages:
        """Opened with the first image, after that was found to be allowed: another hand may have changed the root."""
        return LocalImages(self.origin.root)

    def read(self, row: RawExample) -> bytes:
        """Return the bytes of one image as it was when it was listed.

        Raises SourceError if it does not exist or is not allowed, or if a bucket has other bytes. For a local file, the
        caller must check the bytes, because it needs their checksum anyway.
        """
        if row.extent:
            return self._read_extent(row)
        place = place_of_key(self.origin, row.key) if self.origin.remote else None
        if not isinstance(place, BucketPath):
            return self._read_local(row)
        self._sources.require(place)
        return self._from_cache(place, row, self._cache) if self._cache else _fetch(place, row)

    def read_all(self, rows: Iterable[Sequence[RawExample]]) -> Iterator[ReadImage]:
        """Yield images with their bytes, or None for those that are missing or rejected without being read.

        Images of a bucket are read ahead: up to READERS of them are in memory.
        """
        if not self.origin.remote:
            return self._read_in_batches(rows)
        return ordered_map(
            lambda row: (row, None if why_unread(row, self.origin) else self.read(row)),
            chain.from_iterable(rows),
            READERS,
            READERS,
            lambda row: max(row.size, 0),
        )

    def fetch_to_cache(self, row: RawExample) -> bool:
        """Fetch an image of a bucket into the cache unless it is there. Returns whether it was fetched."""
        place = place_of_key(self.origin, row.key)
        if self._cache is None or row.extent or why_unread(row, self.origin) or not isinstance(place, BucketPath):
            return False
        self._sources.require(place)
        with suppress(FileNotFoundError):
            # The size is enough here: `read` verifies the checksum of a copy and replaces a damaged one.
            if _cache_path(self._cache, place, row).stat().st_size == row.size:
                return False
        self._from_cache(place, row, self._cache)
        return True

    def _read_in_batches(self, rows: Iterable[Sequence[RawExample]]) -> Iterator[ReadImage]:
        # Several at a time: alternating between reading and examining would cost 1 us per image in cache misses.
        origin = self.origin
        for chunk in rows:
            size = sum([row.size for row in chunk])
            several = max(1, BATCH_BYTES * len(chunk) // max(size, 1))
            for start in range(0, len(chunk), several):
                yield from [
                    (row, None if why_unread(row, origin) else self._read_local(row))
                    for row in chunk[start : start + several]
                ]

    def _read_local(self, row: RawExample) -> bytes:
        if row.extent:
            return self._read_extent(row)
        if not self._sources.are_all_allowed:
            self._sources.require(local_path(self.origin.root, row.key))
        return self._files.read(row.key, row.size)

    def _read_extent(self, row: RawExample) -> bytes:
        """Read the image from the file that it is a part of, and verify it."""
        extent = Extent(*row.extent)
        uri = extent.file if extent.is_copy else local_path(self.origin.root, extent.file)
        place = place_of(uri, self.origin.user_project) if is_bucket(uri) else uri
        (self._outputs if extent.is_copy else self._sources).require(place)
        # A container must be the one that was listed. The name of a copy contains a hash of what it is made from.
        generation = None if extent.is_copy else row.generation
        try:
            # A bucket has no checksum of a part, so a second request tells damage of one transfer from other content.
            for _ in range(2):
                content = self._parts.read(place, extent.offset, row.size, generation)
                if _matches(content, row):
                    return content
        except FileNotFoundError:
            pass
        if extent.is_copy:
            raise SourceError(
                f"{uri} is missing or damaged: remove it, and run `extract` again to make it anew. A copy that no "
                "listing has used for a month is removed"
            )
        raise SourceError(
            f"{uri} changed or vanished after it was listed: run again to make a new version of the dataset"
        )

    def _from_cache(self, place: BucketPath, row: RawExample, cache: Path) -> bytes:
        copy = _cache_path(cache, place, row)
        self._outputs.require(copy)
        with suppress(FileNotFoundError):
            content = copy.read_bytes()
            if _matches(content, row):
                return content
            _log.warning("%s is damaged: fetching it again", copy)
        fetched = _fetch(place, row)
        unfinished = unfinished_copies(cache)
        self._outputs.require(unfinished)
        # The copy is not synced: if a power loss tears it, it has another checksum and is fetched again.
        with storage.temporary_for(unfinished / copy.name) as temporary:
            temporary.write_bytes(fetched)
            copy.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(copy)
        return fetched


def fetch_images(
    rows: Iterable[RawExample], origin: Origin, *, count: int, total_bytes: int, show: Show = progress
) -> None:
    """Fetch `count` images that are in a bucket into the cache, if there is one, and log how many were not there yet.

    Copies are stored by content, so that a second run, another number of shards or a renamed folder fetches nothing
    again.

    Raises SourceError if one changed or vanished after it was listed.
    """
    if not origin.cache or not origin.remote:
        return
    reader = RawReader(origin)
    fetched = 0
    with show("fetch", count, "images", total_bytes) as advance:
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


def unfinished_copies(cache: Path) -> Path:
    """Return the folder of the copies that are being written.

    A search for the files of killed processes must not walk through ten million copies.
    """
    return cache / "unfinished"


def _cache_path(cache: Path, place: BucketPath, row: RawExample) -> Path:
    """Return the path of a copy, by its MD5; by its place and generation if the bucket has no MD5 of it.

    CRC32C would not do, because two of ten million images may share it.
    """
    name = row.md5 or hashlib.blake2b(f"{place}#{row.generation}".encode(), digest_size=16).hexdigest()
    return cache / name[:2] / name


def _fetch(place: BucketPath, row: RawExample) -> bytes:
    """Read one generation of an object. Another generation would be another image."""
    try:
        content = place.read_bytes(row.generation)
    except FileNotFoundError as error:
        raise SourceError(
            f"{place} changed or vanished after it was listed (generation {row.generation}): run again to make a new "
            "version of the dataset"
        ) from error
    if not _matches(content, row):
        raise SourceError(f"{place} does not have the size or CRC32C that the bucket listed: run again")
    return content


def _matches(content: bytes, row: RawExample) -> bool:
    return len(content) == row.size and google_crc32c.value(content) == row.crc32c
