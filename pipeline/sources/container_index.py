"""The index of a source of containers: the key, checksum and place of each image, in the order of the keys.

It joins the rows of all pieces of containers: see container_rows.py. Only then it is known which names are unique. It
is kept, too, and each range of keys reads its own rows of it.
"""

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, starmap
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from pipeline import storage
from pipeline.errors import SourceError
from pipeline.sources import Box, Classes, Found, Listed, Skipped, SourceOptions
from pipeline.sources.box_forms import BoxForms, with_corners
from pipeline.sources.container_formats import MAX_FIELDS, START, Fields, LabelForms
from pipeline.sources.container_rows import (
    BATCH_ROWS,
    ROWS,
    Container,
    Description,
    Files,
    Piece,
    Row,
    are_there,
    batches,
    described,
    files_of,
    known,
    numbered,
    pieces_of,
    remove_old,
    undivided,
)
from pipeline.sources.folder import are_splits, named_by_folders
from pipeline.sources.kept_files import has_checksum, hash_of, kept_folder, note_use, read_kept, write_kept
from pipeline.sources.key_range import KeyRange, bytes_of, range_bytes, text_of_key
from pipeline.sources.sorted_rows import SortedRows, write_sorted
from pipeline.sources.split_names import split_of_path, split_of_word
from pipeline.storage import BucketPath, Place
from pipeline.system.arrow import little_memory
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

THREADS = 4
"""This many containers of a bucket are read at the same time."""
DIVIDED_BYTES = 1_000_000_000
"""A task finds the pieces of containers with about this many bytes, which takes a fraction of a second."""
Each = TypeVar("Each")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Known:
    """What is known of a source after its index was written. It is written last, as JSON."""

    pieces: Sequence[tuple[int, Sequence[int], Sequence[int] | None]]
    """Of each piece: the number of its container, and its bounds."""
    have_copies: Sequence[bool]
    """Whether each piece has copies."""
    have_sizes: Sequence[bool]
    """Whether the boxes of each piece are x, y, width and height."""
    have_labels: Sequence[bool]
    """Whether the container of each piece has labels, so that an image without one is skipped."""
    has_splits: bool
    """Whether the folders in the containers are splits."""
    unused_split: str
    """A value in place of a split that names none, with its file; empty if all values do."""
    classes: Sequence[str] | None
    crc32c: int
    """That of the rows of the index."""

    def pieces_of(self, containers: Sequence[Container]) -> list[Piece]:
        """Return the pieces of the source."""
        return [Piece.of(containers[number], first, end) for number, first, end in self.pieces]


class Index:
    """The rows of a source in the order of their keys. One batch of them is in memory."""

    def __init__(self, rows: SortedRows, pieces: Sequence[Piece], files: Sequence[Files], known: _Known) -> None:
        self._rows, self._pieces, self._files, self._known = rows, pieces, files, known
        self._splits = _splits_of([each.container.key for each in pieces])

    def boundaries(self, most: int, min_images: int) -> list[str]:
        """Return keys that divide the rows into ranges of about equal size."""
        return self._rows.boundaries(most, min_images)

    def items(self, keys: KeyRange) -> Iterator[Found]:
        """Yield the rows in a range. That of the first key warns of splits that are not used."""
        if not keys.first:
            self._warn_of_unused_splits()
        if self._known.classes is not None:
            yield Classes(tuple(self._known.classes), {})
        for rows in self._rows.batches(keys):
            for start in range(0, len(rows), BATCH_ROWS):
                yield from self._found(rows.slice(start, BATCH_ROWS))

    def _found(self, rows: pa.RecordBatch) -> Iterator[Found]:
        keys_and_pieces = zip(rows["key"].to_pylist(), rows["piece"].to_pylist(), strict=True)
        fields = zip(*(rows[name].to_pylist() for name in ROWS.names), strict=True)
        for (key, piece), row in zip(keys_and_pieces, map(Row._make, fields), strict=True):
            yield self._image(text_of_key(key), piece, row)

    def _image(self, key: str, piece: int, row: Row) -> Found:
        if row.reason:
            return Skipped(key, row.reason)
        labels, split = row.labels, row.split
        if not labels:
            if self._known.have_labels[piece]:
                return Skipped(key, "no label")
            # The key may be a number, which names no folder.
            named = named_by_folders(text_of_key(row.name), self._known.has_splits)
            if isinstance(named, Skipped):
                return Skipped(key, named.reason)
            labels, split = (named.label,), split or named.split
        files, name = self._files[piece], text_of_key(row.name)
        return Listed(
            key=key,
            labels=tuple(labels),
            split=split or self._splits[piece],
            size=row.size,
            generation=self._pieces[piece].container.generation,
            crc32c=row.crc32c,
            group=row.group,
            boxes=self._boxes(row.boxes, self._known.have_sizes[piece]) if row.boxes else (),
            extent=files.copy_at(row.offset) if row.is_copy else files.container_at(row.offset),
            name="" if name == key else name,
        )

    def _warn_of_unused_splits(self) -> None:
        if self._known.unused_split:
            _log.warning(
                "%s: the splits of the images are not used. To use those of another column, name it in split_column",
                self._known.unused_split,
            )
        first = self._pieces[0].container.key
        if split_of_path(first) != self._splits[0]:
            _log.warning(
                "%s names a split that is not used, because no file is for training: to keep the splits, add a file "
                "whose name or folder is train",
                first,
            )

    @staticmethod
    def _boxes(content: str, have_sizes: bool) -> tuple[Box, ...]:
        boxes = starmap(Box, json.loads(content))
        return tuple(map(with_corners, boxes) if have_sizes else boxes)


@contextmanager
def open_index(
    containers: Sequence[Container], others: Sequence[Skipped], options: SourceOptions, is_range: bool = False
) -> Iterator[Index]:
    """Give the index of a source of some containers. What is missing of it is made first.

    `others` are the files beside the containers. If only a range of the keys is read, another task has just read the
    boundaries of the ranges. It checked the index, noted which files the run uses, and removed old ones.

    Raises:
        SourceError: If a container cannot be read.
    """
    with little_memory():
        stored = _Stored.of(containers, others, options)
        content = stored.load(containers, options, notes_use=not is_range)
        if content and not is_range and not has_checksum(stored.rows, content.crc32c):
            content = None
        if content is None:
            pieces = list(pieces_of(containers, options, range_bytes()))
            files = files_of(pieces, options)
            found = _read_all(pieces, files, options)
            content = _write_index(stored.rows, containers, pieces, files, found, others)
            stored.save(content)
        pieces = content.pieces_of(containers)
        files = files_of(pieces, options)
        if not is_range:
            remove_old([*files, *stored.of_containers])
        with storage.local_copy(stored.rows) as path:
            yield Index(SortedRows(path), pieces, files, content)


def undivided_groups(
    containers: Sequence[Container], others: Sequence[Skipped], options: SourceOptions, most: int
) -> list[list[Container]]:
    """Return the containers whose pieces must be found before they are read, in at most about `most` groups.

    Each group has about `DIVIDED_BYTES` or more.
    """
    if _Stored.of(containers, others, options).load(containers, options):
        return []
    found = undivided(containers, options, range_bytes())
    return grouped(found, [each.size for each in found], max(DIVIDED_BYTES, sum(each.size for each in found) // most))


def unread_pieces(
    containers: Sequence[Container], others: Sequence[Skipped], options: SourceOptions, most: int
) -> list[list[Piece]]:
    """Return the pieces that must be read before the index of a source is made, in at most about `most` groups.

    Each group has about `range_bytes()` or more.
    """
    if _Stored.of(containers, others, options).load(containers, options):
        return []
    pieces = list(pieces_of(containers, options, range_bytes()))
    if len(pieces) == 1 and containers[0].size >= 2 * range_bytes():
        _log.info("%s is one file, which one process reads: several smaller files would be faster", containers[0].key)
    counts = Counter(piece.container.key for piece in pieces)
    group_bytes = max(range_bytes(), sum(each.size for each in containers) // most)
    unknown = [piece for piece, each in zip(pieces, files_of(pieces, options), strict=True) if not known(each)]
    sizes = [piece.container.size // counts[piece.container.key] for piece in unknown]
    return grouped(unknown, sizes, group_bytes)


def grouped(items: Iterable[Each], sizes: Iterable[int], group_bytes: int) -> list[list[Each]]:
    """Return items in groups that follow each other, each of about `group_bytes` or more."""
    groups: list[list[Each]] = []
    free = 0
    for item, size in zip(items, sizes, strict=True):
        if free <= 0:
            groups.append([])
            free = group_bytes
        groups[-1].append(item)
        free -= size
    return groups


@dataclass(frozen=True)
class _Stored:
    """The files of the index of a source."""

    rows: Place
    description: Place
    of_containers: Sequence[Files]
    """The files of each container as one piece, among which are its bounds."""

    @classmethod
    def of(cls, containers: Sequence[Container], others: Sequence[Skipped], options: SourceOptions) -> "_Stored":
        files = files_of(map(Piece, containers), options)
        name, folder = hash_of([[each.name for each in files], *map(list, others)]), kept_folder(options)
        return cls(folder / f"{name}.arrow", folder / f"{name}.json", files)

    def load(self, containers: Sequence[Container], options: SourceOptions, notes_use: bool = True) -> _Known | None:
        """Return what is known of the source; None if the index must be made."""
        # Noted first: from now on, no listing of another source removes the files.
        if notes_use:
            note_use([self.rows, self.description, *(each["bounds"] for each in self.of_containers)])
        content = read_kept(self.description)
        if not content or not self.rows.is_file():
            return None
        found = _Known(**content)
        files = files_of(found.pieces_of(containers), options)
        if notes_use:
            note_use(chain.from_iterable(each.places for each in files))
        return found if all(map(are_there, files, found.have_copies)) else None

    def save(self, content: _Known) -> None:
        storage.sync_folder(self.rows.parent)
        write_kept(self.description, asdict(content))


class _Total:
    """What is known of all pieces of a source together. It does not grow with what several of them have."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}
        """The folders of images, each with the container that has it; empty if several have it."""
        self.needs_folders = False
        self.with_labels: set[str] = set()
        """The containers that have labels."""
        self.have_copies: list[bool] = []
        self.classes: list[str] | None = None
        """The classes that the containers state."""
        self._first_with_classes = self._first_with_boxes = self._first_with_numbers = ""
        self._numbers: dict[str, None] = {}
        """Labels that are numbers, from pieces that state no classes. A dictionary keeps their order."""
        self._label_forms = LabelForms({}, {})
        """As of one container, with the file of each label."""
        self.no_split = ""
        """A value in place of a split that names none, with its file; empty if all values do."""
        self._states_splits = False
        self._box_forms: BoxForms | None = None
        self._have_box_forms: list[bool] = []
        self._fields: dict[str, None] = {}
        """Some fields of all images, in the order in which they were found."""
        self._fields_of: dict[str, Fields] = {}
        """Those of each container."""

    def add(self, container: Container, piece: Description) -> None:
        """Add the next piece, from this container. Raises SourceError if it contradicts another one."""
        place = container.place
        for folder in piece.folders:
            self.folders[folder] = container.key if self.folders.get(folder, container.key) == container.key else ""
        self.needs_folders |= piece.needs_folders
        if piece.has_labels:
            self.with_labels.add(container.key)
        self.have_copies.append(piece.has_copies)
        self._have_box_forms.append(piece.box_forms is not None)
        if piece.no_split:
            self.no_split = self.no_split or (
                f"{place} has the split {piece.no_split!r}, which is none of train, validation and test"
            )
        self._states_splits |= piece.states_splits
        if piece.classes:
            self._add_classes(place, piece.classes)
        elif piece.numbers:
            self._first_with_numbers = self._first_with_numbers or str(place)
            self._numbers |= dict.fromkeys(piece.numbers)
        if piece.box_forms:
            self._add_box_forms(place, BoxForms(**piece.box_forms))
        if piece.fields:
            self._add_fields(place, Fields(**piece.fields))
        if piece.label_forms:
            self._add_label_forms(place, LabelForms(**piece.label_forms))

    def _add_classes(self, place: Place, classes: list[str]) -> None:
        if self.classes is None:
            self.classes, self._first_with_classes = classes, str(place)
        elif classes != self.classes:
            raise SourceError(
                f"{self._first_with_classes} and {place} name different classes, or in another order: the ids of "
                "the labels would be wrong. Write both with the same classes"
            )

    def require_names(self) -> None:
        """Raise SourceError if some files name the classes, and others have only their numbers."""
        unnamed = next((number for number in self._numbers if number not in (self.classes or [number])), None)
        if unnamed is not None:
            raise SourceError(
                f"{self._first_with_classes} names the classes, but {self._first_with_numbers} names none and has the "
                f"label {unnamed}: they would become different classes. Write both with the names of the classes"
            )

    def _add_label_forms(self, place: Place, forms: LabelForms) -> None:
        for before, found in zip(self._label_forms, forms, strict=True):
            for labeled, first in found.items():
                before.setdefault(labeled, f"{place} has {first}")

    def require_one_form(self) -> None:
        """Raise SourceError if some labels are texts and others are numbers, which may name the same classes."""
        texts, numbers = self._label_forms
        for labeled in texts.keys() & numbers.keys():
            raise SourceError(
                f"{texts[labeled]}, but {numbers[labeled]}, without a text: one class would become two. Name one of "
                "these features in label_column, so that images without it are skipped, or write all texts"
            )

    def _add_fields(self, place: Place, fields: Fields) -> None:
        if len(self._fields) < MAX_FIELDS:
            self._fields |= dict.fromkeys(fields.names)
        before = self._fields_of.get(str(place), fields).absent
        absent = {setting: name for setting, name in fields.absent.items() if setting in before}
        self._fields_of[str(place)] = fields._replace(names=(), absent=absent)

    def require_fields(self) -> None:
        """Raise SourceError if a setting names a field that no image of a container has."""
        advice = f"name one of the fields ({', '.join(self._fields)}), or none" if self._fields else "leave it empty"
        for place, fields in self._fields_of.items():
            for setting, name in fields.absent.items():
                raise SourceError(f"{setting} is {name!r}, but no {fields.holder} in {place} has it: {advice}")

    def require_splits(self) -> None:
        """Raise SourceError if only some values name a split. Otherwise, test images would be trained on."""
        if self.no_split and self._states_splits:
            raise SourceError(
                f"{self.no_split}, but others name one of these: correct the values, or rename the column if it "
                "holds no splits"
            )

    def _add_box_forms(self, place: Place, forms: BoxForms) -> None:
        if self._box_forms is None:
            self._box_forms, self._first_with_boxes = forms, str(place)
            return
        try:
            self._box_forms.merge(forms)
        except ValueError as error:
            is_first = str(place) == self._first_with_boxes  # Another piece of the same file.
            problem = "cannot be read as a file of images" if is_first else "does not fit the other files"
            raise SourceError(f"{place} {problem}: {error}") from error

    def have_sizes(self) -> list[bool]:
        """Return for each piece whether its boxes are x, y, width and height. All boxes of the source decide it.

        Raises SourceError if both forms are possible.
        """
        try:
            have_sizes = self._box_forms is not None and not self._box_forms.are_corners()
        except ValueError as error:
            raise SourceError(f"{self._first_with_boxes} cannot be read as a file of images: {error}") from error
        return [have_sizes and has_forms for has_forms in self._have_box_forms]


def _read_all(pieces: Sequence[Piece], files: Sequence[Files], options: SourceOptions) -> _Total:
    """Read what was not read yet, in this process."""
    # Reading a local file is work for a processor, which threads would share.
    threads = THREADS if isinstance(pieces[0].container.place, BucketPath) else 1
    total = _Total()
    with progress("containers", len(pieces), "files") as advance:
        works = zip(pieces, files, strict=True)
        descriptions = ordered_map(lambda work: described(*work, options), works, threads, threads)
        for piece, description in zip(pieces, descriptions, strict=True):
            total.add(piece.container, description)
            advance(1)
    total.require_names()
    total.require_one_form()
    total.require_fields()
    total.require_splits()
    return total


def _splits_of(keys: Sequence[str]) -> list[str]:
    """Return the split that each path of a container names. They do not count if no image would be left for training.

    For example, a single file speed-test.zip is no test split.
    """
    splits = list(map(split_of_path, keys))
    return splits if "" in splits or "train" in splits else [""] * len(keys)


def _write_index(
    place: Place,
    containers: Sequence[Container],
    pieces: Sequence[Piece],
    files: Sequence[Files],
    found: _Total,
    others: Sequence[Skipped],
) -> _Known:
    """Write the rows of all pieces in the order of their keys, and return what is known of the source."""
    folders, have_sizes = found.folders, found.have_sizes()
    prefix, has_splits = "", False
    if found.needs_folders:
        prefix = _common_folder(folders)
        below = {folder[len(prefix) :].partition("/")[0]: False for folder in folders}
        below |= {folder[len(prefix) :].partition("/")[0]: True for folder in folders if "/" in folder[len(prefix) :]}
        has_splits = are_splits([name for name in below if name], below.__getitem__, containers[0].place.parent)
        if not has_splits:
            _warn_of_packed_folders({folder[len(prefix) :]: key for folder, key in folders.items()})
    numbers = {each.key: number for number, each in enumerate(containers)}
    keys_of_pieces = [each.container.key for each in pieces]
    rows = _without_prefix(_rows_of(pieces, files, others), bytes_of(prefix))
    some_rows = map(partial(_with_few_of_a_name, keys_of_pieces), rows)
    write_sorted(place, some_rows, partial(_with_own_keys, keys_of_pieces))
    return _Known(
        pieces=[(numbers[each.container.key], each.first, each.end) for each in pieces],
        have_copies=found.have_copies,
        have_sizes=have_sizes,
        have_labels=[each.container.key in found.with_labels for each in pieces],
        has_splits=has_splits,
        unused_split=found.no_split,
        classes=found.classes,
        crc32c=storage.crc32c_of(place),
    )


def _rows_of(pieces: Sequence[Piece], files: Sequence[Files], others: Sequence[Skipped]) -> Iterator[pa.Table]:
    """Yield the rows of all pieces with the number of their piece, a few at a time."""
    before = 0
    for number, (piece, each) in enumerate(zip(pieces, files, strict=True)):
        before = 0 if piece.first == START else before
        with storage.local_copy(each["arrow"]) as path, pa.OSFile(str(path)) as file:
            reader = pa.ipc.open_file(file)
            for batch in range(reader.num_record_batches):
                rows = reader.get_batch(batch)
                yield _with_piece(rows, number, before)
                before += len(rows)
    for rows in batches(Row(bytes_of(key), reason=reason) for key, reason in others):
        yield _with_piece(rows, len(files))


def _with_piece(rows: pa.RecordBatch, piece: int, before: int = 0) -> pa.Table:
    """Add the number of the piece, and number the rows through all pieces of a container.

    Skipped rows count, too. Otherwise, a label that is added to a row would change the keys of all later rows.
    """
    numbers, pieces = np.arange(before, before + len(rows)), np.full(len(rows), piece)
    return pa.Table.from_batches([rows]).append_column("number", _array(numbers)).append_column("piece", _array(pieces))


def _array(numbers: NDArray[np.int64]) -> pa.Array:
    # For `pa.array`, Arrow would import pandas, which takes 25 MB and 0.3 s.
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _without_prefix(tables: Iterable[pa.Table], prefix: bytes) -> Iterator[pa.Table]:
    """Yield rows with their names as keys. A prefix is cut off the names of images."""
    for rows in tables:
        names = rows["name"]
        if prefix:
            shorter = compute.binary_replace_slice(names, 0, len(prefix), b"")
            has_prefix = compute.and_(compute.equal(rows["reason"], ""), compute.starts_with(names, prefix))
            names = compute.if_else(has_prefix, shorter, names)
            rows = rows.set_column(rows.column_names.index("name"), "name", names)
        yield rows.append_column("key", names)


def _with_few_of_a_name(containers: Sequence[str], table: pa.Table) -> pa.Table:
    """Return rows in which at most two have the same name as key. Further ones get their own keys already.

    The merge holds all rows with equal keys at once, and a container may have the same name in all of its rows. By the
    two that are left, `_with_own_keys` finds that the name is not unique.
    """
    keys = table["key"]
    if compute.count_distinct(keys).as_py() == len(keys):
        return table
    table = table.take(compute.sort_indices(keys))
    third = np.zeros(len(keys), bool)
    third[2:] = compute.equal(table["key"].slice(2), table["key"].slice(0, max(0, len(keys) - 2))).to_numpy()
    third &= compute.equal(table["reason"], "").to_numpy()
    return _numbered(table, third, containers) if third.any() else table


def _with_own_keys(containers: Sequence[str], table: pa.Table) -> pa.Table:
    """Return rows in order. If the names of images are equal, their keys become container and number."""
    keys = table["key"]
    equal_next = compute.equal(keys.slice(1), keys.slice(0, max(0, len(keys) - 1)))
    # In most sources, no names are equal. Then Arrow does not import pandas: see `_array`.
    if not compute.any(equal_next).as_py():
        return table
    repeated = _repeated(table, equal_next.to_numpy())
    return _numbered(table, repeated, containers) if repeated.any() else table


def _repeated(table: pa.Table, equals_next: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each of some sorted rows whether it is an image with the key of another one."""
    keys = table["key"]
    repeated = np.zeros(len(keys), bool)
    repeated[1:] |= equals_next
    repeated[:-1] |= equals_next
    repeated &= compute.equal(table["reason"], "").to_numpy()
    return repeated


def _numbered(table: pa.Table, repeated: NDArray[np.bool_], containers: Sequence[str]) -> pa.Table:
    """Return rows with the container and their number as key, if the key is repeated."""
    some = table.select(["piece", "number", "suffix"]).filter(pa.array(repeated))
    fields = zip(*(column.to_pylist() for column in some.columns), strict=True)
    keys = [bytes_of(numbered(containers[piece], *others)) for piece, *others in fields]
    replaced = compute.replace_with_mask(
        table["key"].combine_chunks(), pa.array(repeated), pa.array(keys, pa.large_binary())
    )
    return table.set_column(table.column_names.index("key"), "key", replaced)


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


def _warn_of_packed_folders(folders: Mapping[str, str]) -> None:
    """Warn if each archive seems to have been packed with a folder around its classes, such as `part1/cats/1.jpg`.

    Then each archive has one first folder, which no other archive has, and all of them have an equal folder inside.

    Args:
        folders: The folders of images, each with the container that has it; empty if several have it.
    """
    below: dict[str, set[str]] = {}
    containers: dict[str, str] = {}
    for folder, container in folders.items():
        top, _, rest = folder.partition("/")
        below.setdefault(top, set()).add(rest.partition("/")[0])
        containers[top] = container if containers.get(top, container) == container else ""
    are_apart = len(set(containers.values()) - {""}) == len(containers) > 1
    common = set.intersection(*below.values()) - {""} if below else set()
    if are_apart and common:
        first, second = sorted(containers)[:2]
        _log.warning(
            "the first folders in the archives become the classes, such as %r and %r. Each is in one archive only, and "
            "all of them have a folder %r: if that is a class, pack the archives without the folders around it",
            first,
            second,
            min(common),
        )


def _is_below(folder: str, above: str) -> bool:
    return not above or f"{folder}/".startswith(f"{above}/")
