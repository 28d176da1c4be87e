"""The rows of a table in a training: batches, model, and what an exported model takes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from pipeline.dataset.manifest import Dataset
from pipeline.errors import DatasetError
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import predictions_class
from pipeline.input import BatchOptions
from pipeline.input.batch_kind import TrainingExamples
from pipeline.input.order import ServerSplit
from pipeline.input.tables import (
    DTYPES,
    RowParser,
    Rows,
    has_mask,
    mask_name,
    raw_batches,
    row_stages,
    schema_of,
    with_ids,
)
from pipeline.storage import Place
from pipeline.system.wording import type_words
from pipeline.tables.schema import Column, Schema
from pipeline.training.model.models import ModelOptions
from pipeline.training.model.table_model import build_table_model
from pipeline.training.model.task import Classes, Regression, Task
from pipeline.training.model.tensor_kind import EXPORTED_BATCH, TensorKind


class RowTensors(TensorKind):
    """Rows of a table in a training."""

    keeps_decoded = False

    @override
    def training(self, split: ServerSplit) -> TrainingExamples:
        return Rows(split)

    @override
    def stages(self, split: ServerSplit) -> Mapping[str, TrainingExamples]:
        return row_stages(split)

    @override
    def validation(self, split: ServerSplit, records: tf.data.Dataset) -> tf.data.Dataset:
        return Rows(split).batches(records, start=0, numbered=False)

    @override
    def reader(self, dataset: Dataset) -> Callable[[tf.Tensor], object]:
        return RowParser(dataset).parse

    def task(self, dataset: Dataset) -> Task:
        """Return the task of classes, or of a regression."""
        if dataset.table["task"] != "regression":
            return Classes()
        label = Schema.from_json(dataset.table).label
        facts = dataset.table["preprocessing"][label.name]
        # If all labels are equal, any deviation will do but 0.
        return Regression(facts["mean"], facts["deviation"] or 1.0)

    @override
    def build_model(self, options: ModelOptions, dataset: Dataset) -> keras.Model:
        return build_table_model(options, dataset)

    def signature(self, dataset: Dataset) -> Any:
        """Return the spec of each column, by its name."""
        columns = schema_of(dataset).features
        names = argument_names([column.name for column in columns])
        return {
            column.name: tf.TensorSpec([None, column.length] if column.is_list else [None], _served_dtype(column), name)
            for column, name in zip(columns, names, strict=True)
        }

    def features(
        self, options: BatchOptions, dataset: Dataset, served: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Return the columns and their masks: a NaN or "" is a missing value. Texts become ids."""
        features = {}
        for column in schema_of(dataset).features:
            value = served[column.name]
            if has_mask(column):
                is_missing = tf.equal(value, "") if value.dtype == tf.string else tf.math.is_nan(value)
                if column.length:  # A vector is missing as a whole.
                    is_missing = tf.reduce_any(is_missing, axis=1)
                features[mask_name(column.name)] = 1.0 - tf.cast(is_missing, tf.float32)
                value = tf.where(_over(is_missing, value), tf.zeros_like(value), value)
            features[column.name] = tf.cast(value, DTYPES[column.type])
        return with_ids(features, dataset)

    def about(self, options: BatchOptions, dataset: Dataset) -> dict[str, Any]:
        """Return the task and the columns that the model takes."""
        specs = self.signature(dataset)
        columns = [
            {
                "name": column.name,
                "type": column.type,
                "is_list": column.is_list,
                "length": column.length,
                "argument": specs[column.name].name,
                "format": column.format,
                "dtype": specs[column.name].dtype.name,
                "can_be_missing": column.missing > 0,
                "average": _average(column, dataset.table["preprocessing"][column.name]),
            }
            for column in schema_of(dataset).features
        ]
        return {"columns": columns, **{name: dataset.table[name] for name in ("task", "texts", "dialect")}}

    def exported_predictions(
        self, model: Any, about: Mapping[str, Any], folder: Place, dataset: Dataset
    ) -> Iterator[Answers]:
        """Yield the predictions for the columns that the model takes."""
        for features, labels, weights in raw_batches(folder, EXPORTED_BATCH, dataset.judged_split):
            real = weights.numpy() > 0
            served = model.serve(served_columns(features, dataset, about["columns"]))
            if "value" in served:
                values = served["value"].numpy()[:, np.newaxis]
            else:
                known = dict(zip(about["labels"], served["probabilities"].numpy().T, strict=True))
                # A class that the model does not know has a probability of 0.
                unknown = np.zeros(EXPORTED_BATCH, np.float32)
                values = np.stack([known.get(name, unknown) for name in dataset.names], axis=1)
            yield predictions_class(dataset).of_batch(labels.numpy()[real], values[real])


def served_columns(
    features: Mapping[str, tf.Tensor], dataset: Dataset, columns: Sequence[Mapping[str, Any]]
) -> dict[str, tf.Tensor]:
    """Return the features of a batch of rows in the form that an exported model takes.

    Args:
        features: The features of `raw_batches`.
        dataset: Their dataset. The model may have been trained on another version of it.
        columns: The `columns` of about.json of the model.

    Raises:
        DatasetError: If the dataset lacks a column, or has it in another form.
    """
    known = {column.name: column for column in schema_of(dataset).features}
    served = {}
    for taken in columns:
        name, dtype, column = taken["name"], tf.as_dtype(taken["dtype"]), known.get(taken["name"])
        # A model of lists of any length also takes those of one length.
        is_known = column and (column.type, column.is_list) == (taken["type"], taken["is_list"])
        if column is None or not is_known or taken["length"] not in (None, column.length):
            words = type_words(taken["type"], taken["is_list"], taken["length"])
            raise DatasetError(
                f"the exported model takes the {words} column {name!r}, which {dataset.name} does not have: "
                "train a model on this version of the dataset"
            )
        value = tf.cast(features[name], dtype)
        if mask_name(name) in features and dtype != tf.string:  # A missing text is empty in any case.
            average = taken["average"]
            missing = tf.constant(float("nan") if average is None else average, dtype)
            value = tf.where(_over(features[mask_name(name)] > 0, value), value, missing)
        served[name] = value
    return served


def _over(mask: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Return a mask of values, or of whole vectors, in a shape that fits that of the values."""
    return mask if mask.shape.rank == value.shape.rank else mask[:, tf.newaxis]


def _average(column: Column, facts: Mapping[str, Any]) -> Any:
    """Return the value that stands for a missing one, if a model has learned from a column with a value in each row.

    It is the mean, from which no row is far on average; of a vector, that of each position. None if the model takes
    missing values.
    """
    if has_mask(column) or column.type == "string":
        return None
    mean: Any = facts.get("mean") or 0.0
    if column.type == "float":
        return mean
    return [round(each) for each in mean] if column.length else round(mean)


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


KIND = RowTensors()
