"""A list of images: CSV or TSV with a header line, JSON lines or Parquet (.csv, .tsv, .jsonl, .ndjson, .parquet).

A row is an image: a path, one or more labels, and optionally split, group and boxes. A list is read once. Its rows are
kept in the workspace, in the order of their keys, and each range of keys reads its own rows there.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, product
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pipeline.config.dataset_name import LIST_SUFFIXES
from pipeline.errors import SourceError
from pipeline.sources import MISSING, Box, Found, Listed, Skipped, SourceOptions, measure
from pipeline.sources.cells import CORNERS, labels_of, text_of
from pipeline.sources.container_formats import require_no_vector
from pipeline.sources.key_range import EVERYTHING, KeyRange, bytes_of, text_of_key
from pipeline.sources.split_names import split_of_word
from pipeline.storage import SCHEME, BucketPath, Place, is_bucket, place_of
from pipeline.system.parallel import ordered_map
from pipeline.system.wording import shortened

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 4096
"""At most this many rows are Python objects at the same time."""
_ASKERS = 32
"""This many requests are sent to a bucket at the same time."""
_MAX_SHOWN = 200
"""An error message shows at most this many characters of a value."""
_ADVICE: Mapping[str, str] = {
    "labels": "list each image once, with all its labels in one cell, separated by |",
    "split": "an image belongs to one split",
    "group": "an image belongs to one group",
    "boxes": "put all boxes of an image into one row, or one box into each row, in columns xmin, ymin, xmax and ymax",
}
"""Advice if two rows of one path disagree, by the field of Listed."""
_USE_UTF_8 = "save it as UTF-8, or name the encoding of a .csv or .tsv file in list_encoding, such as latin-1 or cp1252"


def recognizes(place: Place) -> bool:
    """Whether `place` is a file with the suffix of a list. `containers` is asked before, for files with images."""
    return place.suffix.lower() in LIST_SUFFIXES and place.is_file()


def list_range(place: Place, options: SourceOptions, keys: KeyRange) -> Iterator[Found]:
    """Yield the rows whose keys are in a range. A row without a path has an empty key.

    Raises SourceError if the list cannot be read, lacks a column, or has an invalid value.
    """
    # Other kinds of sources do not need Arrow.
    from pipeline.sources.list_rows import open_rows

    try:
        with open_rows(place, options, is_range=keys != EVERYTHING) as rows:
            batches = rows.batches(keys)
            found = chain.from_iterable(_images(batch, place, options.user_project) for batch in batches)
            yield from _require_pixels(found, place)
    except UnicodeDecodeError as error:  # Arrow reads JSON without checking the encoding.
        raise SourceError(f"{place} holds {error.object[:40]!r}, which is not UTF-8: {_USE_UTF_8}") from error


def boundaries(place: Place, options: SourceOptions, most: int, min_images: int) -> Sequence[str]:
    """Return keys that divide the rows into ranges of about equal size."""
    from pipeline.sources.list_rows import open_rows

    with open_rows(place, options) as rows:
        return rows.boundaries(most, min_images)


def layout(place: Place, options: SourceOptions) -> str:
    """Return the size of the list and its generation."""
    measured = measure(place)
    return f"of {measured.size} bytes, generation {measured.generation}"


def _images(batch: "pa.RecordBatch", place: Place, user_project: str) -> Iterator[Found]:
    """Yield the images of some rows, among which are all rows of each image."""
    from pyarrow import compute

    rows = chain.from_iterable(batch.slice(start, _BATCH).to_pylist() for start in range(0, len(batch), _BATCH))
    of_paths = (list(equal) for _, equal in groupby(rows, itemgetter("key")))
    found = partial(_items_of_path, place=place, user_project=user_project)
    if isinstance(place, BucketPath) or compute.any(compute.starts_with(batch["key"], SCHEME)).as_py():
        # Each image takes a request of 30 ms or more.
        yield from chain.from_iterable(ordered_map(found, of_paths, _ASKERS))
    else:
        yield from chain.from_iterable(map(found, of_paths))


def _items_of_path(rows: Sequence[dict[str, Any]], place: Place, user_project: str) -> Sequence[Listed | Skipped]:
    """Return the image of the rows of one path, and the rows that are skipped because they repeat another one."""
    items = [_to_listed(row, place) for row in rows]
    listed = [item for item in items if isinstance(item, Listed)]
    skipped = [item for item in items if isinstance(item, Skipped)]
    if not listed:
        return skipped
    distinct = list(dict.fromkeys(listed))
    image = _joined(distinct, place, rows_are_boxes=CORNERS[0] in rows[0] and all(row.boxes for row in distinct))
    size, generation, crc32c, md5 = measure(_place_of_image(image.key, place, user_project))
    image = image._replace(size=size, generation=generation, crc32c=crc32c, md5=md5)
    return [image, *skipped, *[Skipped(image.key, "listed twice")] * (len(listed) - len(distinct))]


def _require_pixels(items: Iterable[Found], place: Place) -> Iterator[Found]:
    """Yield the items. Raises SourceError after the last one if all boxes are fractions of the size of their image."""
    largest, has_fractions = 0.0, False
    for item in items:
        if isinstance(item, Listed) and item.boxes:
            numbers = [number for box in item.boxes for number in box[:4]]
            largest = max(largest, *numbers)
            has_fractions = has_fractions or any(number % 1 for number in numbers)
        yield item
    if largest <= 1 and has_fractions:
        raise SourceError(
            f"{place} has boxes that are fractions of the image size: multiply them by its width and height in pixels"
        )


def _place_of_image(key: str, place: Place, user_project: str) -> Place:
    try:
        return place_of(key, user_project) if is_bucket(key) else place.parent / key
    except ValueError as error:
        raise SourceError(f"{place} lists {key!r}: the path {error}") from error


def _to_listed(row: dict[str, Any], place: Place) -> Listed | Skipped:
    """Return what a row says. The file is not measured yet."""
    key = text_of_key(row["key"])
    if not key:
        return Skipped(key, "no path")
    try:
        require_no_vector(row["label"])
    except ValueError as error:
        raise SourceError(f"{place} cannot be read as a list of images: {error}") from error
    labels = labels_of(row["label"])
    if not labels:
        return Skipped(key, "no label")
    stated = text_of(row.get("split")).strip()
    split = split_of_word(stated) if stated else ""
    if split is None:
        raise SourceError(f"{place} lists {key!r} with split {stated!r}: it must be train, validation or test")
    group, boxes = text_of(row.get("group")), _boxes(row, key, place)
    for role, texts in {"label": labels, "group": [group], "box_labels": [box.label for box in boxes]}.items():
        for text in texts:
            _require_utf8(text, role, key, place)
    return Listed(key, labels, split, MISSING, 0, group=group, boxes=boxes)


def _require_utf8(text: str, role: str, key: str, place: Place) -> None:
    """Refuse text that is not UTF-8. It would be stored unchanged, and no reader could show it.

    A path may hold any bytes, like a file name.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = shortened(repr(bytes_of(text)), _MAX_SHOWN)
        raise SourceError(f"{place} lists {key!r} with {role} {shown}, which is not UTF-8: {_USE_UTF_8}") from error


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


def _joined(rows: Sequence[Listed], place: Place, *, rows_are_boxes: bool) -> Listed:
    """Return the image of some different rows. If each row is a box, they may differ in box and label.

    Raises SourceError for any other difference.
    """
    first, *others = rows
    for row, field in product(others, ("split", "group") if rows_are_boxes else _ADVICE):
        _require_agreement(first, row, field, place)
    if not rows_are_boxes:
        return first
    labels = tuple(dict.fromkeys(label for row in rows for label in row.labels))
    # The label of a row is that of its box. If all rows have the same one, the box needs none of its own.
    of_boxes = ["" if row.labels == labels else row.labels[0] for row in rows]
    boxes = [box._replace(label=label) for row, label in zip(rows, of_boxes, strict=True) for box in row.boxes]
    return first._replace(labels=labels, boxes=tuple(boxes))


def _require_agreement(one: Listed, other: Listed, field: str, place: Place) -> None:
    values = [getattr(row, field) for row in (one, other)]
    if values[0] == values[1]:
        return
    if field == "boxes":
        values = [[list(box[:4]) for box in boxes] for boxes in values]
    # A cell may have megabytes.
    value, other_value = (shortened(repr(each), _MAX_SHOWN) for each in values)
    raise SourceError(f"{place} lists {one.key!r} with {field} {value} and again with {other_value}: {_ADVICE[field]}")
