"""parquet: rows with the bytes of an image, as data sets of the Hugging Face Hub have them."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import IO, TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from pipeline.kinds.images.hub_columns import IMAGES, HubColumns, is_bytes, is_image_struct, is_text
from pipeline.sources import Box, Classes, Skipped, SourceOptions
from pipeline.sources.box_forms import BoxesOfImage, BoxForms, boxes_of
from pipeline.sources.cells import NAMES as COLUMNS
from pipeline.sources.cells import labels_of, text_of
from pipeline.sources.container_formats import Bound, ContainedImage, ContainerFile, Item, require_no_vector
from pipeline.sources.folder import begins_as_image
from pipeline.system.arrow import little_memory

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyarrow.parquet import ParquetFile

BESIDE = ()
NAMES = re.compile(r".+\.parquet")
BATCH_BYTES = 4 << 20
"""About this many bytes of decoded rows are in memory at once."""
_PROBED_ROWS = 8
"""This many rows decide whether a column has images: it has, if one of them begins as an image does."""
_BUFFER = 1 << 20
"""Arrow reads this many bytes of a column at once. Otherwise, it would hold a whole row group."""
Each = TypeVar("Each")


class _Roles(NamedTuple, Generic[Each]):
    """One value for each role: the name of its column (empty if the file has none), or its cell in a row."""

    content: Each
    """The bytes of the image."""
    path: Each
    label: Each
    boxes: Each
    split: Each
    group: Each
    width: Each
    """Width and height of the image tell the form of its boxes."""
    height: Each


class _Columns(NamedTuple):
    names: _Roles[str]
    classes: Sequence[str] | None
    """The labels in the order of their ids, if the file names them."""


def holds_images(file: IO[bytes]) -> bool:
    """Whether a column has the bytes of images. Its first rows are read if its type does not tell."""
    with little_memory(), _opened(file) as content:
        known = HubColumns(content.schema_arrow)
        return bool(known.image_lists or _image_columns(content, known))


def shows_images(file: IO[bytes]) -> bool:
    """Whether the types of the columns, or the name of a column of bytes, show images. No row is read."""
    with _opened(file) as content:
        known = HubColumns(content.schema_arrow)
        return bool(known.image_lists or known.image_structs or {*known.of_bytes} & {*IMAGES})


def _image_columns(file: "ParquetFile", known: HubColumns) -> list[str]:
    # A list of images may have its paths as bytes.
    return known.image_structs or [name for name in known.of_bytes if _begins_with_images(file, known, name)]


def _begins_with_images(file: "ParquetFile", known: HubColumns, column: str) -> bool:
    for batch in file.iter_batches(_PROBED_ROWS, columns=[column]):
        values = [found for found in known.cells(batch, [column])[column] if found is not None]
        if values:
            return any(map(begins_as_image, values))
    return column in IMAGES  # All of it is missing, so its name decides.


def _opened(file: Any) -> "ParquetFile":
    from pyarrow import parquet

    return parquet.ParquetFile(file, page_checksum_verification=True, pre_buffer=False, buffer_size=_BUFFER)


def images(file: ContainerFile, options: SourceOptions) -> Iterator[Item]:
    """Yield the images in the order of the rows. Only a part of a row group is in memory."""
    with _opened(file.path) as content:
        if not content.metadata.num_rows:  # An empty shard of a large data set.
            return
        known = HubColumns(content.schema_arrow)
        columns = _columns(content, known, options)
        if columns.classes is not None:
            yield Classes(tuple(columns.classes), {})
        # Of a struct with an image, its other fields are left out.
        names = list(dict.fromkeys(map(known.to_read, filter(None, columns.names))))
        starts = _starts(content.metadata)
        end = file.end.row if file.end else content.metadata.num_rows
        groups = [number for number, start in enumerate(starts) if file.first.row <= start < end]
        batches = content.iter_batches(
            _rows_at_once(content.metadata), row_groups=groups, columns=names, use_threads=False
        )
        rows = chain.from_iterable(_rows_of(batch, known, columns.names) for batch in batches)
        boxes = columns.names.boxes
        forms = BoxForms(boxes)
        for number, row in enumerate(rows, file.first.row):
            if boxes:
                of_image = BoxesOfImage(row.boxes or (), row.width, row.height)
                forms.add(of_image, f"row {number + 1} of {file.place.name}")
            yield _image(row, number, columns, options)
        if boxes:
            forms.require_pixels()
            yield forms


def bounds(file: IO[bytes], options: SourceOptions, max_bytes: int) -> list[Bound]:
    """Return the first rows of row groups, which divide a file into pieces of about `max_bytes`."""
    with _opened(file) as content:
        metadata = content.metadata
    found, filled = [], 0
    for number, start in enumerate(_starts(metadata)):
        group = metadata.row_group(number)
        size = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if filled and filled + size > max_bytes:
            found.append(Bound(start))
            filled = 0
        filled += size
    return found


def _starts(metadata: Any) -> list[int]:
    """Return the number of the first row of each row group."""
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    return [end - count for end, count in zip(accumulate(rows), rows, strict=True)]


def _columns(file: "ParquetFile", known: HubColumns, options: SourceOptions) -> _Columns:
    image = _image_column(file, known, options.path_column)
    kind = known.types[image]
    is_struct = is_image_struct(kind)
    if not is_struct and not is_bytes(kind):
        raise ValueError(
            f"path_column is {image!r}, which holds {kind} instead of the bytes of images: name another column, or none"
        )
    path = next((name for name in COLUMNS["path"] if name in known.types and is_text(known.types[name])), "")
    label = known.label(options.label_column)
    boxes = known.boxes(label)
    width, height = (name if boxes and known.has_numbers(name) else "" for name in ("width", "height"))
    names = _Roles(
        content=f"{image}.bytes" if is_struct else image,
        path=f"{image}.path" * known.has(f"{image}.path") if is_struct else path,
        label=label,
        boxes=boxes,
        split=_optional("split", known, options.split_column),
        group=_optional("group", known, options.group_column),
        width=width,
        height=height,
    )
    return _Columns(names, known.classes(label))


def _image_column(file: "ParquetFile", known: HubColumns, wanted: str) -> str:
    if wanted in known.types:
        return wanted
    if wanted:
        raise ValueError(f"path_column is {wanted!r}, but its columns are {', '.join(known.types)}: name one of these")
    names = _image_columns(file, known)
    if len(names) > 1 and not any(name in IMAGES for name in names):
        raise ValueError(f"it has several columns of images: name one in path_column ({', '.join(names)})")
    if names:
        return next((name for name in IMAGES if name in names), names[0])
    if known.image_lists:
        raise ValueError(
            f"a row of {known.image_lists[0]!r} holds a list of images: write the file with one image in each row"
        )
    raise ValueError(
        f"it has no column with the bytes of images: its columns are {', '.join(known.types)}. Name the column in "
        "path_column. If each row is an example itself, set TABLE and LABEL instead of SOURCE"
    )


def _optional(role: str, known: HubColumns, wanted: str) -> str:
    if wanted and wanted not in known.types:
        columns = ", ".join(known.types)
        raise ValueError(f"{role}_column is {wanted!r}, but its columns are {columns}: name one of these, or none")
    if wanted and is_image_struct(known.types[wanted]):
        raise ValueError(f"{role}_column is {wanted!r}, which holds images: name another column, or none")
    return wanted or next((name for name in COLUMNS[role] if name in known.types), "")


def _rows_at_once(metadata: Any) -> int:
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(1024, BATCH_BYTES * int(metadata.num_rows) // max(1, size)))


def _rows_of(batch: "RecordBatch", known: HubColumns, names: _Roles[str]) -> Iterator[_Roles[Any]]:
    """Yield the cells of the rows of a batch; None for columns that the file lacks."""
    cells = known.cells(batch, filter(None, names))
    return map(_Roles[Any]._make, zip(*(cells.get(name, repeat(None)) for name in names), strict=False))


def _image(row: _Roles[Any], number: int, columns: _Columns, options: SourceOptions) -> ContainedImage | Skipped:
    if columns.classes is None and not columns.names.boxes:
        require_no_vector(row.label)
    labels = _labels(row.label, columns.classes)
    if row.content is None:
        return Skipped(f"{number:08d}", "only the path of an image, without its bytes" if row.path else "no image")
    if not labels:
        return Skipped(f"{number:08d}", "no label")
    too_large = len(row.content) > options.max_file_bytes
    return ContainedImage(
        name=text_of(row.path),
        content=None if too_large else row.content,
        labels=labels,
        split=text_of(row.split),
        group=text_of(row.group),
        size=len(row.content),
        boxes=_boxes(row, columns),
    )


def _boxes(row: _Roles[Any], columns: _Columns) -> Sequence[Box]:
    if not columns.names.boxes:
        return ()
    labels = [next(iter(_labels(each, columns.classes)), "") for each in row.label]
    return boxes_of(row.boxes or (), labels)


def _labels(cell: Any, classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the labels of a cell. Numbers are those of the classes. The Hub marks a missing label by -1."""
    if classes is None:
        return labels_of(cell)
    numbers = cell if isinstance(cell, list) else [cell]
    known = range(-1, len(classes))
    if any(number is not None and number not in known for number in numbers):
        raise ValueError(f"a label is {cell!r}, but the file names {len(classes)} classes")
    return tuple(dict.fromkeys(classes[int(number)] for number in numbers if number is not None and number >= 0))
