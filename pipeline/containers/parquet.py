"""parquet: rows with the bytes of an image, as data sets of the Hugging Face Hub have them."""

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline import storage
from pipeline.errors import SourceError
from pipeline.sources import Classes, Skipped, SourceOptions
from pipeline.sources.cells import NAMES as COLUMNS
from pipeline.sources.cells import choose_column, labels_of, text_of
from pipeline.sources.container_formats import ContainedImage
from pipeline.sources.split_names import split_of_word
from pipeline.storage import Place

if TYPE_CHECKING:
    import pyarrow as pa

BESIDE = ()
NAMES = re.compile(r".+\.parquet")
USUAL = ("image", "img", "jpg", "jpeg", "png", "picture", "photo", "bytes", "image_bytes", "image/encoded", "data")
"""The usual names of a column with the bytes of images. A column of structs may have any name."""
BATCH_BYTES = 16 << 20
"""About this many bytes of rows are in memory at once, of those that Arrow has decoded."""
_BUFFER = 1 << 20
"""Arrow reads this many bytes of a column at once. Otherwise, it would hold a whole row group."""


class _Columns(NamedTuple):
    image: str
    is_struct: bool
    path: str
    label: str
    split: str
    group: str

    @property
    def names(self) -> list[str]:
        """The columns that are read. Of a struct, its other fields are left out."""
        parts = [f"{self.image}.{part}" for part in ("bytes", "path")] if self.is_struct else [self.image]
        return [*parts, *filter(None, (self.path, self.label, self.split, self.group))]


def holds_images(place: Place) -> bool:
    """Whether a column has the bytes of images, by the schema alone."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with storage.open_ranges(place) as file:
            return bool(image_column(parquet.read_schema(file)))
    except pa.ArrowException:  # It is no Parquet file. Another kind of source says so.
        return False


def image_column(schema: "pa.Schema") -> str:
    """Return the column with the bytes of images; an empty text if there is none."""
    import pyarrow as pa

    # The Hub stores sound in such structs, too.
    stated = _features(schema)
    structs = [
        field.name
        for field in schema
        if _is_struct(field.type) and _type_of(stated.get(field.name)) in ("", "Image")
    ]
    of_bytes = [field.name for field in schema if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)]
    usual = [name for name in USUAL if name in of_bytes]
    return next(iter([*structs, *usual]), "")


def images(file: Path, place: Place, options: SourceOptions) -> Iterator[ContainedImage | Skipped | Classes]:
    """Yield the images in the order of the rows. Only a part of a row group is in memory."""
    from pyarrow import parquet

    with parquet.ParquetFile(
        file, page_checksum_verification=True, pre_buffer=False, buffer_size=_BUFFER
    ) as content:
        columns = _columns(content.schema_arrow, place, options)
        classes = _class_names(content.schema_arrow, columns.label)
        if classes is not None:
            yield Classes(tuple(classes), {})
        rows = 0
        for batch in content.iter_batches(_rows_at_once(content.metadata), columns=columns.names):
            for row in batch.to_pylist():
                yield _image(row, rows, columns, classes, options)
                rows += 1


def _is_struct(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    content = kind.field("bytes").type
    return bool(pa.types.is_binary(content) or pa.types.is_large_binary(content))


def _columns(schema: "pa.Schema", place: Place, options: SourceOptions) -> _Columns:
    image = options.path_column or image_column(schema)
    if image not in schema.names:
        raise SourceError(
            f"{place} has no column with the bytes of images: its columns are {', '.join(schema.names)}. Name the "
            "column in path_column. If each row is an example itself, set TABLE and LABEL instead of SOURCE"
        )
    rest = [name for name in schema.names if name != image]
    is_struct = _is_struct(schema.field(image).type)
    path = "" if is_struct else next((name for name in COLUMNS["path"] if name in rest), "")
    chosen = {
        role: choose_column(role, rest, place, getattr(options, f"{role}_column")) for role in ("label", "split", "group")
    }
    return _Columns(image, is_struct, path, **chosen)


def _class_names(schema: "pa.Schema", label: str) -> list[str] | None:
    """Return the classes of a column in the order of their ids, if the metadata of the Hub's library names them."""
    feature = _features(schema).get(label)
    if isinstance(feature, list) and feature:  # Several labels, in older metadata.
        feature = feature[0]
    if isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
        feature = feature["feature"]
    names = feature.get("names") if _type_of(feature) == "ClassLabel" else None
    return [str(name) for name in names] if isinstance(names, list) else None


def _features(schema: "pa.Schema") -> dict[str, Any]:
    """Return the features that the metadata of the Hub's library describes, by column."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _type_of(feature: Any) -> str:
    return str(feature.get("_type", "")) if isinstance(feature, dict) else ""


def _rows_at_once(metadata: Any) -> int:
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(1024, BATCH_BYTES * metadata.num_rows // max(1, size)))


def _image(
    row: dict[str, Any], number: int, columns: _Columns, classes: Sequence[str] | None, options: SourceOptions
) -> ContainedImage | Skipped:
    content, path = row[columns.image], row.get(columns.path)
    if columns.is_struct:
        fields = content or {}
        content, path = fields.get("bytes"), fields.get("path")
    labels = _labels(row[columns.label], classes)
    if content is None or not labels:
        return Skipped(f"{number:08d}", "no image" if content is None else "no label")
    stated = text_of(row.get(columns.split)).strip()
    split = split_of_word(stated) if stated else ""
    if split is None:
        raise ValueError(f"row {number + 1} has the split {stated!r}: it must be train, validation or test")
    too_large = len(content) > options.max_file_bytes
    return ContainedImage(
        name=posixpath.normpath(path).lstrip("/") if (path := text_of(path)) else "",
        content=None if too_large else content,
        labels=labels,
        split=split,
        group=text_of(row.get(columns.group)),
        size=len(content),
    )


def _labels(cell: Any, classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the labels of a cell. Numbers are those of the classes. The Hub marks a missing label by -1."""
    if classes is None:
        return labels_of(cell)
    numbers = cell if isinstance(cell, list) else [cell]
    if any(number is not None and not -1 <= number < len(classes) for number in numbers):
        raise ValueError(f"a label is {cell}, but the file names {len(classes)} classes")
    return tuple(dict.fromkeys(classes[number] for number in numbers if number is not None and number >= 0))
