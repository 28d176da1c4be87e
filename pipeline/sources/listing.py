"""A list of images: CSV or TSV with a header line, JSON lines or Parquet (.csv, .tsv, .jsonl, .ndjson, .parquet).

A row is an image: a path, one or more labels, and optionally split, group and boxes. A list is read once. Its rows are
kept in the workspace, in the order of their keys, and each range of keys reads its own rows there.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from pipeline import storage
from pipeline.config.dataset_name import LIST_SUFFIXES
from pipeline.errors import SourceError
from pipeline.sources import MISSING, Box, Found, Listed, Measured, Skipped, SourceOptions, measure
from pipeline.sources.cells import NAMES, choose_column, labels_of, text_of
from pipeline.sources.kept_files import note_use
from pipeline.sources.key_range import EVERYTHING, KeyRange
from pipeline.sources.split_names import split_of_word
from pipeline.storage import SCHEME, BucketPath, Place, is_bucket, place_of
from pipeline.system.os_errors import cause_of, retried
from pipeline.system.parallel import ordered_map
from pipeline.system.wording import shortened

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.sources.sorted_rows import SortedRows

FORMAT = 1
"""Increase this if the rows that are kept change. Lists are then read again."""
CORNERS = ("xmin", "ymin", "xmax", "ymax")

_BATCH = 4096
"""At most this many rows are Python objects at the same time."""
_ASKERS = 32
"""This many requests are sent to a bucket at the same time."""
_GS = SCHEME.encode()
_MAX_SHOWN = 200
"""An error message shows at most this many characters of a value."""
_SCHEME = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://")
_ROW = re.compile(r"Row #(\d+): (.*)")
"""How Arrow begins the reason why it refuses a row of CSV. The header is row 1."""
_ADVICE = {
    "labels": "list each image once, with all its labels in one cell, separated by |",
    "split": "an image belongs to one split",
    "group": "an image belongs to one group",
    "boxes": "put all boxes of an image into one row, or one box into each row, in columns xmin, ymin, xmax and ymax",
}
"""Advice if two rows of one path disagree, by the field of Listed."""


def recognizes(place: Place) -> bool:
    """Whether `place` is a file with the suffix of a list. `containers` is asked before, for files with images."""
    return place.suffix.lower() in LIST_SUFFIXES and place.is_file()


def list_images(place: Place, options: SourceOptions) -> Iterator[Found]:
    """Yield every row of the list, ordered by the bytes of its key.

    Raises SourceError if the list cannot be read, lacks a column, or has an invalid value.
    """
    return list_range(place, options, EVERYTHING)


def list_range(place: Place, options: SourceOptions, keys: KeyRange) -> Iterator[Found]:
    """Yield the rows whose keys are in a range. A row without a path has an empty key."""
    from pyarrow import compute

    with _opened(place, options) as rows:
        for batch in rows.batches(keys):
            are_boxes = CORNERS[0] in batch.schema.names
            found = partial(_items_of_path, place=place, user_project=options.user_project, rows_are_boxes=are_boxes)
            of_paths = (list(equal) for _, equal in groupby(_cells(batch, place), itemgetter("key")))
            if isinstance(place, BucketPath) or compute.any(compute.starts_with(batch["key"], _GS)).as_py():
                # Each image takes a request of 30 ms or more.
                yield from chain.from_iterable(ordered_map(found, of_paths, _ASKERS))
            else:
                yield from chain.from_iterable(map(found, of_paths))


def boundaries(place: Place, options: SourceOptions, most: int, min_images: int) -> Sequence[str]:
    """Return keys that divide the rows into ranges of about equal size."""
    with _opened(place, options) as rows:
        return rows.boundaries(most, min_images)


def layout(place: Place, options: SourceOptions) -> str:
    """Return the size of the list and its generation."""
    measured = measure(place)
    return f"of {measured.size} bytes, generation {measured.generation}"


@contextmanager
def _opened(place: Place, options: SourceOptions) -> "Iterator[SortedRows]":
    """Give the rows of a list in the order of their keys. The list is read first, unless it was."""
    # Other kinds of sources do not need Arrow.
    from pipeline.sources.sorted_rows import SortedRows, write_sorted

    measured = measure(place)
    columns = [getattr(options, f"{role}_column") for role in NAMES]
    identity = [FORMAT, str(place), measured.size, measured.generation, *columns, options.list_encoding]
    name = hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()
    with TemporaryDirectory() as temporary:
        kept = place_of(options.copies or temporary) / f"{name}.arrow"
        note_use([kept])  # From now on, no listing of another source removes it.
        if not kept.is_file():
            retried(lambda: write_sorted(kept, _read(place, measured, options)), place)
            storage.sync_folder(kept.parent)
        with storage.local_copy(kept) as file:
            yield SortedRows(file)


def _read(place: Place, measured: Measured, options: SourceOptions) -> "Iterator[pa.Table]":
    """Yield the rows of a list, in columns that are named by their roles, with keys in place of paths."""
    import pyarrow as pa

    from pipeline.sources.list_rows import rows_of_list

    choose = partial(_choose_columns, place=place, options=options)
    try:
        with storage.local_copy(place, measured.generation) as file:
            for table in rows_of_list(file, options.list_encoding, choose):
                for start in range(0, len(table), _BATCH):
                    yield _with_keys(table.slice(start, _BATCH), place)
    except MemoryError:  # Also raised by Arrow. The list itself may be valid.
        raise
    except FileNotFoundError as error:
        raise SourceError(
            f"{place} changed or vanished while it was read: run again when nothing changes it"
        ) from error
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        if isinstance(error, OSError) and cause_of(error) == "transient":
            raise
        reason = _ROW.sub(r"\2, in row \1", str(error).partition("\n")[0])
        raise SourceError(f"{place} cannot be read as a {place.suffix} list of images: {reason}") from error
    if measure(place) != measured:
        raise SourceError(f"{place} changed while it was read: run again when nothing changes it")


def _cells(batch: "pa.RecordBatch", place: Place) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch."""
    for start in range(0, len(batch), _BATCH):
        try:
            rows = batch.slice(start, _BATCH).to_pylist()
        except UnicodeDecodeError as error:  # Arrow reads JSON without checking the encoding.
            raise SourceError(f"{place} holds {error.object[:40]!r}, which is not UTF-8: save it as UTF-8") from error
        yield from rows


def _choose_columns(names: Sequence[str], place: Place, options: SourceOptions) -> dict[str, str]:
    """Return the name of the column of each role that the list has."""
    chosen = {role: choose_column(role, names, place, getattr(options, f"{role}_column")) for role in NAMES}
    # The columns of boxes have fixed names.
    chosen.update({name: name for name in _box_columns(names)})
    columns = {role: name for role, name in chosen.items() if name}
    if twice := [name for name in columns.values() if names.count(name) > 1]:
        raise SourceError(f"{place} has two columns {twice[0]!r}: rename one")
    return columns


def _box_columns(names: Sequence[str]) -> Sequence[str]:
    if "boxes" in names:
        return [name for name in ("boxes", "box_labels") if name in names]
    return CORNERS if all(name in names for name in CORNERS) else ()


def _with_keys(table: "pa.Table", place: Place) -> "pa.Table":
    """Replace the column of paths by one of keys, as bytes."""
    import pyarrow as pa

    try:
        paths = table["path"].cast(pa.large_binary())
    except pa.ArrowException as error:
        raise SourceError(
            f"{place} holds {table['path'].type} in the column of paths, but paths must be text: name another column "
            "in path_column"
        ) from error
    folder = _folder(place)
    keys = [_key(path or b"", folder, place) for path in paths.to_pylist()]
    return table.drop(["path"]).append_column("key", pa.array(keys, pa.large_binary()))


def _folder(place: Place) -> bytes:
    """Return the folder of the list, with a slash at its end."""
    folder = place.parent
    return os.fsencode(os.path.join(os.path.abspath(folder) if isinstance(folder, Path) else str(folder), ""))  # noqa: PTH100, PTH118


def _key(path: bytes, folder: bytes, place: Place) -> bytes:
    """Return the key of a path: the normalized path relative to `folder`, which ends in a slash.

    A path outside of the folder is only normalized.
    """
    if path.startswith(_GS):
        # Names in a bucket are not normalized: there, `..` is a part like any other.
        return path.removeprefix(folder)
    if scheme := _SCHEME.match(path):
        path = _path_of_uri(path, scheme, place)
    if not path:
        return b""
    if folder.startswith(_GS):
        return os.path.normpath(path)
    whole = os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - bytes
    return whole.removeprefix(folder) if whole.startswith(folder) else os.path.normpath(path)


def _path_of_uri(uri: bytes, scheme: re.Match[bytes], place: Place) -> bytes:
    host, slash, path = uri[scheme.end() :].partition(b"/")
    if scheme[1].lower() != b"file" or host not in (b"", b"localhost"):
        raise SourceError(
            f"{place} lists {text_of(uri)!r}, but images are read only from paths and gs://: copy the images, and list "
            "the copies"
        )
    return unquote_to_bytes(slash + path)


def _items_of_path(
    rows: Sequence[dict[str, Any]], place: Place, user_project: str, rows_are_boxes: bool
) -> Sequence[Listed | Skipped]:
    """Return the image of the rows of one path, and the rows that are skipped because they repeat another one.

    If `rows_are_boxes`, the rows may differ in box and label. Raises SourceError for any other difference.
    """
    items = [_to_listed(row, place) for row in rows]
    listed = [item for item in items if isinstance(item, Listed)]
    rest = [item for item in items if isinstance(item, Skipped)] if len(listed) < len(items) else []
    if not listed:
        return rest
    image = listed[0]
    if len(listed) > 1:
        distinct = list(dict.fromkeys(listed))
        image = _joined(distinct, place, rows_are_boxes)
        rest += [Skipped(image.key, "listed twice")] * (len(listed) - len(distinct))
    measured = measure(_image(image.key, place, user_project))
    return [Listed(image.key, image.labels, image.split, *measured, image.group, image.boxes), *rest]


def _to_listed(row: dict[str, Any], place: Place) -> Listed | Skipped:
    """Return what a row says. The file is not measured yet."""
    key = text_of(row["key"])
    if not key:
        return Skipped(key, "no path")
    for role in ("label", "group", "box_labels"):
        cell = row.get(role)
        for text in cell if isinstance(cell, list) else [cell]:
            _require_utf8(text, role, key, place)
    labels = labels_of(row["label"])
    if not labels:
        return Skipped(key, "no label")
    stated = text_of(row.get("split")).strip()
    split = split_of_word(stated) if stated else ""
    if split is None:
        raise SourceError(f"{place} lists {key!r} with split {stated!r}: it must be train, validation or test")
    group, boxes = text_of(row.get("group")), _boxes(row, key, place)
    return Listed(key, labels, split, MISSING, 0, group=group, boxes=boxes)


def _require_utf8(cell: Any, role: str, key: str, place: Place) -> None:
    """Refuse text that is not UTF-8. It would be stored unchanged, and no reader could show it.

    A path may hold any bytes, like a file name.
    """
    try:
        if isinstance(cell, bytes):
            cell.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{place} lists {key!r} with {role} {_shown(cell)}, which is not UTF-8: save the list as UTF-8, or name "
            "its encoding in list_encoding (latin-1, cp1252, utf-16, ...)"
        ) from error


def _image(key: str, place: Place, user_project: str) -> Place:
    try:
        return place_of(key, user_project) if is_bucket(key) else place.parent / key
    except ValueError as error:
        raise SourceError(f"{place} lists {key!r}: the path {error}") from error


def _boxes(row: dict[str, Any], key: str, place: Place) -> tuple[Box, ...]:
    """Return the boxes of a row, from a column of lists or from four columns with one box."""
    if "boxes" in row:
        cells = row["boxes"]
    else:
        corners = [row[name] for name in CORNERS if name in row]
        cells = [corners] if any(map(text_of, corners)) else []
    labels = row.get("box_labels") or [""] * len(cells or ())
    try:
        return tuple(_box(cell, label) for cell, label in zip(cells or (), labels, strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"{place} lists {key!r} with boxes that cannot be read ({error}): each box must be [xmin, ymin, xmax, "
            "ymax], or an object with these names, in pixels from the upper left corner. If there are box_labels, "
            "they must have one label for each box"
        ) from error


def _box(cell: Any, label: Any) -> Box:
    numbers = [cell[name] for name in CORNERS] if isinstance(cell, dict) else cell
    xmin, ymin, xmax, ymax = map(float, numbers)
    if not (-math.inf < xmin < xmax < math.inf and -math.inf < ymin < ymax < math.inf):
        raise ValueError(f"{[xmin, ymin, xmax, ymax]} covers no pixel")
    return Box(xmin, ymin, xmax, ymax, text_of(cell.get("label") if isinstance(cell, dict) else label))


def _joined(rows: Sequence[Listed], place: Place, rows_are_boxes: bool) -> Listed:
    """Return the image of some different rows."""
    first, *others = rows
    are_boxes = rows_are_boxes and all(row.boxes for row in rows)
    for row in others:
        _require_agreement(first, row, place, ("split", "group") if are_boxes else _ADVICE)
    if not are_boxes:
        return first
    labels = tuple(dict.fromkeys(label for row in rows for label in row.labels))
    # The label of a row is that of its box. If all rows have the same one, the box needs none of its own.
    of_boxes = ["" if row.labels == labels else row.labels[0] for row in rows]
    boxes = [box._replace(label=label) for row, label in zip(rows, of_boxes, strict=True) for box in row.boxes]
    return first._replace(labels=labels, boxes=tuple(boxes))


def _require_agreement(one: Listed, other: Listed, place: Place, fields: Iterable[str]) -> None:
    for field in fields:
        value, other_value = getattr(one, field), getattr(other, field)
        if value != other_value:
            if field == "boxes":
                value, other_value = ([list(box[:4]) for box in boxes] for boxes in (value, other_value))
            raise SourceError(
                f"{place} lists {one.key!r} with {field} {_shown(value)} and again with {_shown(other_value)}: "
                f"{_ADVICE[field]}"
            )


def _shown(value: object) -> str:
    """Return a value for an error message, shortened, because a cell may have megabytes."""
    return shortened(repr(value), _MAX_SHOWN)
