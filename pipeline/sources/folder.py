"""A folder with one sub-folder a class, with or without train/, validation/ and test/ above the classes.

Files are listed in the order of the bytes of their keys, as in a bucket, with only one folder in memory at a time.
"""

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from pipeline import storage
from pipeline.config.allowed import SOURCES, may_read
from pipeline.errors import FileSystemError, SourceError, TenfoldError
from pipeline.sources import UNMEASURED, Found, Listed, Skipped, SourceOptions, measure_object
from pipeline.sources.key_range import EVERYTHING, KeyRange, OrderedSample, bytes_of, in_order
from pipeline.sources.split_names import split_of_word
from pipeline.sources.suffixes import OTHER_SUFFIXES, READ_SUFFIXES, has_suffix, suffix_of
from pipeline.storage import ObjectStat, Place
from pipeline.system.os_errors import cause_of, retried

HIDDEN = "hidden"
NOT_BY_NAME = "not an image by its name"
"""The usual reason to skip a file. These files are counted by suffix, to show images whose suffix is unknown."""
_SYSTEM_FILES = frozenset(
    {
        *("thumbs.db", "desktop.ini", "$recycle.bin", "system volume information"),
        *("@eadir", "#recycle", "#snapshot", "@recycle", "__macosx", "lost+found"),
    }
)
"""Files and folders of Windows, of network disks (Synology, QNAP), of macOS and of Linux, in lower case.

Some hold thumbnails or deleted files, which are images. Every ext4 disk has lost+found, which only root may read.
"""
_TABLE_LOGS = {"_delta_log": "Delta Lake", ".hoodie": "Apache Hudi"}
"""Folders in which a program notes which of the files beside them belong to a table, and the name of the program."""
_IMAGE_SUFFIXES = frozenset({"", *READ_SUFFIXES, *OTHER_SUFFIXES})
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\0", b"MM\0*")
"""First bytes of images, to detect files without suffix. WebP, AVIF and HEIC have such bytes after their length."""
IMAGE_MAGIC_BYTES = 12
"""This many bytes of a file without suffix are read, which is enough for `begins_as_image`."""
NO_CLASS_FOLDER = "not in a class folder"
MARKER = "the marker of a folder, as web consoles create it"
_KEYS_AT_ONCE = 10_000
"""A folder may have millions of files. Their names are in memory while they are sorted, but only so many keys."""
LEADS_OUTSIDE = f"link to outside of what {SOURCES} allows"


def recognizes(place: Place) -> bool:
    """Whether `place` is a folder. Any folder may contain classes."""
    return place.is_dir()


def list_range(place: Place, options: SourceOptions, keys: KeyRange) -> Iterator[Found]:
    """Yield the files whose keys are in a range, unmeasured on a disk. Folders outside of the range are not read.

    No option changes the result. Raises SourceError if `place` or a folder in it cannot be read, FileSystemError if one
    disappears meanwhile.
    """
    has_splits = _read_layout(place)
    for item in walk(place, keys=keys, measures=False):
        yield classify(item, has_splits) if isinstance(item, Listed) else item


def layout(place: Place, options: SourceOptions) -> str:
    """Return whether there are folders of splits above the classes."""
    return "with splits" if _read_layout(place) else "without splits"


def boundaries(place: Place, options: SourceOptions, most: int, min_images: int) -> Sequence[str]:
    """Return keys that divide the files into ranges of about equal size."""
    return boundaries_below(place, ("",), most, min_images)


def boundaries_below(place: Place, prefixes: Sequence[str], most: int, min_images: int) -> Sequence[str]:
    """Return keys that divide the files in some folders of `place` into ranges of about equal size.

    `prefixes` are the ascending paths of the folders, with a slash at the end. On a disk, the files are counted, which
    takes no request for a file. In a bucket, their number is estimated.
    """
    if not isinstance(place, Path):
        return storage.boundaries(place, prefixes, most, min_images)
    sample = OrderedSample(most)
    for prefix in prefixes:
        if not may_read(place / prefix):
            continue
        for folder, names in _keys_below(place / prefix, prefix, frozenset()):
            for start in range(0, len(names), _KEYS_AT_ONCE):
                sample.add(names[start : start + _KEYS_AT_ONCE], folder)
    return sample.boundaries(most, min_images)


def walk(
    folder: Place, prefix: str = "", keys: KeyRange = EVERYTHING, measures: bool = True
) -> Iterator[Listed | Skipped]:
    """Yield every file below `folder` without labels, ordered by the bytes of its key: `prefix` and its path.

    Only keys in the range are yielded. A folder that is skipped as a whole has the position of its name with a slash.
    If not `measures`, most local files are UNMEASURED: to measure a small file takes half as long as to read it.
    """
    below = keys.below(prefix)
    if below is None:
        return iter(())
    if not isinstance(folder, Path):
        objects = storage.objects(folder, below.first, below.end)
        return (_object(prefix + key, status) for key, status in objects)
    if may_read(folder):
        return _walk(folder, prefix, frozenset(), below, measures)
    return iter([Skipped(prefix.rstrip("/"), LEADS_OUTSIDE)] if below.contains("") else ())


def _read_layout(place: Place) -> bool:
    """Return whether there are folders of splits above the classes. Raises SourceError if `place` cannot be read."""
    try:
        return retried(partial(_has_splits, place), place)
    except OSError as error:
        if cause_of(error) == "absent":
            raise SourceError(f"source_uri {place} cannot be read: {error.strerror}") from error
        raise unlisted(error, error.filename or place) from error


def _object(key: str, status: ObjectStat) -> Listed | Skipped:
    if key.endswith("/") or not key:
        return Skipped(key, MARKER)
    if "" in key.split("/"):
        return Skipped(key, "a name with an empty part, such as a//b.jpg")
    if not suffix_of(key) and not why_no_image(key):  # Opening each file would take a request.
        return Skipped(key, NOT_BY_NAME)
    return Listed(key, (), "", *measure_object(status))


def require_no_log(place: Place, key: str) -> None:
    """Raise SourceError if a file belongs to the log of a table. Files beside it may hold rows of older states."""
    if program := next((_TABLE_LOGS[part] for part in key.split("/")[:-1] if part in _TABLE_LOGS), ""):
        raise SourceError(
            f"{place} is a table of {program}: its folder also has files with deleted rows and older states. Export "
            "the present state as Parquet files into another folder, or read it with Spark and call `build_dataframe`"
        )


def why_no_image(key: str) -> str:
    """Return why a file is not an image by its name; empty if it is one, even in a format that Tenfold does not read.

    A file without a suffix counts as an image, because `walk` has checked its first bytes.
    """
    folder, _, name = key.rpartition("/")
    if name.startswith(".") or name.lower() in _SYSTEM_FILES or _is_hidden(folder):
        return HIDDEN
    return "" if suffix_of(name) in _IMAGE_SUFFIXES else NOT_BY_NAME


@lru_cache  # Many files are in one folder.
def _is_hidden(folder: str) -> bool:
    return "/." in f"/{folder}" or not _SYSTEM_FILES.isdisjoint(folder.lower().split("/"))


class Named(NamedTuple):
    """What the folders of a key name."""

    label: str
    split: str


def classify(image: Listed, has_splits: bool) -> Listed | Skipped:
    """Return an image with the label and the split that the folders of its key name."""
    named = named_by_folders(image.key, has_splits)
    # `_replace` would take three times as long.
    return named if isinstance(named, Skipped) else Listed(image.key, (named.label,), named.split, *image[3:])


def named_by_folders(key: str, has_splits: bool) -> Named | Skipped:
    """Return the label and the split that the folders of a key name."""
    named = _named_by_folder(key.rpartition("/")[0], has_splits)
    reason = why_no_image(key) or named
    return Skipped(key, reason) if isinstance(reason, str) else reason


@lru_cache  # Many files are in one folder.
def _named_by_folder(folder: str, has_splits: bool) -> Named | str:
    """Return the label and the split that a folder names, or why its files are skipped."""
    first, *rest = folder.split("/")
    split = split_of_word(first) if has_splits else ""
    if split is None:
        return "outside train/, validation/ and test/"
    label = "".join(rest[:1]) if has_splits else first
    return Named(label, split) if label else NO_CLASS_FOLDER


def _has_splits(root: Place) -> bool:
    folders = [folder for folder in storage.folders(root) if why_no_image(folder.name) != HIDDEN and may_read(folder)]
    return are_splits([folder.name for folder in folders], lambda name: _has_folders(root / name), root)


def are_splits(folders: Collection[str], has_folders: Callable[[str], bool], root: Place) -> bool:
    """Whether the folders of these names in `root` are splits that contain classes. A class may be called "train", too.

    Raises SourceError if they may be both.
    """
    splits = {split for name in folders if (split := split_of_word(name))}
    above_classes = [name for name in folders if split_of_word(name) == "train" and has_folders(name)]
    if not above_classes and splits and all(split_of_word(name) and has_folders(name) for name in folders):
        # Without this error, they would silently become classes called "val" and "test".
        raise SourceError(
            f"source_uri '{root}' holds {' and '.join(sorted(folders))} with folders in them, but no train/: add it, "
            "or rename one of them to train/"
        )
    # Without a train/ that has folders in it, all folders are classes. A train/ alone is the split of all images.
    if not above_classes or (len(splits) == 1 and len(folders) == 1):
        return bool(above_classes)
    # train/ may be a split or a class here, and a guess would lose or mislabel images.
    if len(splits) == 1:
        others = ", ".join(sorted(name for name in folders if name not in above_classes)[:5])
        raise SourceError(
            f"source_uri '{root}' holds {above_classes[0]}/ with folders in it, beside {others}: either rename the "
            "other splits to validation/ and test/, or put all class folders next to each other"
        )
    return True


def _has_folders(folder: Place) -> bool:
    return any(why_no_image(each.name) != HIDDEN for each in storage.folders(folder))


def _walk(
    folder: Path, prefix: str, above: frozenset[tuple[int, int]], keys: KeyRange, measures: bool
) -> Iterator[Listed | Skipped]:
    """Yield the files below `folder` whose paths, relative to it, are in a range.

    `above` has the identities of its parent folders, to end a loop of links.
    """
    try:
        status = retried(folder.stat, folder)
        entries = retried(partial(_entries, folder, keys), folder)
    except OSError as error:
        key = prefix.rstrip("/")
        # A hidden folder is skipped anyway, and may be unreadable by design, such as lost+found.
        if why_no_image(key) != HIDDEN:
            raise unlisted(error, folder) from error
        if keys.contains(""):
            yield Skipped(key, HIDDEN)
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        if keys.contains(""):
            yield Skipped(prefix.rstrip("/"), "link to a folder above it")
        return
    inside = above | {identity}
    for entry in entries:
        key = prefix + entry.name
        if not measures and entry.is_file(follow_symlinks=False) and has_suffix(entry.name):
            yield Listed(key, (), "", UNMEASURED, 0)
            continue
        item = _visit(entry, key, keys)
        if isinstance(item, KeyRange):
            yield from _walk(Path(entry.path), key + "/", inside, item, measures)
        elif item:
            yield item


def _visit(entry: os.DirEntry[str], key: str, keys: KeyRange) -> Listed | Skipped | KeyRange | None:
    """Return a file with its key, or the range of a folder. None if the entry is outside of the range `keys`."""
    if entry.is_symlink() and not may_read(Path(entry.path)):  # Never follow a link that is not allowed.
        return Skipped(key, LEADS_OUTSIDE) if keys.contains(_position(entry)) else None
    try:
        status = retried(entry.stat, entry.path)
        is_regular = stat.S_ISREG(status.st_mode)
        may_be_image = is_regular and (suffix_of(key) or why_no_image(key) or _is_image_file(entry.path))
    except OSError as error:
        # Only a file that is proven absent is skipped. Any other error could hide an image of the dataset.
        reason = "dangling link" if entry.is_symlink() else why_no_image(key)
        if cause_of(error) != "absent" or not reason:
            raise unlisted(error, entry.path) from error
        return Skipped(key, reason)
    if stat.S_ISDIR(status.st_mode):
        return keys.below(entry.name + "/")
    if not is_regular:  # Opening a FIFO would wait forever for a writer.
        return Skipped(key, "not a regular file")
    if may_be_image:
        # The time of modification would not do: a copy that preserves it would hide that the content changed.
        return Listed(key, (), "", status.st_size, status.st_ctime_ns)
    return Skipped(key, NOT_BY_NAME)


def _entries(folder: Path, keys: KeyRange) -> list[os.DirEntry[str]]:
    """Return the files of a folder whose names are in a range, and the folders that may have such files."""
    with os.scandir(folder) as entries:
        found: Iterable[os.DirEntry[str]] = entries
        if keys != EVERYTHING:
            near = filter(partial(_is_near, bytes_of(keys.first), bytes_of(keys.end)), entries)
            found = filter(partial(_may_be_inside, keys), near)
        by_position = {_position(entry): entry for entry in found}
    # The order in which a bucket lists them.
    return [by_position[position] for position in in_order(by_position)]


def _is_near(first: bytes, end: bytes, entry: os.DirEntry[str]) -> bool:
    """Whether `_may_be_inside` must examine an entry. This quick check rejects nearly all others of a large folder."""
    name = os.fsencode(entry.name)
    return not (end and name >= end) and (name >= first or first.startswith(name))


def _may_be_inside(keys: KeyRange, entry: os.DirEntry[str]) -> bool:
    as_file, as_folder = keys.contains(entry.name), keys.intersects(entry.name + "/")
    if as_file == as_folder:  # Most entries of a large folder need no further examination, which reads links.
        return as_file
    return as_folder if _is_folder(entry) else as_file


class _Keys(NamedTuple):
    """Some keys: what all of them begin with, and the rest of each."""

    prefix: str
    names: Sequence[str]


def _keys_below(folder: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[_Keys]:
    """Yield the keys below a folder in their order, some at a time, without reading a file.

    Errors are ignored: `walk` reports them.
    """
    try:
        status = folder.stat()
        with os.scandir(folder) as entries:
            # Without a call for each of a million files.
            names = in_order(
                [entry.name if entry.is_file(follow_symlinks=False) else _position_to_count(entry) for entry in entries]
            )
    except OSError:
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    start = 0
    # Only folders have a slash. Most folders with many files have none in them, which is checked at once.
    inside = [index for index, name in enumerate(names) if name.endswith("/")] if "/" in "".join(names) else ()
    for index in inside:
        yield _Keys(prefix, names[start:index])
        yield from _keys_below(folder / names[index], prefix + names[index], above | {identity})
        start = index + 1
    yield _Keys(prefix, names[start:])


def _position_to_count(entry: os.DirEntry[str]) -> str:
    """Return the position of an entry. A link to a folder that is not allowed counts as a file, as in `walk`."""
    is_followed = not entry.is_symlink() or may_read(Path(entry.path))
    return _position(entry) if is_followed else entry.name


def unlisted(error: OSError, place: object) -> TenfoldError:
    """Return the error for a folder or an image that cannot be listed. It must not be left out silently."""
    if cause_of(error) == "absent":
        return FileSystemError(
            f"{place} vanished while it was being listed ({error.strerror}): run again when nothing changes the source"
        )
    return SourceError(
        f"{place} cannot be read ({error.strerror}): give the user that runs the task permission to read it, or move "
        "it out of the source"
    )


def _is_image_file(path: str) -> bool:
    return begins_as_image(retried(partial(storage.read_range, Path(path), 0, IMAGE_MAGIC_BYTES), path))


def begins_as_image(content: bytes) -> bool:
    """Whether a file begins with the bytes of an image."""
    return content.startswith(_MAGIC) or content[8:12] == b"WEBP" or content[4:8] == b"ftyp"


def _position(entry: os.DirEntry[str]) -> str:
    """Return the name of an entry. A folder has a slash at its end, because all keys below it have one there."""
    if entry.is_file(follow_symlinks=False):  # This is known without a request for nearly all entries.
        return entry.name
    return entry.name + "/" if _is_folder(entry) else entry.name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return retried(entry.is_dir, entry.path)
    except OSError:  # `_visit` raises it.
        return False
