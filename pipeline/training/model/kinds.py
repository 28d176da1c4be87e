"""What differs between trainings on images and on a table, apart from the batches (pipeline/input/batches.py)."""

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf

from pipeline.config import Settings
from pipeline.dataset.manifest import Dataset
from pipeline.errors import DatasetError
from pipeline.input.decode import decode_file_for_evaluation
from pipeline.input.tables import DTYPES, has_mask, mask_name, schema_of
from pipeline.runs.kind_settings import require_model
from pipeline.tables.schema import Column
from pipeline.training.model.models import build_model
from pipeline.training.model.table_model import build_table_model


class Augmentation(NamedTuple):
    """What a step changes of its training examples."""

    flip: bool = False
    color_jitter: float = 0.0


class Kind(Protocol):
    """A kind of examples."""

    def build_model(self, settings: Settings, dataset: Dataset) -> keras.Model:
        """Build the model that the settings name. It gives logits."""

    def augmentation(self, settings: Settings) -> Augmentation:
        """Return what a step changes of its training examples."""

    def can_use_xla(self, dataset: Dataset) -> bool:
        """Return whether XLA can compile the steps."""

    def signature(self, settings: Settings, dataset: Dataset) -> Any:
        """Return the specs of what an exported model takes."""

    def features(self, settings: Settings, dataset: Dataset, served: Any) -> Any:
        """Return what the model takes, from what its exported form takes."""

    def about(self, settings: Settings, dataset: Dataset) -> dict[str, Any]:
        """Return what about.json of an exported model says of its input."""


class Images:
    """Images."""

    def build_model(self, settings: Settings, dataset: Dataset) -> keras.Model:
        """Build a model of images."""
        return build_model(settings, len(dataset.labels))

    def augmentation(self, settings: Settings) -> Augmentation:
        """Return what the settings say."""
        return Augmentation(settings.flip, settings.color_jitter)

    def can_use_xla(self, dataset: Dataset) -> bool:
        """Return true."""
        return True

    def signature(self, settings: Settings, dataset: Dataset) -> Any:
        """Return the spec of `images`, JPEG or PNG files."""
        return tf.TensorSpec([None], tf.string, "images")

    def features(self, settings: Settings, dataset: Dataset, served: tf.Tensor) -> tf.Tensor:
        """Return the decoded images."""
        shape = (settings.image_size, settings.image_size, 3)

        def image(content: tf.Tensor) -> tf.Tensor:
            return decode_file_for_evaluation(content, settings.crop, settings.image_size)

        # One by one, because the files of a request have different sizes.
        return tf.map_fn(image, served, fn_output_signature=tf.TensorSpec(shape, tf.uint8))

    def about(self, settings: Settings, dataset: Dataset) -> dict[str, Any]:
        """Return size and crop of the images."""
        return {
            "multi_label": dataset.records.multi_label,
            "image_size": settings.image_size,
            "crop": settings.crop,
        }


class Rows:
    """Rows of a table."""

    def build_model(self, settings: Settings, dataset: Dataset) -> keras.Model:
        """Build a model of a table."""
        return build_table_model(settings, dataset)

    def augmentation(self, settings: Settings) -> Augmentation:
        """Return nothing: rows are neither mirrored nor colored."""
        return Augmentation()

    def can_use_xla(self, dataset: Dataset) -> bool:
        """Return whether no feature is a string, which XLA does not know."""
        return all(column.type != "string" for column in schema_of(dataset).features)

    def signature(self, settings: Settings, dataset: Dataset) -> Any:
        """Return the spec of each column, by its name."""
        columns = schema_of(dataset).features
        names = argument_names([column.name for column in columns])
        return {
            column.name: tf.TensorSpec([None, None] if column.is_list else [None], _served_dtype(column), name)
            for column, name in zip(columns, names, strict=True)
        }

    def features(self, settings: Settings, dataset: Dataset, served: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the columns and their masks: a NaN or "" is a missing value."""
        features = {}
        for column in schema_of(dataset).features:
            value = served[column.name]
            if has_mask(column):
                is_missing = tf.equal(value, "") if value.dtype == tf.string else tf.math.is_nan(value)
                features[mask_name(column.name)] = 1.0 - tf.cast(is_missing, tf.float32)
                value = tf.where(is_missing, tf.zeros_like(value), value)
            features[column.name] = value if value.dtype == tf.string else tf.cast(value, DTYPES[column.type])
        return features

    def about(self, settings: Settings, dataset: Dataset) -> dict[str, Any]:
        """Return the task and the columns that the model takes."""
        specs = self.signature(settings, dataset)
        columns = [
            {
                "name": column.name,
                "type": column.type,
                "is_list": column.is_list,
                "argument": specs[column.name].name,
                "dtype": specs[column.name].dtype.name,
                "can_be_missing": column.missing > 0,
            }
            for column in schema_of(dataset).features
        ]
        return {"task": dataset.table["task"], "columns": columns}


def served_columns(
    features: Mapping[str, tf.Tensor], dataset: Dataset, columns: Sequence[Mapping[str, Any]]
) -> dict[str, tf.Tensor]:
    """Return the features of a batch of rows in the form that an exported model takes.

    Args:
        features: The features, as the input pipeline makes them.
        dataset: Their dataset. The model may have been trained on another version of it.
        columns: The `columns` of about.json of the model.

    Raises:
        DatasetError: If the dataset lacks a column, or has it in another form.
    """
    known = {column.name: column for column in schema_of(dataset).features}
    served = {}
    for taken in columns:
        name, dtype, column = taken["name"], tf.as_dtype(taken["dtype"]), known.get(taken["name"])
        if column is None or (column.type, column.is_list) != (taken["type"], taken["is_list"]):
            raise DatasetError(
                f"the exported model takes the {taken['type']} column {name!r}, which {dataset.name} does not have: "
                "train a model on this version of the dataset"
            )
        value = tf.cast(features[name], dtype)
        if mask_name(name) in features and dtype.is_floating:
            value = tf.where(features[mask_name(name)] > 0, value, tf.cast(float("nan"), dtype))
        served[name] = value
    return served


def argument_names(names: Sequence[str]) -> list[str]:
    """Return a name for each column that a signature of a SavedModel may have: ASCII letters, digits and _, unique."""
    found: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = plain if re.match("[A-Za-z]", plain) else f"column_{plain}"
        numbered = (f"{plain}_{number}" for number in count(2))
        # A column that has the plain name itself keeps it.
        taken = {*found, *(other for other in names if other != name)}
        found[plain if plain not in taken else next(each for each in numbered if each not in taken)] = None
    return list(found)


def _served_dtype(column: Column) -> tf.DType:
    dtype = DTYPES[column.type]
    # An integer has no NaN. float64 holds all days, and all microseconds up to the year 2255, exactly.
    return tf.float64 if has_mask(column) and dtype == tf.int64 else dtype


_IMAGES, _ROWS = Images(), Rows()


def kind_of(dataset: Dataset) -> Kind:
    """Return the kind of the examples of a dataset."""
    return _ROWS if dataset.table else _IMAGES


def build_model_of(settings: Settings, dataset: Dataset) -> keras.Model:
    """Build the model of a training.

    Raises:
        SettingsError: If it is a model of another kind of examples, or a function that cannot be used.
        DatasetError: If the schema of a table cannot be used.
        ValueError, OSError: If the file of weights does not fit.
    """
    require_model(settings, dataset)
    return kind_of(dataset).build_model(settings, dataset)
