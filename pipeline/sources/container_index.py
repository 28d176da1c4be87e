"""The index of a source of containers: the key, checksum and place of each image, in the order of the keys.

A container is read once, from front to back. Its rows go into an index of its own, which is kept, so that a second
listing reads only new containers. Images that a container does not hold as they are go into a file of copies beside the
index. A container in a bucket is read from a local copy. If the workspace is local, this copy is kept, and its images
are read there. Otherwise, they are later read as ranges of the object.

The index of the source joins those of its containers. Only then it is known which names are unique. It is kept, too,
and each range of keys reads its own rows of it.
"""

import hashlib
import json
import posixpath
import re
import tarfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from pipeline import storage
from pipeline.config.allowed import may_read
from pipeline.errors import DatasetError, FileSystemError, SourceError
from pipeline.sources import Box, Classes, Extent, Found, Listed, Skipped, SourceOptions, measure
from pipeline.sources.compression import UNPACK_ERRORS
from pipeline.sources.container_formats import ContainedImage, ContainerFile, Format, name_of
from pipeline.sources.folder import are_splits, classify
from pipeline.sources.key_range import KeyRange, bytes_of
from pipeline.sources.split_names import split_of_word
from pipeline.sources.suffixes import suffix_of
from pipeline.storage import BucketPath, Place, place_of
from pipeline.system.os_errors import cause_of, unless_missing
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

FORMAT = 2
"""Increase this if the files of an index change. Containers are then read again."""
THREADS = 4
"""This many containers are read at the same time."""
_BATCH = 4096
"""At most this many rows are Python objects at the same time."""
_NUMBER = re.compile(r"-\d+(-of-\d+)?(-[0-9a-f]+)?$")
"""The number at the end of the name of one of many containers."""
_Item = ContainedImage | Skipped | Classes
_MAGIC = ((b"\xff\xd8\xff", ".jpg"), (b"\x89PNG", ".png"), (b"GIF8", ".gif"), (b"BM", ".bmp"))
"""First bytes of images without a name, and the suffixes of their keys."""


@dataclass(frozen=True)
class Container:
    """A container of a source. `key` is its path relative to the source."""

    key: str
    place: Place
    size: int
    generation: int
    format: Format


class _Row(NamedTuple):
    """A row of the index of a container."""

    name: bytes
    """The path of the image in the container; a number if it has none. For what is skipped, the key."""
    number: int = 0
    """The number of the row or file in the container, which is in its key if other images have the same name."""
    suffix: str = ""
    """The suffix of such a key."""
    labels: Sequence[str] = ()
    split: str = ""
    group: str = ""
    offset: int = 0
    size: int = 0
    crc32c: int | None = None
    is_copy: bool = False
    reason: str = ""
    """Why the row is no image; empty if it is one."""
    boxes: str = ""
    """The boxes as JSON; empty if there are none."""


_ROWS = pa.schema(
    {
        "name": pa.large_binary(),
        "number": pa.int64(),
        "suffix": pa.string(),
        "labels": pa.list_(pa.string()),
        "split": pa.string(),
        "group": pa.string(),
        "offset": pa.int64(),
        "size": pa.int64(),
        "crc32c": pa.uint32(),
        "is_copy": pa.bool_(),
        "reason": pa.string(),
        "boxes": pa.string(),
    }
)


@dataclass
class _Description:
    """What is known of a container after it was read. It is written last: if it exists, the other files are whole."""

    folders: list[str]
    """The folders of the images in the container."""
    needs_folders: bool = False
    """Whether the label of an image is its folder."""
    classes: list[str] | None = None
    """The labels in the order of their ids, if the container states them."""
    has_copies: bool = False


class Index:
    """The rows of a source in the order of their keys, as the columns of Arrow, which are mapped into memory."""

    def __init__(
        self, table: pa.Table, containers: Sequence[Container], files: Sequence["_Files"], description: dict[str, Any]
    ) -> None:
        self._table, self._containers, self._files = table, containers, files
        self._has_splits: bool = description["has_splits"]
        self._classes: list[str] | None = description["classes"]
        self._splits = [split_of_container(each.key) for each in containers]

    def boundaries(self, most: int, min_images: int) -> list[str]:
        """Return keys that divide the rows into ranges of about equal size."""
        rows = len(self._table)
        parts = min(most, rows // max(1, min_images))
        return list(dict.fromkeys(self._key(rows * part // parts) for part in range(1, parts)))

    def items(self, keys: KeyRange) -> Iterator[Found]:
        """Yield the rows in a range."""
        if self._classes is not None:
            yield Classes(tuple(self._classes), {})
        end = self._position(keys.end) if keys.end else len(self._table)
        for start in range(self._position(keys.first), end, _BATCH):
            rows = self._table.slice(start, min(_BATCH, end - start))
            keys_and_numbers = zip(rows["key"].to_pylist(), rows["container"].to_pylist(), strict=True)
            fields = zip(*(rows[name].to_pylist() for name in _ROWS.names), strict=True)
            for (key, number), row in zip(keys_and_numbers, fields, strict=True):
                yield self._found(_text(key), number, _Row(*row))

    def _found(self, key: str, number: int, row: _Row) -> Found:
        if row.reason:
            return Skipped(key, row.reason)
        files = self._files[number]
        image = Listed(
            key=key,
            labels=tuple(row.labels),
            split=row.split,
            size=row.size,
            generation=self._containers[number].generation,
            crc32c=row.crc32c,
            group=row.group,
            boxes=tuple(Box(*box) for box in json.loads(row.boxes)) if row.boxes else (),
            extent=files.copy_at(row.offset) if row.is_copy else files.container_at(row.offset),
        )
        if not image.labels:
            # The key may be a number, which names no folder.
            named = classify(image._replace(key=_text(row.name)), self._has_splits)
            if isinstance(named, Skipped):
                return Skipped(key, named.reason)
            image = named._replace(key=key)
        return image._replace(split=image.split or self._splits[number])

    def _position(self, key: str) -> int:
        """Return the number of the first row whose key does not come before `key`."""
        wanted, low, high = bytes_of(key), 0, len(self._table)
        while low < high:
            middle = (low + high) // 2
            if self._table["key"][middle].as_py() < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def _key(self, number: int) -> str:
        return _text(self._table["key"][number].as_py())


@contextmanager
def open_index(containers: Sequence[Container], others: Sequence[Skipped], options: SourceOptions) -> Iterator[Index]:
    """Give the index of a source of some containers. What is missing of it is made first.

    `others` are the files beside the containers.

    Raises:
        SourceError: If a container cannot be read.
    """
    if not options.copies:
        raise ValueError("SourceOptions.copies is empty: give a folder for the indexes of containers")
    state_beside = cache(_state_beside)  # Many containers are in one folder.
    files = [_Files.of(each, options, state_beside(each.format.BESIDE, each.place.parent)) for each in containers]
    folder = place_of(options.copies)
    name = _hash([[each.name for each in files], *map(list, others)])
    rows, description = folder / f"{name}.arrow", folder / f"{name}.json"
    known = unless_missing(partial(storage.read_json, description))
    if not known or not rows.is_file() or not all(map(_are_there, files, known["have_copies"])):
        with progress("containers", len(containers), "files") as advance:
            described = []
            works = zip(containers, files, strict=True)
            for each in ordered_map(lambda work: _described(*work, options), works, THREADS, THREADS):
                described.append(each)
                advance(1)
        known = _write_source_index(rows, containers, files, described, others)
        storage.sync_folder(folder)
        storage.write_json(description, known, synced=True)
    with storage.local_copy(rows) as path, pa.memory_map(str(path)) as mapped:
        yield Index(pa.ipc.open_file(mapped).read_all(), containers, files, known)


def split_of_container(key: str) -> str:
    """Return the split that the name of a container or of its folder names; empty if there is none.

    For example, `data/train-00000-of-00012.parquet` and `flowers-1.0-train-3.tar` belong to the training split.
    """
    *folders, name = key.split("/")
    stems = [_NUMBER.sub("", part) for part in name.split(".")]
    words = [word for stem in stems for word in (stem, re.split("[-_]", stem)[-1])] + folders[::-1]
    return next((split for word in words if (split := split_of_word(word))), "")


@dataclass(frozen=True)
class _Files:
    """The files of a container in the workspace. Their name contains a hash of what decides their content."""

    name: str
    folder: Place
    container: str
    """Where the bytes of the container are: its key, or a local copy of an object."""
    is_fetched: bool
    """Whether this is a local copy."""
    copies: str
    """Where the images are that are copied."""

    @classmethod
    def of(cls, container: Container, options: SourceOptions, beside: Sequence[Any]) -> "_Files":
        """Return the files of a container that is read with some options, and with some files beside it."""
        columns = (options.path_column, options.label_column, options.split_column, options.group_column)
        identity = (
            str(container.place),
            container.key,
            container.size,
            container.generation,
            name_of(container.format),
        )
        name, folder = _hash([FORMAT, *identity, *columns, *beside, options.max_file_bytes]), place_of(options.copies)
        # In a workspace in a bucket, a copy would be no faster than the source.
        is_fetched = isinstance(container.place, BucketPath) and isinstance(folder, Path)
        return cls(
            name=name,
            folder=folder,
            container=str(folder / f"{name}.container") if is_fetched else container.key,
            is_fetched=is_fetched,
            copies=str(folder / f"{name}.images"),
        )

    def __getitem__(self, suffix: str) -> Place:
        return self.folder / f"{self.name}.{suffix}"

    def copy_at(self, offset: int) -> Extent:
        """Return where an image is that was copied."""
        return Extent(self.copies, offset, is_copy=True)

    def container_at(self, offset: int) -> Extent:
        """Return where an image is that the container holds as it is."""
        return Extent(self.container, offset, is_copy=self.is_fetched)


def _state_beside(names: Sequence[str], folder: Place) -> list[Sequence[int | None]]:
    """Return size and generation of some files."""
    return [measure(folder / name)[:2] for name in names if may_read(folder / name)]


def _content_beside(folder: Place, name: str) -> bytes | None:
    return unless_missing((folder / name).read_bytes) if may_read(folder / name) else None


def _hash(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _described(container: Container, files: _Files, options: SourceOptions) -> _Description:
    """Return the description of a container. The container is read first, unless it was."""
    if content := unless_missing(partial(storage.read_json, files["json"])):
        description = _Description(**content)
        if _are_there(files, description.has_copies):
            return description
    try:
        with _local_file(container, files) as file:
            description = _read(container, file, files, options)
    except FileNotFoundError as error:
        raise SourceError(f"{container.place} vanished while it was read: run again") from error
    except (DatasetError, *UNPACK_ERRORS, tarfile.TarError, pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, MemoryError):  # The container itself may be valid.
            raise
        reason = str(error).partition("\n")[0]
        if isinstance(error, OSError) and cause_of(error) == "transient":
            raise FileSystemError(f"{container.place} could not be read ({reason}): run again") from error
        form = name_of(container.format)
        raise SourceError(f"{container.place} cannot be read as a {form} file of images: {reason}") from error
    storage.sync_folder(files.folder)
    storage.write_json(files["json"], asdict(description), synced=True)
    return description


def _are_there(files: _Files, has_copies: bool) -> bool:
    """Whether all files of a container are there. A user may have removed some of them from a disk."""
    names = ["arrow", *["images"] * has_copies, *["container"] * files.is_fetched]
    return isinstance(files.folder, BucketPath) or all(files[name].is_file() for name in names)


@contextmanager
def _local_file(container: Container, files: _Files) -> Iterator[Path]:
    kept = files["container"]
    if not (files.is_fetched and isinstance(kept, Path) and isinstance(container.place, BucketPath)):
        with storage.local_copy(container.place, container.generation) as file:
            yield file
        return
    if not kept.is_file():
        with storage.write_whole(kept, synced=True) as target:
            storage.fetch(container.place, target, container.generation)
    yield kept


def _read(container: Container, file: Path, files: _Files, options: SourceOptions) -> _Description:
    """Write the rows of a container and its copies, and return its description."""
    description, folders = _Description([]), set()
    beside = partial(_content_beside, container.place.parent)
    with (
        storage.write_whole(files["arrow"], synced=True) as index,
        _Copies(files["images"]) as copies,
        pa.ipc.new_file(index, _ROWS) as writer,
    ):

        def rows() -> Iterator[_Row]:
            number = 0
            for item in _decoded(container.format.images(ContainerFile(file, container.place, beside), options)):
                if isinstance(item, Classes):
                    description.classes = list(item.names)
                elif isinstance(item, Skipped):
                    key = bytes_of(f"{container.key}/{item.key}")
                    number += 1  # Without it, a label that is added to a row would change the keys of all later rows.
                    yield _Row(key, reason=item.reason)
                else:
                    row = _row(item, container.key, number, copies)
                    number += 1
                    folders.add(posixpath.dirname(_text(row.name)))
                    description.needs_folders |= not row.labels
                    description.has_copies |= row.is_copy
                    yield row

        for batch in _batches(rows()):
            writer.write_batch(batch)
    description.folders = sorted(folders)
    return description


def _decoded(found: Iterator[_Item]) -> Iterator[_Item]:
    """Yield what a format yields."""
    try:
        yield from found
    except OSError as error:
        # gzip and bz2 report damage so. `write_whole` would name the file that it writes.
        if error.errno is None:
            raise ValueError(str(error)) from error
        raise


def _batches(rows: Iterable[_Row]) -> Iterator[pa.RecordBatch]:
    rest = iter(rows)
    while some := list(islice(rest, _BATCH)):
        columns = zip(*some, strict=True)
        yield pa.record_batch(
            [pa.array(column, field.type) for column, field in zip(columns, _ROWS, strict=True)], _ROWS
        )


def _row(image: ContainedImage, container: str, number: int, copies: "_Copies") -> _Row:
    content, name = image.content, image.name and posixpath.normpath(image.name).lstrip("/")
    suffix = suffix_of(name) or next((end for magic, end in _MAGIC if (content or b"").startswith(magic)), "")
    is_copy = content is not None and image.offset is None
    return _Row(
        name=bytes_of(name or _numbered(container, number, suffix)),
        number=number,
        suffix=suffix,
        labels=image.labels,
        split=image.split,
        group=image.group,
        offset=copies.add(content) if is_copy and content is not None else image.offset or 0,
        size=image.size if content is None else len(content),
        crc32c=None if content is None else google_crc32c.value(content),
        is_copy=is_copy,
        boxes=json.dumps(image.boxes) if image.boxes else "",
    )


def _numbered(container: str, number: int, suffix: str) -> str:
    return f"{container}/{number:08d}{suffix}"


class _Copies:
    """A file of images that follow each other. It exists only if there is an image."""

    def __init__(self, place: Place) -> None:
        self._place, self._size = place, 0
        self._stack = ExitStack()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "_Copies":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def add(self, content: bytes) -> int:
        """Write an image, and return where it begins."""
        if self._file is None:
            self._file = self._stack.enter_context(storage.write_whole(self._place, synced=True))
        self._file.write(content)
        self._size += len(content)
        return self._size - len(content)


def _write_source_index(
    place: Place,
    containers: Sequence[Container],
    files: Sequence[_Files],
    described: Sequence[_Description],
    others: Sequence[Skipped],
) -> dict[str, Any]:
    """Write the rows of all containers in the order of their keys, and return what is known of the source."""
    folders = {folder for each in described for folder in each.folders}
    prefix, has_splits = "", False
    if any(each.needs_folders for each in described):
        prefix = _common_folder(folders)
        below = {folder[len(prefix) :].partition("/")[0]: False for folder in folders}
        below |= {folder[len(prefix) :].partition("/")[0]: True for folder in folders if "/" in folder[len(prefix) :]}
        has_splits = are_splits([name for name in below if name], below.__getitem__, containers[0].place.parent)
    with ExitStack() as stack:
        tables = [_mapped(each["arrow"], stack) for each in files]
        beside = [_Row(bytes_of(key), reason=reason) for key, reason in others]
        tables.append(pa.Table.from_batches(_batches(beside), _ROWS))
        numbers = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table) for table in tables])
        table = pa.concat_tables(tables).combine_chunks()
        del tables
        table = _with_keys(table.append_column("container", pa.array(numbers)), bytes_of(prefix), containers)
        order = compute.sort_indices(table["key"])
        with storage.write_whole(place, synced=True) as file, pa.ipc.new_file(file, table.schema) as writer:
            for start in range(0, len(order), _BATCH):
                writer.write_table(table.take(order.slice(start, _BATCH)))
    return {
        "has_splits": has_splits,
        "classes": _classes(containers, described),
        "have_copies": [each.has_copies for each in described],
    }


def _mapped(place: Place, stack: ExitStack) -> pa.Table:
    path = stack.enter_context(storage.local_copy(place))
    return pa.ipc.open_file(stack.enter_context(pa.memory_map(str(path)))).read_all()


def _common_folder(folders: Collection[str]) -> str:
    """Return the path of the folders above all classes, with a slash at its end, for example that of a packed folder.

    A folder of a split is none of them. Images beside the folders of the classes do not count.
    """
    inner = [folder for folder in folders if not all(_is_below(other, folder) for other in folders)]
    if len(inner) > 1:
        folders = inner
    # The last folder of an image is its class.
    above = [folder.split("/")[:-1] for folder in folders]
    prefix = ""
    for names in zip(*above, strict=False):
        if len(set(names)) > 1 or split_of_word(names[0]):
            break
        prefix += f"{names[0]}/"
    return prefix


def _is_below(folder: str, above: str) -> bool:
    return not above or f"{folder}/".startswith(f"{above}/")


def _with_keys(table: pa.Table, prefix: bytes, containers: Sequence[Container]) -> pa.Table:
    """Return the rows with their keys: the name without the prefix, or the number if the name is not unique."""
    names, is_image = table["name"], compute.equal(table["reason"], "")
    if prefix:
        shorter = compute.binary_replace_slice(names, 0, len(prefix), b"")
        names = compute.if_else(compute.and_(is_image, compute.starts_with(names, prefix)), shorter, names)
        table = table.set_column(table.column_names.index("name"), "name", names)
    repeated = _repeated(names)
    if repeated.any():
        rows = table.select(["container", "number", "suffix"]).filter(pa.array(repeated))
        fields = zip(*(column.to_pylist() for column in rows.columns), strict=True)
        keys = [bytes_of(_numbered(containers[place].key, *others)) for place, *others in fields]
        names = compute.replace_with_mask(names.combine_chunks(), pa.array(repeated), pa.array(keys, pa.large_binary()))
    return table.append_column("key", names)


def _repeated(names: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return for each name whether there is another equal one."""
    order = compute.sort_indices(names).to_numpy()
    in_order = names.take(pa.array(order))
    equals_next = compute.equal(in_order.slice(1), in_order.slice(0, max(0, len(names) - 1)))
    repeated = np.zeros(len(names), bool)
    for rows in (order[1:], order[:-1]):
        repeated[rows[equals_next.to_numpy()]] = True
    return repeated


def _classes(containers: Sequence[Container], described: Sequence[_Description]) -> list[str] | None:
    """Return the classes that the containers state. Raises SourceError if two state different ones."""
    stated = [(each, found.classes) for each, found in zip(containers, described, strict=True) if found.classes]
    for container, classes in stated[1:]:
        if classes != stated[0][1]:
            raise SourceError(
                f"{stated[0][0].place} and {container.place} name different classes, or in another order: the ids of "
                "the labels would be wrong. Write both with the same classes"
            )
    return stated[0][1] if stated else None
