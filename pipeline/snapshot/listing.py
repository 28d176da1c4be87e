"""A listing: what was found in a range of the keys of a source. Listings add up without reading a row again."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline import storage
from pipeline.config.allowed import require_output
from pipeline.config.dataset_name import LIST_SUFFIXES
from pipeline.config.workspace import place_hash
from pipeline.errors import BadInput, SettingsError, SourceError, require_format
from pipeline.snapshot.fingerprint import Fingerprint
from pipeline.snapshot.part import EXTRACT_AGAIN, SNAPSHOT_FORMAT, Part, allowed_part
from pipeline.snapshot.raw_example import Origin, RawExample
from pipeline.snapshot.skipped import SkippedFiles, log_skipped, suffix_counts
from pipeline.snapshot.snapshot import Snapshot, save_snapshot, skipped_path
from pipeline.sources import MISSING
from pipeline.sources.folder import NO_CLASS_FOLDER, NOT_BY_NAME
from pipeline.sources.key_range import bytes_of
from pipeline.storage import Place

_log = logging.getLogger(__name__)
_ADVICE_ON_ROWS = (
    ". If each row of these files is an example, set TABLE and LABEL instead of SOURCE. If their rows hold the paths "
    "of images, set SOURCE to one of these files"
)
_ADVICE_ON_FOLDERS = (
    ". Move the images into a folder for each class, such as cats/1.jpg. In zip and tar files, pack these folders, not "
    "only the images in them"
)

ExamineEach = Callable[[Sequence[Any]], Iterator[Any]]
"""Yields what `examine` of the lister returns for each content: see pipeline/plan/example_kind.py."""


@dataclass
class Listing:
    """Parts, and sums over their rows and over the skipped files."""

    layout: str
    """All listings of one snapshot have the same: see `layout_of` in pipeline/sources/detection.py."""
    parts: list[Part] = field(default_factory=list)
    listed: int = 0
    """Number of rows."""
    first: str = ""
    """Key of the first row."""
    bytes: int = 0
    missing: int = 0
    """Number of images that a list names and that do not exist."""
    grouped: int = 0
    """Number of examples with a group."""
    known: int = 0
    """Number of images whose checksum comes from the last snapshot."""
    remote: bool = False
    """Whether any example is in a bucket."""
    copied: int = 0
    """Number of images whose bytes are in a file of the workspace."""
    classes: dict[str, int] = field(default_factory=dict)
    """Number of examples of each label."""
    stated_labels: list[str] = field(default_factory=list)
    """Labels whose order the source states."""
    texts: dict[str, str] = field(default_factory=dict)
    multi_label: bool = False
    has_boxes: bool = False
    box_labels: dict[str, None] = field(default_factory=dict)
    """Labels of boxes. A dictionary is a set that JSON can hold."""
    skipped: SkippedFiles = field(default_factory=SkippedFiles)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all rows."""
        total = Fingerprint()
        for part in self.parts:
            total.merge(part.fingerprint)
        return total.hexdigest()

    def add(self, rows: Sequence[RawExample]) -> None:
        """Add rows to the sums. There is at least one."""
        self.listed += len(rows)
        self.first = self.first or rows[0].key
        sizes = [row.size for row in rows]
        missing = sizes.count(MISSING)
        self.missing += missing
        self.bytes += sum(sizes) - MISSING * missing
        self.grouped += sum([bool(row.group) for row in rows])
        # A local list may name images in a bucket.
        # The workspace, which has the copies, may be in a bucket, too.
        files = [row.extent[0] if row.extent else row.key for row in rows]
        self.remote = self.remote or any(map(storage.is_bucket, files))
        self.copied += sum([row.extent[2] for row in rows if row.extent])
        for labels, count in Counter([tuple(row.labels) for row in rows]).items():
            for label in labels:
                self.classes[label] = self.classes.get(label, 0) + count
            self.multi_label |= len(labels) > 1
        for boxes in filter(None, [row.boxes for row in rows]):
            self.has_boxes = True
            self.box_labels.update(dict.fromkeys(box.label for box in boxes if box.label))

    def log_skipped(self, snapshot: Place) -> None:
        """Log how many files were skipped, by reason, and which file beside the snapshot names them."""
        log_skipped(self.skipped, skipped_path(snapshot))

    def merge(self, other: "Listing") -> None:
        """Add the listing of the range that follows.

        Raises:
            SourceError: If the source changed between the two.
        """
        if self.layout != other.layout:
            raise changed_source(self.layout, other.layout)
        if (self.stated_labels, self.texts) != (other.stated_labels, other.texts):
            raise changed_source(f"{len(self.stated_labels)} labels", f"{len(other.stated_labels)} or other ones")
        if self.parts and other.parts and bytes_of(self.parts[-1].last) >= bytes_of(other.parts[0].first):
            # Only a bug in a kind of source can cause this. Without this error, an example could be in two records.
            raise SourceError(
                f"two ranges of the source have the key {other.parts[0].first!r}: `boundaries` of its kind must return "
                "keys in ascending order, and `list_range` only keys of its range"
            )
        self.parts += other.parts
        self.listed += other.listed
        self.first = self.first or other.first
        self.bytes += other.bytes
        self.missing += other.missing
        self.grouped += other.grouped
        self.known += other.known
        self.copied += other.copied
        self.remote |= other.remote
        for label, count in other.classes.items():
            self.classes[label] = self.classes.get(label, 0) + count
        self.multi_label |= other.multi_label
        self.has_boxes |= other.has_boxes
        self.box_labels |= other.box_labels
        self.skipped.merge(other.skipped)


def changed_source(before: str, now: str) -> SourceError:
    """Return the error for a source that changed between two listings of its ranges."""
    return SourceError(
        f"the source changed while it was being listed (it had {before}, then {now}): run again when nothing changes "
        "the source (in Airflow: clear `extract` and all tasks after it)"
    )


def require_images(listing: Listing, source_uri: str, root: str) -> None:
    """Raise SourceError if a source of images cannot be trained on. `root` is the folder of its keys."""
    if not listing.listed:
        # The suffixes of these files follow.
        reasons = sorted(listing.skipped.reasons_in_order().items(), key=lambda each: each[0] == NOT_BY_NAME)
        others = "; ".join(f"{count} {reason}" for reason, count in reasons)
        suffixes = listing.skipped.suffixes_in_order()
        if suffixes:
            others += f": {suffix_counts(suffixes)}"
        advice = _ADVICE_ON_FOLDERS if NO_CLASS_FOLDER in listing.skipped.reasons else ""
        advice += "" if suffixes.keys().isdisjoint(LIST_SUFFIXES) else _ADVICE_ON_ROWS
        raise SourceError(
            f"no images under source_uri {source_uri!r} ({others or 'it is empty'}): it must have one sub-folder for "
            "each class, with JPEG or PNG files, be a list of images, or hold images in zip, tar, Parquet "
            f"or TFRecord files{advice}"
        )
    if listing.missing == listing.listed:
        raise SourceError(
            f"none of the {listing.listed} files that {source_uri!r} lists exists under {root}; the first is "
            f"{listing.first!r}: check the paths, which are relative to the folder of the list"
        )
    if len(listing.classes) < 2:
        [label] = listing.classes
        folder, *inner = listing.first.split("/")
        is_nested = folder == label and len(inner) > 1
        advice = "add images of at least one more class"
        if is_nested:
            advice = f"if the classes are the folders in it, set source_uri to '{source_uri.rstrip('/')}/{label}'"
        raise SourceError(f"only one class, {label!r}, under source_uri {source_uri!r}: {advice}")
    if set(listing.classes.values()) == {listing.listed}:
        labels = ", ".join(listing.classes)
        raise SourceError(
            f"all images under source_uri {source_uri!r} have the same labels ({labels}), so that a "
            "model can learn nothing from them. If the label of an image is a vector with 0 or 1 for each class, "
            "write a list of its labels instead"
        )


def write_snapshot(
    listing: Listing,
    folder: Place,
    *,
    source_uri: str,
    origin: Origin,
    kind: str,
    source_kind: str,
    started_ns: int,
    table: dict[str, Any] | None = None,
) -> Place:
    """Write the snapshot of a whole source and the names of its skipped files into `folder`, and return its file.

    The other arguments are the fields of the snapshot that a listing lacks.
    """
    snapshot = Snapshot(
        source_uri=source_uri,
        origin=origin,
        kind=kind,
        source_kind=source_kind,
        parts=listing.parts,
        started_ns=started_ns,
        fingerprint=listing.fingerprint,
        listed=listing.listed,
        bytes=listing.bytes,
        labels=list(dict.fromkeys([*listing.stated_labels, *listing.classes])),
        stated_labels=listing.stated_labels,
        texts=listing.texts,
        classes=dict(sorted(listing.classes.items())),
        multi_label=listing.multi_label,
        has_boxes=listing.has_boxes,
        box_labels=sorted(set(listing.box_labels) - {*listing.stated_labels, *listing.classes}),
        skipped=listing.skipped.reasons_in_order(),
        skipped_suffixes=listing.skipped.suffixes_in_order(),
        table=table or {},
    )
    path = folder / f"{snapshot.fingerprint}-{place_hash(source_uri)}.json"
    with storage.write_whole(skipped_path(path), synced=True) as file:
        file.writelines(listing.skipped.lines())
    # The description is written last: if it exists, so do the other files.
    return save_snapshot(snapshot, path)


def save_listing(listing: Listing, path: Place) -> None:
    """Write a listing into a file, whole. The names of its skipped files go into a file of their own."""
    listing.skipped.save_names(path.with_suffix(".skipped"))
    storage.write_json(path, {"format": SNAPSHOT_FORMAT, **asdict(listing)}, synced=True)


def divisions_of(folder: Place, place: str) -> Iterator[tuple[int, Place]]:
    """Yield the start of each division of a source in Unix nanoseconds, and the folder of its ranges.

    Args:
        folder: The folder of all ranges.
        place: `place_hash` of the source.
    """
    for division in storage.folders(folder) if folder.is_dir() else ():
        started, _, of_place = division.name.partition("-")
        if of_place == place and started.isdecimal():
            yield int(started), division


def parts_listed_in(division: Place) -> list[Part]:
    """Return the parts of the finished ranges of a division, except of listings that cannot be used."""
    paths: Iterable[Place] = division.glob("*.listing")
    parts: list[Part] = []
    for path in paths:
        try:
            parts += load_listing(path).parts
        except (BadInput, FileNotFoundError):
            warn_of_unusable(path)
    return parts


def warn_of_unusable(path: Place) -> None:
    """Log that an earlier snapshot or listing does not help this one. A damaged file must not stop a listing."""
    _log.warning(
        "%s cannot be used (it is damaged, was removed, or comes from another version of Tenfold): its images are read "
        "again",
        path,
    )


def load_listing(path: Place) -> Listing:
    """Read the listing that `save_listing` wrote.

    Raises:
        SettingsError: If the file is not a listing, or if it is or names a place that the administrator does not allow.
        FormatError: If another version of Tenfold wrote it.
    """
    require_output(path)
    try:
        content = storage.read_json(path)
        require_format(content.pop("format", None), SNAPSHOT_FORMAT, path, EXTRACT_AGAIN)
        return listing_from(content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{path} does not contain a listing: {EXTRACT_AGAIN}") from error


def listing_from(content: Mapping[str, Any]) -> Listing:
    """Return the listing whose fields are in a JSON object. Raises what `allowed_part` does."""
    parts = list(map(allowed_part, content["parts"]))
    return Listing(**{**content, "parts": parts, "skipped": SkippedFiles(**content["skipped"])})
