"""parquet: rows with the bytes of an image, as data sets of the Hugging Face Hub have them."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pipeline.sources import Classes, Skipped, SourceOptions
from pipeline.sources.cells import NAMES as COLUMNS
from pipeline.sources.cells import choose_column, labels_of, text_of
from pipeline.sources.container_formats import ContainedImage, ContainerFile
from pipeline.sources.folder import begins_as_image
from pipeline.sources.split_names import split_of_word

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

BESIDE = ()
NAMES = re.compile(r".+\.parquet")
BATCH_BYTES = 4 << 20
"""About this many bytes of decoded rows are in memory at once."""
_PROBED_ROWS = 8
"""A column has images if one of its first rows begins as an image."""
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


def holds_images(file: IO[bytes]) -> bool:
    """Whether a column has the bytes of images. Its first rows are read if its type does not tell."""
    with _opened(file) as content:
        return bool(image_column(content))


def image_column(file: "ParquetFile") -> str:
    """Return the column with the bytes of images; an empty text if there is none."""
    schema = file.schema_arrow
    # The Hub stores sound in such structs, too.
    stated = _features(schema)
    for field in schema:
        if _is_struct(field.type) and _type_of(stated.get(field.name)) in ("", "Image"):
            return str(field.name)
    # A list of images may have its paths as bytes.
    of_bytes = [field.name for field in schema if _is_bytes(field.type)]
    return next((name for name in of_bytes if _begins_with_images(file, name)), "")


def _begins_with_images(file: "ParquetFile", column: str) -> bool:
    batch = next(file.iter_batches(_PROBED_ROWS, columns=[column]), None)
    return batch is not None and any(begins_as_image(value or b"") for value in batch.column(0).to_pylist())


def _opened(file: Any) -> "ParquetFile":
    from pyarrow import parquet

    return parquet.ParquetFile(file, page_checksum_verification=True, pre_buffer=False, buffer_size=_BUFFER)


def images(file: ContainerFile, options: SourceOptions) -> Iterator[ContainedImage | Skipped | Classes]:
    """Yield the images in the order of the rows. Only a part of a row group is in memory."""
    with _opened(file.path) as content:
        columns = _columns(content, file.place, options)
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
    return _is_bytes(kind.field("bytes").type)


def _is_bytes(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _columns(file: "ParquetFile", place: object, options: SourceOptions) -> _Columns:
    schema = file.schema_arrow
    image = options.path_column or image_column(file)
    if image not in schema.names:
        raise ValueError(
            f"it has no column with the bytes of images: its columns are {', '.join(schema.names)}. Name the column in "
            "path_column. If each row is an example itself, set TABLE and LABEL instead of SOURCE"
        )
    rest = [name for name in schema.names if name != image]
    kind = schema.field(image).type
    is_struct = _is_struct(kind)
    if not is_struct and not _is_bytes(kind):
        raise ValueError(
            f"path_column is {image!r}, which holds {kind} instead of the bytes of images: name another column, or none"
        )
    path = "" if is_struct else next((name for name in COLUMNS["path"] if name in rest), "")
    chosen = {
        role: choose_column(role, rest, place, getattr(options, f"{role}_column"))
        for role in ("label", "split", "group")
    }
    return _Columns(image, is_struct, path, **chosen)


def _class_names(schema: "pa.Schema", label: str) -> list[str] | None:
    """Return the classes of a column in the order of their ids, if the metadata of the Hub's library names them."""
    feature = _features(schema).get(label)
    if isinstance(feature, list) and feature:  # Several labels, in older metadata.
        feature = feature[0]
    if isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
        feature = feature["feature"]
    if not isinstance(feature, dict) or _type_of(feature) != "ClassLabel":
        return None
    return [str(name) for name in feature.get("names") or []] or None


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
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(1024, BATCH_BYTES * int(metadata.num_rows) // max(1, size)))


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
        name=text_of(path),
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
    known = range(-1, len(classes))
    if any(number is not None and number not in known for number in numbers):
        raise ValueError(f"a label is {cell!r}, but the file names {len(classes)} classes")
    return tuple(dict.fromkeys(classes[int(number)] for number in numbers if number is not None and number >= 0))
