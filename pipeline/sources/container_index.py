"""The index of a source of containers: the key, checksum and place of each image, in the order of the keys.

It joins the rows of all pieces of containers: see container_rows.py. Only then it is known which names are unique. It
is kept, too, and each range of keys reads its own rows of it.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from pipeline import storage
from pipeline.errors import SourceError
from pipeline.sources import Box, Classes, Found, Listed, Skipped, SourceOptions
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
    hash_of,
    known,
    note_use,
    numbered,
    piece_bytes,
    pieces_of,
    remove_old,
    text_of_name,
)
from pipeline.sources.folder import are_splits, named_by_folders
from pipeline.sources.key_range import KeyRange, bytes_of
from pipeline.sources.sorted_rows import SortedRows, write_sorted
from pipeline.sources.split_names import split_of_word
from pipeline.storage import BucketPath, Place, place_of
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import progress

THREADS = 4
"""This many containers of a bucket are read at the same time."""
_log = logging.getLogger(__name__)
_NUMBER = re.compile(r"-\d+(-of-\d+)?(-[0-9a-f]+)?$")
"""The number at the end of the name of one of many containers."""


@dataclass(frozen=True)
class _Known:
    """What is known of a source after its index was written. It is written last, as JSON."""

    pieces: Sequence[tuple[int, int, int | None]]
    """Of each piece: the number of its container, and its rows."""
    have_copies: Sequence[bool]
    """Whether each piece has copies."""
    has_splits: bool
    classes: Sequence[str] | None

    def pieces_of(self, containers: Sequence[Container]) -> list[Piece]:
        """Return the pieces of the source."""
        return [Piece(containers[number], first, end) for number, first, end in self.pieces]


class Index:
    """The rows of a source in the order of their keys. One batch of them is in memory."""

    def __init__(self, rows: SortedRows, pieces: Sequence[Piece], files: Sequence[Files], known: _Known) -> None:
        self._rows, self._pieces, self._files, self._known = rows, pieces, files, known
        self._splits = [split_of_container(each.container.key) for each in pieces]

    def boundaries(self, most: int, min_images: int) -> list[str]:
        """Return keys that divide the rows into ranges of about equal size."""
        return self._rows.boundaries(most, min_images)

    def items(self, keys: KeyRange) -> Iterator[Found]:
        """Yield the rows in a range."""
        if self._known.classes is not None:
            yield Classes(tuple(self._known.classes), {})
        for rows in self._rows.batches(keys):
            for start in range(0, len(rows), BATCH_ROWS):
                yield from self._found(rows.slice(start, BATCH_ROWS))

    def _found(self, rows: pa.RecordBatch) -> Iterator[Found]:
        keys_and_pieces = zip(rows["key"].to_pylist(), rows["piece"].to_pylist(), strict=True)
        fields = zip(*(rows[name].to_pylist() for name in ROWS.names), strict=True)
        for (key, piece), row in zip(keys_and_pieces, map(Row._make, fields), strict=True):
            yield self._image(text_of_name(key), piece, row)

    def _image(self, key: str, piece: int, row: Row) -> Found:
        if row.reason:
            return Skipped(key, row.reason)
        labels, split = row.labels, row.split
        if not labels:
            # The key may be a number, which names no folder.
            named = named_by_folders(text_of_name(row.name), self._known.has_splits)
            if isinstance(named, Skipped):
                return Skipped(key, named.reason)
            labels, split = (named.label,), split or named.split
        files = self._files[piece]
        return Listed(
            key=key,
            labels=tuple(labels),
            split=split or self._splits[piece],
            size=row.size,
            generation=self._pieces[piece].container.generation,
            crc32c=row.crc32c,
            group=row.group,
            boxes=tuple(Box(*box) for box in json.loads(row.boxes)) if row.boxes else (),
            extent=files.copy_at(row.offset) if row.is_copy else files.container_at(row.offset),
        )


@contextmanager
def open_index(containers: Sequence[Container], others: Sequence[Skipped], options: SourceOptions) -> Iterator[Index]:
    """Give the index of a source of some containers. What is missing of it is made first.

    `others` are the files beside the containers.

    Raises:
        SourceError: If a container cannot be read.
    """
    stored = _Stored.of(containers, others, options)
    content = stored.load(containers, options)
    if content is None:
        pieces = list(pieces_of(containers))
        files = files_of(pieces, options)
        content = _write_index(stored.rows, containers, pieces, files, _read_all(pieces, files, options), others)
        stored.save(content)
    pieces = content.pieces_of(containers)
    files = files_of(pieces, options)
    note_use(files)
    remove_old(files)
    with storage.local_copy(stored.rows) as path:
        yield Index(SortedRows(path), pieces, files, content)
    pa.default_memory_pool().release_unused()  # It keeps up to 100 MB for later, which the next stage cannot use.


def unread_pieces(
    containers: Sequence[Container], others: Sequence[Skipped], options: SourceOptions, most: int
) -> list[list[Piece]]:
    """Return the pieces that must be read before the index of a source is made, in at most about `most` groups.

    Each group has about `piece_bytes()` or more.
    """
    if _Stored.of(containers, others, options).load(containers, options):
        return []
    pieces = list(pieces_of(containers))
    if len(pieces) == 1 and containers[0].size >= 2 * piece_bytes():
        _log.info("%s is one file, which one process reads: several smaller files would be faster", containers[0].key)
    counts = Counter(piece.container.key for piece in pieces)
    group_bytes = max(piece_bytes(), sum(each.size for each in containers) // most)
    groups: list[list[Piece]] = []
    free = 0
    for piece, files in zip(pieces, files_of(pieces, options), strict=True):
        if known(files):
            continue
        if free <= 0:
            groups.append([])
            free = group_bytes
        groups[-1].append(piece)
        free -= piece.container.size // counts[piece.container.key]
    return groups


@dataclass(frozen=True)
class _Stored:
    """The files of the index of a source."""

    rows: Place
    description: Place

    @classmethod
    def of(cls, containers: Sequence[Container], others: Sequence[Skipped], options: SourceOptions) -> "_Stored":
        names = [each.name for each in files_of(map(Piece, containers), options)]
        name, folder = hash_of([names, *map(list, others)]), place_of(options.copies)
        return cls(folder / f"{name}.arrow", folder / f"{name}.json")

    def load(self, containers: Sequence[Container], options: SourceOptions) -> _Known | None:
        """Return what is known of the source; None if the index must be made."""
        content = unless_missing(partial(storage.read_json, self.description))
        if not content or not self.rows.is_file():
            return None
        found = _Known(**content)
        files = files_of(found.pieces_of(containers), options)
        return found if all(map(are_there, files, found.have_copies)) else None

    def save(self, content: _Known) -> None:
        storage.sync_folder(self.rows.parent)
        storage.write_json(self.description, asdict(content), synced=True)


def _read_all(pieces: Sequence[Piece], files: Sequence[Files], options: SourceOptions) -> list[Description]:
    """Read what was not read yet, in this process."""
    # Reading a local file is work for a processor, which threads would share.
    threads = THREADS if isinstance(pieces[0].container.place, BucketPath) else 1
    found: list[Description] = []
    with progress("containers", len(pieces), "files") as advance:
        works = zip(pieces, files, strict=True)
        for each in ordered_map(lambda work: described(*work, options), works, threads, threads):
            found.append(each)
            advance(1)
    return found


def split_of_container(key: str) -> str:
    """Return the split that the name of a container or of its folder names; empty if there is none.

    For example, `data/train-00000-of-00012.parquet` and `flowers-1.0-train-3.tar` belong to the training split.
    """
    *folders, name = key.split("/")
    stems = [_NUMBER.sub("", part) for part in name.split(".")]
    words = [word for stem in stems for word in (stem, re.split("[-_]", stem)[-1])] + folders[::-1]
    return next((split for word in words if (split := split_of_word(word))), "")


def _write_index(
    place: Place,
    containers: Sequence[Container],
    pieces: Sequence[Piece],
    files: Sequence[Files],
    found: Sequence[Description],
    others: Sequence[Skipped],
) -> _Known:
    """Write the rows of all pieces in the order of their keys, and return what is known of the source."""
    folders = {folder for each in found for folder in each.folders}
    prefix, has_splits = "", False
    if any(each.needs_folders for each in found):
        prefix = _common_folder(folders)
        below = {folder[len(prefix) :].partition("/")[0]: False for folder in folders}
        below |= {folder[len(prefix) :].partition("/")[0]: True for folder in folders if "/" in folder[len(prefix) :]}
        has_splits = are_splits([name for name in below if name], below.__getitem__, containers[0].place.parent)
    numbers = {each.key: number for number, each in enumerate(containers)}
    rows = _without_prefix(_rows_of(files, others), bytes_of(prefix))
    write_sorted(place, rows, partial(_with_own_keys, [each.container.key for each in pieces]))
    return _Known(
        pieces=[(numbers[each.container.key], each.first, each.end) for each in pieces],
        have_copies=[each.has_copies for each in found],
        has_splits=has_splits,
        classes=_classes(pieces, found),
    )


def _rows_of(files: Sequence[Files], others: Sequence[Skipped]) -> Iterator[pa.Table]:
    """Yield the rows of all pieces with the number of their piece, a few at a time."""
    for number, each in enumerate(files):
        with storage.local_copy(each["arrow"]) as path, pa.OSFile(str(path)) as file:
            reader = pa.ipc.open_file(file)
            for batch in range(reader.num_record_batches):
                yield _with_piece(reader.get_batch(batch), number)
    for rows in batches(Row(bytes_of(key), reason=reason) for key, reason in others):
        yield _with_piece(rows, len(files))


def _with_piece(rows: pa.RecordBatch, number: int) -> pa.Table:
    return pa.Table.from_batches([rows]).append_column("piece", pa.array([number] * len(rows), pa.int32()))


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


def _with_own_keys(containers: Sequence[str], table: pa.Table) -> pa.Table:
    """Return rows in order. If the names of images are equal, their keys become container and number."""
    repeated = _repeated(table)
    return _numbered(table, repeated, containers) if repeated.any() else table


def _repeated(table: pa.Table) -> NDArray[np.bool_]:
    """Return for each of some sorted rows whether it is an image with the key of another one."""
    keys = table["key"]
    equals_next = compute.equal(keys.slice(1), keys.slice(0, max(0, len(keys) - 1))).to_numpy()
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


def _is_below(folder: str, above: str) -> bool:
    return not above or f"{folder}/".startswith(f"{above}/")


def _classes(pieces: Sequence[Piece], found: Sequence[Description]) -> list[str] | None:
    """Return the classes that the containers state. Raises SourceError if two state different ones."""
    stated = [(piece.container, each.classes) for piece, each in zip(pieces, found, strict=True) if each.classes]
    for container, classes in stated[1:]:
        if classes != stated[0][1]:
            raise SourceError(
                f"{stated[0][0].place} and {container.place} name different classes, or in another order: the ids of "
                "the labels would be wrong. Write both with the same classes"
            )
    return stated[0][1] if stated else None
