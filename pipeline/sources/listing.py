"""A list of images: CSV or TSV with a header line, JSON lines or Parquet (.csv, .tsv, .jsonl, .ndjson, .parquet).

A row is an image: a path, one or more labels, and optionally split, group and boxes. Rows stay in the columns of Arrow,
ten million in about a gigabyte. Python objects exist only for one batch at a time.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from pipeline import storage
from pipeline.config.dataset_name import LIST_SUFFIXES
from pipeline.errors import FileSystemError, SourceError
from pipeline.sources import MISSING, Box, Found, Listed, Skipped, SourceOptions, measure
from pipeline.sources.cells import NAMES, choose_column, labels_of, text_of
from pipeline.sources.compression import require_plain
from pipeline.sources.csv_quotes import require_quotes
from pipeline.sources.key_range import EVERYTHING, HashedSample, KeyRange, bytes_of
from pipeline.sources.split_names import split_of_word
from pipeline.storage import SCHEME, BucketPath, Place, is_bucket, place_of
from pipeline.system.os_errors import cause_of, retried
from pipeline.system.parallel import ordered_map
from pipeline.system.wording import shortened

if TYPE_CHECKING:
    import pyarrow as pa

CORNERS = ("xmin", "ymin", "xmax", "ymax")

Choose = Callable[[Sequence[str]], dict[str, str]]
"""Returns the name of the column of each role, from the names of all columns."""

Keep = Callable[["pa.Table"], "pa.Table"]
"""Returns the rows to keep from a table. The columns of the table are named by their roles."""

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_PARQUET = ".parquet"
_BLOCK = 4 << 20
"""Arrow parses this many bytes at once. A row must fit into a block."""
_BATCH = 16_384
"""At most this many rows are Python objects at the same time."""
_ASKERS = 32
"""This many requests are sent to a bucket at the same time."""
_GS = SCHEME.encode()
_MAX_SHOWN = 200
"""An error message shows at most this many characters of a value."""
_SCHEME = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://")
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
    """Yield the rows whose keys are in a range. Only these rows stay in memory; of JSON lines, all rows do.

    A row without a path has an empty key.
    """
    from pyarrow import compute

    choose = partial(_choose_columns, place=place, options=options)
    table = _read(place, options, choose, partial(_rows_of_range, place=place, keys=keys), keys != EVERYTHING)
    of_paths = (list(rows) for _, rows in groupby(_rows_by_path(table, place), itemgetter("path")))
    are_boxes = CORNERS[0] in table.column_names
    found = partial(_items_of_path, place=place, user_project=options.user_project, rows_are_boxes=are_boxes)
    if isinstance(place, BucketPath) or compute.any(compute.starts_with(table["path"], _GS)).as_py():
        # Each image takes a request of 30 ms or more.
        items: Iterator[Sequence[Found]] = ordered_map(found, of_paths, _ASKERS)
    else:
        items = map(found, of_paths)
    yield from chain.from_iterable(items)


def boundaries(place: Place, options: SourceOptions, most: int, min_images: int) -> Sequence[str]:
    """Return keys that divide the rows into ranges of about equal size. The column of paths is read once."""
    sample = HashedSample(most)

    def choose(names: Sequence[str]) -> dict[str, str]:
        return {"path": _choose_columns(names, place, options)["path"]}

    def add_keys(table: "pa.Table") -> "pa.Table":
        for keys in _with_keys(table, place)["path"].chunks:
            for key in keys.to_pylist():
                sample.add(key)
        return table.slice(0, 0)

    _read(place, options, choose, add_keys, is_stream=True)
    return sample.boundaries(most, min_images)


def layout(place: Place, options: SourceOptions) -> str:
    """Return the size of the list and its generation."""
    measured = measure(place)
    return f"of {measured.size} bytes, generation {measured.generation}"


def _read(place: Place, options: SourceOptions, choose: Choose, keep: Keep, is_stream: bool) -> "pa.Table":
    """Read the columns of the roles, name each by its role, and return the rows that `keep` keeps."""
    import pyarrow as pa

    try:
        with storage.local_copy(place) as file:
            require_plain(file)
            suffix = file.suffix.lower()
            read = _read_csv if suffix in _DELIMITERS else _read_parquet if suffix == _PARQUET else _read_json_lines
            return retried(partial(read, file, options.list_encoding, choose, keep, is_stream), place)
    except MemoryError:  # Also raised by Arrow. The list itself may be valid.
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        if isinstance(error, OSError) and cause_of(error) == "transient":
            raise FileSystemError(f"{place} could not be read ({error.strerror or error}): run again") from error
        reason = str(error).partition("\n")[0]
        raise SourceError(f"{place} cannot be read as a {place.suffix} list of images: {reason}") from error


def _read_csv(place: Path, encoding: str, choose: Choose, keep: Keep, is_stream: bool) -> "pa.Table":
    import pyarrow as pa
    from pyarrow import csv

    delimiter = _DELIMITERS[place.suffix.lower()]
    # Fields may contain line breaks. After a stray quote, Arrow would read the following rows as one field.
    require_quotes(place, delimiter, encoding)
    # Only with "utf8" does Arrow keep the bytes unchanged. Paths may contain any bytes.
    block = csv.ReadOptions(block_size=_BLOCK, encoding="utf8" if encoding == "utf-8" else encoding)
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with csv.open_csv(place, block, parse) as reader:
        columns = choose(reader.schema.names)
    # As bytes: a path may not be UTF-8, and Arrow must not guess types ("007" and "NA" are labels, too). A dictionary
    # stores each label only once. The offsets of `binary` hold 2 GiB of paths, those of `large_binary` hold more.
    types = dict.fromkeys(columns.values(), pa.dictionary(pa.int32(), pa.binary()))
    types[columns["path"]] = pa.large_binary()
    convert = csv.ConvertOptions(include_columns=list(types), column_types=types)
    if not is_stream:
        return keep(_by_role(csv.read_csv(place, block, parse, convert), columns))
    with csv.open_csv(place, block, parse, convert) as reader:
        return _kept(reader, reader.schema, columns, keep)


def _read_json_lines(place: Path, _encoding: str, choose: Choose, keep: Keep, _is_stream: bool) -> "pa.Table":
    from pyarrow import json

    block = json.ReadOptions(block_size=_BLOCK)
    # Not as a stream: Arrow would take the types from the first block, and fail if a later block differs.
    table = json.read_json(place, block)
    columns = choose(table.column_names)
    schema = _dates_as_text(table.schema)
    if schema != table.schema:
        # The file is parsed again: a value that was converted to a date has lost its text.
        table = json.read_json(place, block, json.ParseOptions(explicit_schema=schema))
    return keep(_by_role(table, columns))


def _dates_as_text(schema: "pa.Schema") -> "pa.Schema":
    """Replace dates by text. Arrow takes text that looks like a date for one, but labels must stay as they are."""
    import pyarrow as pa

    def as_text(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_list(kind):
            return pa.list_(as_text(kind.value_type))
        return pa.string() if pa.types.is_timestamp(kind) else kind

    return pa.schema([(field.name, as_text(field.type)) for field in schema])


def _read_parquet(place: Path, _encoding: str, choose: Choose, keep: Keep, is_stream: bool) -> "pa.Table":
    from pyarrow import parquet

    with parquet.ParquetFile(place, page_checksum_verification=True) as file:
        columns = choose(file.schema_arrow.names)
        names = list(dict.fromkeys(columns.values()))
        if not is_stream:
            return keep(_by_role(file.read(names), columns))
        schema = file.read_row_groups([], names).schema
        return _kept(file.iter_batches(_BATCH, columns=names), schema, columns, keep)


def _kept(batches: Iterable["pa.RecordBatch"], schema: "pa.Schema", columns: dict[str, str], keep: Keep) -> "pa.Table":
    """Return the rows of a stream that `keep` keeps."""
    import pyarrow as pa

    # The empty table keeps the types if there is no batch.
    parts = [keep(_by_role(schema.empty_table(), columns))]
    for batch in batches:
        part = keep(_by_role(pa.Table.from_batches([batch]), columns))
        if len(part):
            parts.append(part)
    return pa.concat_tables(parts)


def _rows_of_range(table: "pa.Table", place: Place, keys: KeyRange) -> "pa.Table":
    """Return the rows whose keys are within a range. Their column of paths then holds the keys."""
    import pyarrow as pa
    from pyarrow import compute

    table = _with_keys(table, place)
    first, end = (pa.scalar(bytes_of(key), pa.large_binary()) for key in keys)
    if keys.first:
        table = table.filter(compute.greater_equal(table["path"], first))
    if keys.end:
        table = table.filter(compute.less(table["path"], end))
    return table if keys == EVERYTHING else _with_own_dictionaries(table)


def _with_own_dictionaries(table: "pa.Table") -> "pa.Table":
    """Remove the values of other rows from the dictionaries. Otherwise, all groups of the list would stay in memory."""
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            values = table.column(index).cast(field.type.value_type)
            table = table.set_column(index, field, values.dictionary_encode().cast(field.type))
    return table


def _by_role(table: "pa.Table", columns: dict[str, str]) -> "pa.Table":
    return table.select(list(columns.values())).rename_columns(list(columns))


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
    """Replace the paths of a table by keys, as bytes."""
    import pyarrow as pa

    try:
        paths = table["path"].cast(pa.large_binary())
    except pa.ArrowException as error:
        raise SourceError(
            f"{place} holds {table['path'].type} in the column of paths, but paths must be text: name another column "
            "in path_column"
        ) from error
    folder = _folder(place)
    keys = []
    for start in range(0, len(paths), _BATCH):
        batch = paths.slice(start, _BATCH).to_pylist()
        keys.append(pa.array([_key(path or b"", folder, place) for path in batch], pa.large_binary()))
    return table.set_column(table.column_names.index("path"), "path", pa.chunked_array(keys, pa.large_binary()))


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


def _rows_by_path(table: "pa.Table", place: Place) -> Iterator[dict[str, Any]]:
    """Yield the rows in the order of the bytes of their keys. Rows of equal keys keep their order."""
    from pyarrow import compute

    order = compute.sort_indices(table, [("path", "ascending")])
    for start in range(0, len(order), _BATCH):
        batch = table.take(order.slice(start, _BATCH))
        try:
            rows = batch.to_pylist()
        except UnicodeDecodeError as error:  # Arrow reads JSON without checking the encoding.
            raise SourceError(f"{place} holds {error.object[:40]!r}, which is not UTF-8: save it as UTF-8") from error
        yield from rows


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
    key = text_of(row["path"])
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
