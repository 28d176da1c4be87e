"""The rows of a container: the name, checksum and place of each image, in the order of the container.

A container is read once, from front to back, or in pieces if its format can divide it. The rows of each piece go into a
file, which is kept, so that a second listing reads only new containers. Images that a container does not hold as they
are go into a file of copies beside the rows. A container in a bucket is read from a local copy. If the workspace is
local, this copy is kept, and its images are read there. Otherwise, they are later read as ranges of the object.
"""

import json
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import islice, starmap
from pathlib import Path
from typing import IO, Any, NamedTuple

import google_crc32c
import pyarrow as pa

from pipeline import storage
from pipeline.config.allowed import may_read
from pipeline.errors import DatasetError, FileSystemError, SourceError
from pipeline.sources import Classes, Extent, Skipped, SourceOptions, measure
from pipeline.sources.box_forms import BoxForms
from pipeline.sources.compression import UNPACK_ERRORS
from pipeline.sources.container_formats import (
    START,
    AmbiguousFormat,
    Bound,
    ContainedImage,
    ContainerFile,
    DividingFormat,
    Fields,
    Format,
    Item,
    LabelForms,
    in_one_spelling,
    name_of,
)
from pipeline.sources.kept_files import (
    has_checksum,
    hash_of,
    kept_folder,
    note_use,
    read_kept,
    remove_unused,
    write_kept,
)
from pipeline.sources.key_range import bytes_of, text_of_key
from pipeline.sources.split_names import split_of_word
from pipeline.sources.suffixes import suffix_of
from pipeline.storage import BucketPath, Place
from pipeline.system.os_errors import cause_of, unless_missing

FORMAT = 8
"""Increase this if the files of an index change. Containers are then read again."""
BATCH_ROWS = 4096
"""At most this many rows are Python objects at the same time."""
_DAMAGE = (DatasetError, *UNPACK_ERRORS, tarfile.TarError, pa.ArrowException, OSError, ValueError)
"""What reading a damaged container raises."""
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


@dataclass(frozen=True)
class Piece:
    """A container, or its rows from `first` up to `end`, which is excluded."""

    container: Container
    first: Bound = START
    end: Bound | None = None

    @classmethod
    def of(cls, container: Container, first: Sequence[int], end: Sequence[int] | None) -> "Piece":
        """Return the piece of a container between two bounds that were read from JSON."""
        return cls(container, Bound(*first), None if end is None else Bound(*end))


class Row(NamedTuple):
    """A row of the index of a container."""

    name: bytes
    """The path of the image in the container; a number if it has none. For what is skipped, the key."""
    suffix: str = ""
    """The suffix of its key if other images have the same name. Such a key has the number of the row."""
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
    """The boxes as JSON, in the form of the container; empty if there are none."""


ROWS = pa.schema(
    {
        "name": pa.large_binary(),
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
class Description:
    """What is known of a container after it was read. It is written last: if it exists, the other files are whole."""

    folders: list[str]
    """The folders of the images in the container."""
    needs_folders: bool = False
    """Whether an image has no label of its own, so that its folder is the label."""
    has_labels: bool = False
    """Whether an image has a label."""
    numbers: list[str] = field(default_factory=list)
    """The labels that are numbers, if the container does not state what they mean."""
    classes: list[str] | None = None
    """The labels in the order of their ids, if the container states them."""
    has_copies: bool = False
    box_forms: dict[str, Any] | None = None
    """The fields of BoxForms, if the container does not tell the form of its boxes."""
    fields: dict[str, Any] | None = None
    """Those of Fields, if a setting names a field and there is an image."""
    label_forms: dict[str, Any] | None = None
    """Those of LabelForms, if the labels of the format may be texts or numbers."""
    no_split: str = ""
    """The first value in place of a split that names none; empty if all values do."""
    states_splits: bool = False
    """Whether a value names a split."""
    crc32c: int = 0
    """That of the file of rows."""


@dataclass(frozen=True)
class Files:
    """The files of a piece of a container, in the workspace.

    Their name has a hash of the container and of how it is read, and a hash of its state.
    """

    name: str
    folder: Place
    container: str
    """The place of the bytes of the container: its key, or a local copy of an object."""
    is_fetched: bool
    """Whether this is a local copy."""
    copies: str
    """The file with the copies of images that the container does not hold as they are."""

    @classmethod
    def of(cls, piece: Piece, options: SourceOptions, beside: Sequence[Any]) -> "Files":
        """Return the files of a piece that is read with some options, and with some files beside its container."""
        container = piece.container
        columns = (options.path_column, options.label_column, options.split_column, options.group_column)
        identity = (str(container.place), container.key, name_of(container.format), *columns, options.max_file_bytes)
        state = (FORMAT, container.size, container.generation, piece.first, piece.end, *beside)
        name, folder = f"{hash_of(identity)}-{hash_of(state)}", kept_folder(options)
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

    @property
    def places(self) -> list[Place]:
        """All files that a piece may have."""
        return [self[suffix] for suffix in ("arrow", "json", "images", "container", "bounds")]

    def copy_at(self, offset: int) -> Extent:
        """Return where an image is that was copied."""
        return Extent(self.copies, offset, is_copy=True)

    def container_at(self, offset: int) -> Extent:
        """Return where an image is that the container holds as it is."""
        return Extent(self.container, offset, is_copy=self.is_fetched)


def pieces_of(containers: Sequence[Container], options: SourceOptions, max_bytes: int) -> Iterator[Piece]:
    """Yield the pieces of containers in their order, each of about `max_bytes`.

    A container in a bucket is copied, so it is one piece.
    """
    for container, files in zip(containers, files_of(map(Piece, containers), options), strict=True):
        bounds = _kept_bounds(files, max_bytes) if may_be_divided(container, max_bytes) else ()
        if bounds is None:
            bounds = divide(container, files, options, max_bytes)
        ends = (*bounds, None)
        yield from map(partial(Piece, container), (START, *bounds), ends)


def undivided(containers: Sequence[Container], options: SourceOptions, max_bytes: int) -> list[Container]:
    """Return the containers whose pieces of about `max_bytes` are not known yet."""
    large = [container for container in containers if may_be_divided(container, max_bytes)]
    files = files_of(map(Piece, large), options)
    return [container for container, each in zip(large, files, strict=True) if _kept_bounds(each, max_bytes) is None]


def may_be_divided(container: Container, max_bytes: int) -> bool:
    """Whether a container may have several pieces of about `max_bytes`."""
    return (
        container.size >= 2 * max_bytes
        and isinstance(container.place, Path)
        and isinstance(container.format, DividingFormat)
    )


def divide(container: Container, files: Files, options: SourceOptions, max_bytes: int) -> Sequence[Bound]:
    """Find the bounds of the pieces of a container, and keep them."""
    bounds: Sequence[Bound] = ()
    assert isinstance(container.format, DividingFormat)
    try:
        with container.place.open("rb") as file:
            bounds = container.format.bounds(file, options, max_bytes)
    except _DAMAGE as error:
        # Damage is reported when the container is read. No bounds are kept for an error that may not come again.
        if _is_temporary(error):
            raise
        if isinstance(error, OSError) and cause_of(error) != "content":
            return ()
    write_kept(files["bounds"], [max_bytes, *bounds])
    return bounds


def _is_temporary(error: Exception) -> bool:
    """Whether the container itself may be valid."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and cause_of(error) == "transient")


def _kept_bounds(files: Files, max_bytes: int) -> Sequence[Bound] | None:
    """Return the bounds that `divide` found; None if it did not, or for pieces of another size."""
    note_use([files["bounds"]])
    of_size, *bounds = read_kept(files["bounds"]) or [None]
    return list(starmap(Bound, bounds)) if of_size == max_bytes else None


def files_of(pieces: Iterable[Piece], options: SourceOptions) -> list[Files]:
    """Return the files of pieces that are read with some options."""
    state_beside = cache(_state_beside)  # Many containers are in one folder.
    return [
        Files.of(each, options, state_beside(each.container.format.BESIDE, each.container.place.parent))
        for each in pieces
    ]


def remove_old(files: Sequence[Files]) -> None:
    """Remove from a disk what is left of earlier states of some containers. `files` are those of the present state.

    Files that were listed in the last day stay, because a run may need them.
    """
    folder = files[0].folder
    if isinstance(folder, Path):
        used = {each.name for each in files}
        containers = {name.partition("-")[0] for name in used}
        stems = {path.name: path.stem for path in folder.iterdir()}
        old = [name for name, stem in stems.items() if stem.partition("-")[0] in containers and stem not in used]
        remove_unused(folder, storage.local.ORPHAN_AGE_S, old)


def are_there(files: Files, has_copies: bool) -> bool:
    """Whether all files of a piece are there. A user may have removed some of them from a disk."""
    names = ["arrow", *["images"] * has_copies, *["container"] * files.is_fetched]
    return isinstance(files.folder, BucketPath) or all(files[name].is_file() for name in names)


def known(files: Files) -> Description | None:
    """Return the description of a piece; None if it must be read, maybe because a file is damaged."""
    # Noted first: from now on, no listing of another source removes the files.
    note_use(files.places)
    content = read_kept(files["json"])
    description = Description(**content) if content else None
    if description and are_there(files, description.has_copies) and has_checksum(files["arrow"], description.crc32c):
        return description
    return None


def described(piece: Piece, files: Files, options: SourceOptions) -> Description:
    """Return the description of a piece, which is read first, unless it was.

    Raises:
        SourceError: The container cannot be read.
    """
    if description := known(files):
        return description
    container = piece.container
    try:
        with _local_file(container, files) as file:
            description = _read(piece, file, files, options)
    except FileNotFoundError as error:
        raise SourceError(f"{container.place} vanished while it was read: run again") from error
    except _DAMAGE as error:
        if isinstance(error, MemoryError):
            raise
        reason = str(error).partition("\n")[0]
        if _is_temporary(error):
            raise FileSystemError(f"{container.place} could not be read ({reason}): run again") from error
        form = name_of(container.format)
        raise SourceError(f"{container.place} cannot be read as a {form} file of images: {reason}") from error
    # Other pieces of the file may be those of another state.
    if isinstance(container.place, Path) and measure(container.place)[:2] != (container.size, container.generation):
        raise SourceError(f"{container.place} changed while it was read: run again when nothing changes it")
    description.crc32c = storage.crc32c_of(files["arrow"])
    storage.sync_folder(files.folder)
    write_kept(files["json"], asdict(description))
    return description


def _state_beside(names: Sequence[str], folder: Place) -> list[Sequence[int | None]]:
    """Return size and generation of some files."""
    return [measure(folder / name)[:2] for name in names if may_read(folder / name)]


def _content_beside(folder: Place, name: str) -> bytes | None:
    return unless_missing((folder / name).read_bytes) if may_read(folder / name) else None


@contextmanager
def _local_file(container: Container, files: Files) -> Iterator[Path]:
    kept = files["container"]
    if not (files.is_fetched and isinstance(kept, Path) and isinstance(container.place, BucketPath)):
        with storage.local_copy(container.place, container.generation) as file:
            yield file
        return
    if not kept.is_file():
        with storage.write_whole(kept, synced=True) as target:
            storage.fetch(container.place, target, container.generation)
    yield kept


def _read(piece: Piece, file: Path, files: Files, options: SourceOptions) -> Description:
    """Write the rows of a piece and its copies, and return its description."""
    container, description, folders, labels = piece.container, Description([]), set[bytes](), set[str]()
    beside = partial(_content_beside, container.place.parent)
    with (
        storage.write_whole(files["arrow"], synced=True) as index,
        _Copies(files["images"]) as copies,
        pa.ipc.new_file(index, ROWS) as writer,
    ):

        def rows() -> Iterator[Row]:
            number = piece.first.row
            opened = ContainerFile(file, container.place, beside, piece.first, piece.end)
            for item in _decoded(container.format.images(opened, options)):
                if isinstance(item, Classes):
                    description.classes = list(item.names)
                elif isinstance(item, BoxForms):
                    description.box_forms = asdict(item)
                elif isinstance(item, Fields):
                    description.fields = item._asdict() if folders else None
                elif isinstance(item, LabelForms):
                    description.label_forms = item._asdict()
                elif isinstance(item, Skipped):
                    number += 1
                    yield Row(bytes_of(f"{container.key}/{item.key}"), reason=item.reason)
                else:
                    split = split_of_word(item.split) if item.split.strip() else ""
                    if split is None and options.split_column:
                        raise ValueError(
                            f"{_shown_name(item.name, number, container.format)} has the split {item.split!r}: it must "
                            "be train, validation or test"
                        )
                    if split is None:
                        description.no_split = description.no_split or item.split
                    description.states_splits |= bool(split)
                    row = _row(item, split or "", container.key, number, copies)
                    number += 1
                    folders.add(row.name.rpartition(b"/")[0])
                    description.needs_folders |= not row.labels
                    labels.update(row.labels)
                    description.has_copies |= row.is_copy
                    yield row

        for batch in batches(rows()):
            writer.write_batch(batch)
    description.folders = sorted(map(text_of_key, folders))
    description.has_labels = bool(labels)
    description.numbers = [] if description.classes else sorted(filter(str.isdecimal, labels))
    return description


def _shown_name(name: str, number: int, form: Format) -> str:
    """Return the name of an image for an error. In a file of rows, several may have one name."""
    row = f"row {number + 1}"
    if not name:
        return row
    return f"{row} ({name})" if isinstance(form, AmbiguousFormat) else name


def _decoded(found: Iterator[Item]) -> Iterator[Item]:
    """Yield what a format yields."""
    try:
        yield from found
    except OSError as error:
        # gzip and bz2 report damage so. `write_whole` would name the file that it writes.
        if error.errno is None:
            raise ValueError(str(error)) from error
        raise


def batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of Arrow."""
    rest = iter(rows)
    while some := list(islice(rest, BATCH_ROWS)):
        columns = zip(*some, strict=True)
        yield pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)], ROWS)


def _row(image: ContainedImage, split: str, container: str, number: int, copies: "_Copies") -> Row:
    content, name = image.content, in_one_spelling(image.name)
    suffix = suffix_of(name) or next((end for magic, end in _MAGIC if (content or b"").startswith(magic)), "")
    is_copy = content is not None and image.offset is None
    return Row(
        name=bytes_of(name or numbered(container, number, suffix)),
        suffix=suffix,
        labels=image.labels,
        split=split,
        group=image.group,
        offset=copies.add(content) if is_copy and content is not None else image.offset or 0,
        size=image.size if content is None else len(content),
        crc32c=None if content is None else google_crc32c.value(content),
        is_copy=is_copy,
        boxes=json.dumps(image.boxes) if image.boxes else "",
    )


def numbered(container: str, number: int, suffix: str) -> str:
    """Return the key of an image whose name is not unique."""
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
        """Write an image, and return its offset in the file, in bytes."""
        if self._file is None:
            self._file = self._stack.enter_context(storage.write_whole(self._place, synced=True))
        self._file.write(content)
        self._size += len(content)
        return self._size - len(content)
