"""Which columns of a Parquet file of the Hugging Face Hub hold the images and their labels.

A field of a struct, or of a list of structs, counts as a column, too: `objects.category`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.sources.cells import NAMES
from pipeline.system.arrow import plain_schema

if TYPE_CHECKING:
    import pyarrow as pa

IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "pixel_values")
"""The usual names of a column of images. The first one is read if a file has several columns of images."""

BOXES = ("bbox", "bboxes", "boxes")
"""The usual names of a column of boxes, beside the column with a label for each of them."""


class HubColumns:
    """The columns of a file by their names, with what the Hub's library stores about them."""

    def __init__(self, schema: "pa.Schema") -> None:
        self.types: dict[str, pa.DataType] = {}
        self._features = _features(schema)
        self._paths: dict[str, tuple[str, ...]] = {}
        """The names of a column and of its fields, from the outside in. A name may contain dots, so the joined name
        cannot be split again."""
        self._in_lists: set[str] = set()
        for field in plain_schema(schema):
            self._add((field.name,), field.type)

    def _add(self, path: tuple[str, ...], kind: "pa.DataType", is_in_list: bool = False) -> None:
        import pyarrow as pa

        name, of_list = ".".join(path), element_of(kind)
        self._paths[name] = path
        if is_in_list:
            self._in_lists.add(name)
        inner = of_list or kind
        is_image = is_image_struct(inner)
        if is_image or not pa.types.is_struct(inner):
            self.types[name] = kind
        if is_image and not of_list:
            self._paths |= {f"{name}.{field.name}": (*path, field.name) for field in inner}
        elif pa.types.is_struct(inner) and not is_image:
            for field in inner:
                self._add((*path, field.name), pa.list_(field.type) if of_list else field.type, bool(of_list))

    def has(self, name: str) -> bool:
        """Whether there is a column of this name. A field of a struct with an image counts here, too."""
        return name in self._paths

    def to_read(self, name: str) -> str:
        """Return the name by which Arrow reads a column. Of a list of structs, it reads all fields."""
        return self._paths[name][0] if name in self._in_lists else name

    def cells(self, batch: "pa.RecordBatch", names: Iterable[str]) -> dict[str, list[Any]]:
        """Return the cells of columns that were read, by their names.

        Each column becomes a list at once: Arrow takes several times as long to make a dictionary of each struct.
        """
        import pyarrow as pa

        found, lists = dict[str, list[Any]](), dict[tuple[str, ...], list[Any]]()
        for name in names:
            first, *fields = path = self._paths[name]
            # If several columns have this name, the last one counts, as in a dictionary of a row.
            column = batch.column(batch.schema.get_all_field_indices(first)[-1])
            while fields and pa.types.is_struct(column.type):
                column = column.flatten()[column.type.get_field_index(fields.pop(0))]
            # `fields` now has only names inside a list of structs. Such a list is converted once for all its fields.
            above = path[: len(path) - len(fields)]
            if above not in lists:
                lists[above] = column.to_pylist()
            found[name] = [_fields_of(cell, fields) for cell in lists[above]] if fields else lists[above]
        return found

    @property
    def image_structs(self) -> list[str]:
        """The columns of images in the form of the Hub, which stores sound in such structs, too."""
        return [name for name, kind in self.types.items() if is_image_struct(kind) and self._may_be_image(name)]

    @property
    def image_lists(self) -> list[str]:
        """The columns with several images in a row."""
        return [
            name for name, kind in self.types.items() if is_image_struct(element_of(kind)) and self._may_be_image(name)
        ]

    @property
    def of_bytes(self) -> list[str]:
        """The binary columns."""
        return [name for name, kind in self.types.items() if is_bytes(kind)]

    def classes(self, name: str) -> list[str] | None:
        """Return the classes of a column in the order of their ids, if the Hub's library stored them."""
        feature = self._feature(name)
        if feature.get("_type") != "ClassLabel":
            return None
        return [str(each) for each in feature.get("names") or []] or None

    def label(self, wanted: str) -> str:
        """Return the column of the labels. `wanted` is the column that the user names; empty if they name none.

        Raises ValueError if it is unknown, with what to set.
        """
        possible = [name for name, kind in self.types.items() if _may_be_label(kind)]
        if wanted in possible:
            return wanted
        if wanted:
            holds = f"holds {self.types[wanted]} instead of labels" if wanted in self.types else "does not exist"
            raise ValueError(f"label_column is {wanted!r}, which {holds}: {_choice(possible)}")
        if usual := next((name for name in NAMES["label"] if name in possible), ""):
            return usual
        with_classes = [name for name in possible if self.classes(name)]
        if len(with_classes) == 1:
            return with_classes[0]
        raise ValueError(f"it has no column {' or '.join(NAMES['label'])}: {_choice(with_classes or possible)}")

    def boxes(self, label: str) -> str:
        """Return the column of the boxes, in the struct that has one label for each of them; empty if there is none."""
        has_several = "." in label and element_of(self.types[label]) is not None
        names = [f"{label.rpartition('.')[0]}.{name}" for name in BOXES] if has_several else []
        return next((name for name in names if name in self.types and _has_lists(self.types[name])), "")

    def has_numbers(self, name: str) -> bool:
        """Whether there is a column of this name, and each row has one number."""
        import pyarrow as pa

        kind = self.types.get(name, pa.null())
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))

    def _may_be_image(self, name: str) -> bool:
        return bool(self._feature(name).get("_type", "Image") == "Image")

    def _feature(self, name: str) -> Mapping[str, Any]:
        if name in self._features:
            return _element(self._features[name])
        first, *parts = name.split(".")
        feature = _element(self._features.get(first))
        for part in parts:
            feature = _element(feature.get(part))
        return feature


def _fields_of(cell: list[Any] | None, names: Sequence[str]) -> list[Any] | None:
    """Return a field of each struct of a list, by the names that lead to it."""
    for name in names:
        cell = cell and [(each or {}).get(name) for each in cell]
    return cell


def element_of(kind: "pa.DataType") -> "pa.DataType | None":
    """Return the type of the elements of a list; None for any other type."""
    import pyarrow as pa

    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return kind.value_type if is_list else None


def is_image_struct(kind: "pa.DataType | None") -> bool:
    """Whether a type is a struct with `bytes` in it."""
    import pyarrow as pa

    if kind is None or not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    return is_bytes(kind.field("bytes").type)


def is_bytes(kind: "pa.DataType") -> bool:
    """Whether a type is binary."""
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_text(kind: "pa.DataType") -> bool:
    """Whether a type is text."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _may_be_label(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    of = pa.types
    kind = element_of(kind) or kind
    kind = kind.value_type if of.is_dictionary(kind) else kind
    return is_text(kind) or of.is_integer(kind) or of.is_floating(kind) or of.is_boolean(kind)


def _has_lists(kind: "pa.DataType") -> bool:
    inner = element_of(kind)
    return inner is not None and element_of(inner) is not None


def _choice(names: list[str]) -> str:
    if not names:
        return "no column can hold labels: add a column of texts or integers"
    return f"name the column that holds the labels in label_column ({', '.join(names)})"


def _features(schema: "pa.Schema") -> Mapping[str, Any]:
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _element(feature: Any) -> Mapping[str, Any]:
    """Return what a feature says about a single value. Lists have a `feature`; in older metadata, they are lists."""
    while True:
        if isinstance(feature, list) and feature:
            feature = feature[0]
        elif isinstance(feature, dict) and "_type" in feature and isinstance(feature.get("feature"), (dict, list)):
            feature = feature["feature"]
        else:
            return feature if isinstance(feature, dict) else {}
