"""Source -> snapshot: a sorted, frozen list of the raw images with label, size and CRC32C."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import google_crc32c

from pipeline import storage
from pipeline.config import Settings
from pipeline.errors import SourceError
from pipeline.parallel import ordered_map
from pipeline.preflight import preflight
from pipeline.progress import progress
from pipeline.snapshot import Fingerprint, RawImage, Snapshot, save_snapshot, to_line
from pipeline.sources import Listed, Skipped
from pipeline.sources.folder import list_images
from pipeline.workspace import place_hash, snapshots_folder

READERS = 8
CHUNK = 256
_log = logging.getLogger(__name__)


def take_snapshot(settings: Settings) -> Path:
    """List the source, read every image once for its CRC32C, and write the snapshot whole; return its file.

    Raises SourceError where the source holds no image of a class.
    """
    preflight(settings)
    folder = snapshots_folder(settings)
    storage.sweep(folder)
    tally = _Tally()
    with storage.temporary_beside(folder / "snapshot.jsonl") as temporary:
        with open(temporary, "wb") as file:
            file.writelines(to_line(row) for row in _rows(settings, tally))
        tally.require_images(settings.source_uri)
        snapshot = tally.snapshot(settings.source_uri, folder)
        temporary.replace(snapshot.rows)
    tally.log()
    return save_snapshot(snapshot)


class _Tally:
    """Sums over the rows as they pass."""

    def __init__(self) -> None:
        self.fingerprint = Fingerprint()
        self.listed = self.bytes = 0
        self.classes: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()

    def add(self, row: RawImage) -> None:
        self.fingerprint.add(row)
        self.listed += 1
        self.bytes += row.size
        self.classes[row.label] += 1

    def require_images(self, source_uri: str) -> None:
        if not self.listed:
            others = "; ".join(f"{count} {reason}" for reason, count in sorted(self.skipped.items()))
            raise SourceError(
                f"no images under source_uri {source_uri!r} ({others or 'it is empty'}): "
                "it must hold one sub-folder a class, with JPEG or PNG files"
            )
        if len(self.classes) < 2:
            raise SourceError(
                f"only one class, {next(iter(self.classes))!r}, under source_uri {source_uri!r}: "
                "it must hold one sub-folder a class, for two classes at least"
            )

    def snapshot(self, source_uri: str, folder: Path) -> Snapshot:
        fingerprint = self.fingerprint.hexdigest()
        return Snapshot(
            source_uri=source_uri,
            rows=str(folder / f"{fingerprint}-{place_hash(source_uri)}.jsonl"),
            fingerprint=fingerprint,
            listed=self.listed,
            bytes=self.bytes,
            classes=dict(sorted(self.classes.items())),
            skipped=dict(sorted(self.skipped.items())),
        )

    def log(self) -> None:
        _log.info("%d images of %d classes, %.1f MB", self.listed, len(self.classes), self.bytes / 1e6)
        for reason, count in sorted(self.skipped.items()):
            _log.warning("files skipped: %d %s", count, reason)


def _rows(settings: Settings, tally: _Tally) -> Iterator[RawImage]:
    """Every listed image with its checksum, in order; what is skipped is counted."""
    root = Path(settings.source_uri)
    with progress("extract", 0) as advance:
        for rows in ordered_map(lambda chunk: _checksummed(root, chunk), _chunks(root, tally), READERS):
            for row in rows:
                tally.add(row)
                yield row
            advance(len(rows))


def _chunks(root: Path, tally: _Tally) -> Iterator[list[Listed]]:
    images = _only_images(list_images(root), tally)
    while chunk := list(islice(images, CHUNK)):
        yield chunk


def _only_images(found: Iterable[Listed | Skipped], tally: _Tally) -> Iterator[Listed]:
    for item in found:
        if isinstance(item, Listed):
            yield item
        else:
            tally.skipped[item.reason] += 1


def _checksummed(root: Path, images: list[Listed]) -> list[RawImage]:
    return [RawImage(*image, crc32c=_crc32c(root, image)) for image in images]


def _crc32c(root: Path, image: Listed) -> int:
    encoded = read_raw(root, image.key)
    if len(encoded) != image.size:
        raise SourceError(f"{root / image.key} changed while it was listed: run again when the source is at rest")
    crc: int = google_crc32c.value(encoded)
    return crc


def read_raw(root: Path, key: str) -> bytes:
    """The bytes of one raw image.

    Raises SourceError where it cannot be read: a file that vanished is not the same as one that is broken.
    """
    try:
        return (root / key).read_bytes()
    except OSError as error:
        raise SourceError(
            f"{root / key} was listed but cannot be read ({error.strerror}): mend it and run again"
        ) from error
