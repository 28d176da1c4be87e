"""A quick look at a place that a person names as a source: what is there, by the names and sizes of its files.

A form asks while the person types. So a look reads no image and no row, lists one page of a bucket, and stops counting
the files of a local folder after a second.
"""

import csv
import difflib
import io
import os
import struct
import time
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pipeline import storage
from pipeline.config.allowed import may_read, require_source
from pipeline.config.dataset_name import is_table_file
from pipeline.config.example_kinds import IMAGES, TABLE
from pipeline.errors import SourceError
from pipeline.sources import imagenet, stanford_cars
from pipeline.sources.cells import NAMES
from pipeline.sources.compression import compression_of
from pipeline.sources.container_formats import AmbiguousFormat, format_of
from pipeline.sources.folder import HIDDEN, Named, are_splits, named_by_folders, why_no_image
from pipeline.sources.suffixes import suffix_of
from pipeline.sources.text_delimiter import delimiter_of_text
from pipeline.storage import BucketPath, Place
from pipeline.system.wording import first_of, format_size

LOOK_S = 2.0
"""A person waits at most this many seconds for a look."""
COUNTING_S = 1.0
"""The files of a local folder are counted for at most this many seconds."""
MAX_NAMES = 1000
"""At most this many names of a folder are compared with a name that does not exist."""
MAX_SHOWN = 8
"""At most this many names of columns are shown."""
_HEADER_BYTES = 1 << 16
"""The header of a table is in this many bytes."""
_MAX_FOOTER_BYTES = 4 << 20
"""The schema of a larger Parquet file is not read."""
_FOOTER_END = struct.Struct("<I4s")
"""The length of the footer, and the magic bytes."""
_MAX_SIMILAR = 5
"""This many similar names are tried until one is found that may be read."""


@dataclass(frozen=True)
class SourceLook:
    """What is at a place."""

    words: str
    is_usable: bool = True
    """Whether a run could use it, as far as names show."""
    kind: str = ""
    """The kind of examples; empty if names do not show it."""
    columns: tuple[str, ...] = ()
    """The columns of a table; empty if they are not known."""
    meant: str = ""
    """A place with a similar name, if there is nothing at this one."""


@dataclass(frozen=True)
class _Files:
    """The files below a place, as far as they were counted."""

    sizes: Mapping[str, int]
    """Bytes by the path of a file relative to the place."""
    is_all: bool
    has_splits: bool


@dataclass(frozen=True)
class _Content:
    """What the beginning of a file says."""

    kind: str = ""
    columns: tuple[str, ...] = ()
    rows: int | None = None


def look_at(place: Place, encoding: str = "utf-8", delimiter: str = "") -> SourceLook:
    """Return what is at a place. `encoding` and `delimiter` are those of a table in CSV.

    Raises:
        SourceError: The administrator does not allow the place, or it cannot be read.
        StorageError, AccessError: Its bucket does not answer, or does not allow it.
    """
    try:
        require_source(place)
        size = _size_of_file(place)
        if size is not None:
            return _look_at_file(place, size, encoding, delimiter)
        files = _files_of_bucket(place) if isinstance(place, BucketPath) else _files_of_folder(place)
        return _nothing_at(place) if files is None else _look_at_files(place, files, encoding, delimiter)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        where = getattr(error, "filename", None) or place
        raise SourceError(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _size_of_file(place: Place) -> int | None:
    """Return the size of a file; None if there is no file of this name."""
    if isinstance(place, Path):
        return place.stat().st_size if place.is_file() else None
    if not place.key:
        return None
    # A listing, because a request for a single object would be retried for minutes.
    page = storage.first_page(place.parent, LOOK_S, only_level=True, start=place.name)
    return page.sizes.get(place.name)


def _files_of_bucket(place: BucketPath) -> _Files | None:
    page = storage.first_page(place, LOOK_S)
    return _files_of(place, page.sizes, is_all=page.is_all) if page.sizes else None


def _files_of_folder(place: Path) -> _Files | None:
    if not place.is_dir():
        return None
    deadline, sizes = time.monotonic() + COUNTING_S, {}
    for key, size in _sizes_below(place):
        if key:
            sizes[key] = size
        if time.monotonic() > deadline:
            return _files_of(place, sizes, is_all=False)
    return _files_of(place, sizes, is_all=True)


def _files_of(place: Place, sizes: Mapping[str, int], *, is_all: bool) -> _Files:
    keys = [key for key in sizes if "/" in key and why_no_image(key) != HIDDEN]
    folders, above = {key.partition("/")[0] for key in keys}, {key.split("/")[0] for key in keys if key.count("/") > 1}
    try:
        has_splits = are_splits(sorted(folders), above.__contains__, place)
    except SourceError:
        if is_all:
            raise
        has_splits = True  # The other splits were not counted.
    return _Files(sizes, is_all, has_splits)


def _sizes_below(place: Path) -> Iterator[tuple[str, int]]:
    """Yield the path and the size of each file below a folder, as the file system lists them. Opens no file.

    An empty path is that of an entry that is no file, so that the caller can stop after any entry.
    """
    folders = deque([(place, "", frozenset[tuple[int, int]]())])
    while folders:
        folder, prefix, above = folders.popleft()
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:  # A link leads to a folder above it.
            continue
        with os.scandir(folder) as entries:
            for entry in entries:
                key = prefix + entry.name
                may_follow = not entry.is_symlink() or may_read(Path(entry.path))
                if may_follow and entry.is_file():
                    yield key, entry.stat().st_size
                    continue
                if may_follow and entry.is_dir() and why_no_image(f"{key}/") != HIDDEN:
                    folders.append((Path(entry.path), f"{key}/", above | {identity}))
                yield "", 0


def _look_at_files(place: Place, files: _Files, encoding: str, delimiter: str) -> SourceLook:
    if name := _known_layout(place, files):
        return SourceLook(f"images in the layout of {name}", kind=IMAGES)
    named = {key: named_by_folders(key, files.has_splits) for key in files.sizes}
    images = {key: each for key, each in named.items() if isinstance(each, Named)}
    others = sorted(key for key in files.sizes if is_table_file(key) or format_of(key.rpartition("/")[2]))
    if len(others) > len(images):
        return _look_at_parts(place, others, files, encoding, delimiter)
    if images:
        size = sum(files.sizes[key] for key in images)
        labels = {each.label for each in images.values()}
        return SourceLook(_images_in_words(len(images), len(labels), size, is_all=files.is_all), kind=IMAGES)
    if not files.is_all:
        return SourceLook("There are more files than a quick look can count.")
    if any(suffix_of(key) and not why_no_image(key) for key in files.sizes):
        return SourceLook(
            "There are images, but none is in a folder of its class: make one sub-folder for each class.",
            is_usable=False,
            kind=IMAGES,
        )
    return SourceLook("There are files, but neither images nor a table.", is_usable=False)


def _known_layout(place: Place, files: _Files) -> str:
    """Return the name of a layout whose folders are not all classes or splits; empty if it is none."""
    folders = {key.partition("/")[0] for key in files.sizes}
    # Only a few requests to a bucket, and only if it is likely.
    if "cars_train" in folders and stanford_cars.recognizes(place):
        return "Stanford Cars"
    is_likely = "ILSVRC" in folders or (files.has_splits and "train" in folders)
    return "ImageNet" if is_likely and imagenet.recognizes(place) else ""


def _images_in_words(images: int, classes: int, size: int, *, is_all: bool) -> str:
    of_classes = f"{classes:,} {'class' if classes == 1 else 'classes'}"
    of_images = f"{images:,} {'image' if images == 1 else 'images'}"
    if is_all:
        return f"{of_images}, {of_classes}, {format_size(size)}"
    return f"more than {of_images}: the first {images:,} have {of_classes} and {format_size(size)}"


def _look_at_parts(place: Place, parts: Sequence[str], files: _Files, encoding: str, delimiter: str) -> SourceLook:
    """Return what is in a folder of tables, or of files that hold images."""
    content = _content_of(place / parts[0], encoding, delimiter)
    size = format_size(sum(files.sizes[key] for key in parts))
    count = f"{'' if files.is_all else 'more than '}{len(parts):,} {suffix_of(parts[0])} file{'s'[: len(parts) != 1]}"
    return SourceLook(_joined(count, size, _columns_in_words(content)), kind=content.kind, columns=content.columns)


def _look_at_file(place: Place, size: int, encoding: str, delimiter: str) -> SourceLook:
    if not (is_table_file(place.name) or format_of(place.name)):
        return SourceLook(f"{place.name} is neither a table nor a file that holds images.", is_usable=False)
    content = _content_of(place, encoding, delimiter) if size else _Content()
    rows = "" if content.rows is None else f"{content.rows:,} row{'s'[: content.rows != 1]}"
    words = _joined(f"a {suffix_of(place.name)} file", rows, format_size(size), _columns_in_words(content))
    return SourceLook(words, is_usable=size > 0, kind=content.kind, columns=content.columns)


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _columns_in_words(content: _Content) -> str:
    count = len(content.columns)
    return f"{count:,} column{'s'[: count != 1]}: {first_of(content.columns, MAX_SHOWN)}" if count else ""


def _content_of(place: Place, encoding: str, delimiter: str) -> _Content:
    """Return what a file says at its beginning or its end. A file that cannot be understood says nothing."""
    if not may_read(place):
        return _Content()
    try:
        if suffix_of(place.name) == ".parquet":
            return _content_of_parquet(place)
        if form := format_of(place.name):
            return _Content("" if isinstance(form, AmbiguousFormat) else IMAGES)
        columns = _columns_of_text(place, encoding, delimiter)
    except Exception:  # noqa: BLE001 - a library may raise anything for a damaged file; a run says what is wrong
        return _Content()
    is_list = any(name in columns for name in NAMES["path"]) and any(name in columns for name in NAMES["label"])
    return _Content(IMAGES if is_list else TABLE if columns else "", columns)


def _content_of_parquet(place: Place) -> _Content:
    from pyarrow import parquet  # Other files do not need Arrow.

    form = format_of(place.name)
    with storage.open_ranges(place) as file:
        file.seek(-_FOOTER_END.size, os.SEEK_END)
        length, _ = _FOOTER_END.unpack(file.read(_FOOTER_END.size))
        if length > _MAX_FOOTER_BYTES:
            return _Content()
        if isinstance(form, AmbiguousFormat) and form.shows_images(file):
            return _Content(IMAGES)
        content = parquet.ParquetFile(file)
        return _Content(TABLE, tuple(content.schema_arrow.names), content.metadata.num_rows)


def _columns_of_text(place: Place, encoding: str, delimiter: str) -> tuple[str, ...]:
    """Return the columns of the header of CSV. Another text has none: each row of JSON lines has columns of its own.

    There are none either if the beginning of the file has no whole header.
    """
    suffix = suffix_of(place.name)
    begin = storage.read_range(place, 0, _HEADER_BYTES)
    if suffix not in (".csv", ".tsv", ".txt") or compression_of(begin):
        return ()
    text = begin.removeprefix(BOM_UTF8).decode(encoding, "replace")
    by_suffix = delimiter_of_text(io.StringIO(text)) if suffix == ".txt" else "\t" if suffix == ".tsv" else ","
    between = delimiter or by_suffix
    if not between:
        return ()
    rows = list(islice(filter(None, csv.reader(io.StringIO(text), delimiter=between)), 2))
    # Without a second row, the first one may be cut off.
    is_whole = len(rows) == 2 or len(begin) < _HEADER_BYTES
    return tuple(rows[0]) if rows and is_whole else ()


def _nothing_at(place: Place) -> SourceLook:
    if isinstance(place, Path) and place.exists():
        return SourceLook(f"{place} is neither a file nor a folder.", is_usable=False)
    meant = None
    with suppress(OSError):  # A folder may be one whose names this user may not list.
        meant = _similar_object(place) if isinstance(place, BucketPath) else _similar_path(place)
    return SourceLook(f"There is nothing at {place}.", is_usable=False, meant=str(meant or ""))


def _similar_path(place: Path) -> Place | None:
    """Return a path in which the first part that does not exist is replaced by a similar name."""
    missing = place
    # A folder that is not allowed is not looked at: its names are nobody's business.
    while may_read(missing.parent) and not missing.parent.is_dir() and missing != missing.parent:
        missing = missing.parent
    if not may_read(missing.parent):
        return None
    with os.scandir(missing.parent) as entries:
        names = [entry.name for entry in islice(entries, MAX_NAMES)]
    similar = _similar(missing, names)
    whole = similar and similar / str(place.relative_to(missing))
    return whole if whole and may_read(whole) and whole.exists() else similar


def _similar_object(place: BucketPath) -> Place | None:
    if not place.key or not may_read(place.parent):
        return None
    page = storage.first_page(place.parent, LOOK_S, only_level=True)
    return _similar(place, [*page.sizes, *(name.rstrip("/") for name in page.folders)])


def _similar(missing: Place, names: Sequence[str]) -> Place | None:
    """Return the place beside a missing one whose name is most similar and may be read; None if there is none."""
    shown = {name.lower(): name for name in names if name.isprintable() and not name.startswith(".")}
    close = difflib.get_close_matches(missing.name.lower(), shown, n=_MAX_SIMILAR)
    return next((each for name in close if may_read(each := missing.parent / shown[name])), None)
