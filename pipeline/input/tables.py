"""Batches of the rows of a table.

A batch is (features, labels, weights). The features are a dict with a tensor for each feature column, by its name. It
holds the values of the records: int64 (integers, 0 or 1 of a bool, days of a date, microseconds of a time) or float32.
In place of texts, it holds their ids (int64) of `ids.py`. Its shape is (batch,). That of vectors, whose lists all have
one length, is (batch, length). That of other lists is (batch, longest list), filled up with 0.

A column of such lists also has a mask of the same shape, which `mask_name` names: float32, 1 for a value, 0 for a
missing one, whose place holds 0. So has a column with missing values, of numbers or of vectors, in the shape (batch,).
In these columns, an empty text counts as missing, because an
exported model, which gets no masks, cannot tell them apart.

`raw_batches` keep the texts, which an exported model takes.

Labels are int32 of (batch,), the ids from 0 of the classes, or for a regression float64 in the unit of the label,
which holds the integers up to 2^53.
Weights are float32 of (batch,).
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from pipeline.dataset.manifest import Dataset
from pipeline.errors import DatasetError
from pipeline.input.autograph import without_autograph
from pipeline.input.batch_kind import TrainingExamples
from pipeline.input.ids import Ids, text_ids
from pipeline.input.options import BatchOptions
from pipeline.input.order import (
    ONLY,
    ServerSplit,
    batch_weights,
    epoch_records,
    open_split,
    records_in_turn,
    tf_options,
)
from pipeline.storage import Place
from pipeline.system.resources import usable_cores
from pipeline.tables.schema import Column, Schema

DTYPES = {
    "int": tf.int64,
    "bool": tf.int64,
    "date": tf.int64,
    "time": tf.int64,
    "float": tf.float32,
    "string": tf.string,
}
"""The dtype of a value in a record, by the type of its column."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOOLS = {"false": 0, "true": 1}
Features: TypeAlias = dict[str, tf.Tensor]


def mask_name(name: str) -> str:
    """Return the name of the mask of a column."""
    return f"{name}_is_present"


def has_mask(column: Column) -> bool:
    """Return whether a column has a mask."""
    return column.is_ragged or column.missing > 0


def schema_of(dataset: Dataset) -> Schema:
    """Return the schema of a dataset of a table.

    Raises:
        DatasetError: If it has no feature, or a feature has the name of a mask.
    """
    schema = Schema.from_json(dataset.table)
    if not schema.features:
        raise DatasetError(
            f"the table of {dataset.name} has no feature: build the dataset again with a column beside its label"
        )
    names = {column.name for column in schema.features}
    for column in schema.features:
        if has_mask(column) and mask_name(column.name) in names:
            raise DatasetError(
                f"the column {mask_name(column.name)!r} has the name of the mask of the column {column.name!r}: rename "
                "the column, and build the dataset again"
            )
    return schema


def feature_dtype(column: Column) -> tf.DType:
    """Return the dtype of a column in the features of a model, where texts are ids."""
    return tf.int64 if column.type == "string" else DTYPES[column.type]


def with_ids(features: Features, dataset: Dataset) -> Features:
    """Return the features with ids in place of texts, as a model of the dataset takes them."""
    preprocessing = dataset.table["preprocessing"]
    return {
        name: text_ids(preprocessing[name], value) if value.dtype == tf.string else value
        for name, value in features.items()
    }


@without_autograph
def raw_batches(folder: Place, batch_size: int, name: str = "validation") -> tf.data.Dataset:
    """Return the batches of an evaluation on the split `name`, with their texts.

    Raises:
        DatasetError: If there is no dataset, or its schema cannot be used.
    """
    split = open_split(folder, BatchOptions(image_size=1, batch_size=batch_size), name, ONLY, None)
    batches = Rows(split, keeps_texts=True).batches(records_in_turn(split), start=0, numbered=False)
    batches = batches.apply(tf.data.experimental.assert_cardinality(split.share.steps))
    return batches.prefetch(split.options.prefetch_batches).with_options(tf_options())


class Rows:
    """The rows of a split. They have ids in place of texts, unless `keeps_texts`."""

    def __init__(self, split: ServerSplit, keeps_texts: bool = False) -> None:
        self._split, self._keeps_texts = split, keeps_texts
        self._parser = RowParser(split.dataset)

    def epoch(self, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        """Return the numbered records of an epoch, then its padding."""
        return epoch_records(self._split, epoch, order)

    def batches(self, examples: tf.data.Dataset, start: int, numbered: bool) -> tf.data.Dataset:
        """Return batches of numbered records, the first of which gets the number `start`."""

        def batch(examples: tuple[tf.Tensor, tf.Tensor], weights: tf.Tensor) -> tuple[Features | tf.Tensor, ...]:
            numbers, serialized = examples
            features, labels = self._parsed(serialized)
            if not numbered:
                return features, labels, weights
            return features, labels, weights, tf.zeros_like(weights, tf.bool), numbers

        weights = tf.data.Dataset.range(start, tf.int64.max).map(lambda number: batch_weights(self._split, number))
        # Whole batches are parsed: one row at a time would take ten times as long.
        batches = examples.batch(self._split.options.batch_size, drop_remainder=True)
        return tf.data.Dataset.zip(batches, weights).map(batch, num_parallel_calls=usable_cores(), deterministic=True)

    def _parsed(self, serialized: tf.Tensor) -> tuple[Features, tf.Tensor]:
        features, labels = self._parser.parse(serialized)
        return features if self._keeps_texts else with_ids(features, self._split.dataset), labels


def row_stages(split: ServerSplit) -> Mapping[str, TrainingExamples]:
    """Return the training rows of a split, cut after each stage, by the name of the stage. Batches come first."""
    return {"batch": _CutOff(split, reads=False), "read": _CutOff(split, reads=True), "parse": Rows(split)}


class _CutOff(Rows):
    """Rows that are read, but not parsed. Without `reads`, the records are constants, too."""

    def __init__(self, split: ServerSplit, reads: bool) -> None:
        super().__init__(split)
        self._reads = reads
        batch = records_in_turn(split).batch(split.options.batch_size, drop_remainder=True)
        _, serialized = next(iter(batch))
        self._record, self._constant = serialized[0], super()._parsed(serialized)

    def epoch(self, epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        """Return the numbered records of an epoch, or as many constants."""
        if self._reads:
            return super().epoch(epoch, order)
        # A batch copies its records, so they have the size of a real one.
        example = tf.constant(0, tf.int64), self._record
        return tf.data.Dataset.from_tensors(example).repeat(self._split.share.steps * self._split.options.batch_size)

    def _parsed(self, serialized: tf.Tensor) -> tuple[Features, tf.Tensor]:
        return self._constant


class RowParser:
    """Parses the records of a dataset of a table.

    Raises:
        DatasetError: If the schema cannot be used.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._schema = schema_of(dataset)
        self._spec = {
            # A default value of a fixed feature would not show which values are missing.
            column.name: tf.io.RaggedFeature(DTYPES[column.type])
            if has_mask(column)
            # A list of another length is an error of TensorFlow, which names the column and both lengths.
            else tf.io.FixedLenFeature([column.length] if column.length else [], DTYPES[column.type])
            for column in self._schema.features
        }
        label = self._schema.label
        self._spec[label.name] = tf.io.FixedLenFeature([], DTYPES[label.type])
        values = [value_of_text(label, text) for text in dataset.labels]
        is_number = self._schema.task == "regression"
        self._ids = None if is_number else Ids(np.array(values, DTYPES[label.type].as_numpy_dtype), range(len(values)))

    def parse(self, serialized: tf.Tensor) -> tuple[Features, tf.Tensor]:
        """Return the features, with their texts, and the labels of a batch of records (string, (batch,))."""
        parsed = tf.io.parse_example(serialized, self._spec)
        label = parsed.pop(self._schema.label.name)
        features = {}
        for column in self._schema.features:
            value = parsed[column.name]
            if not has_mask(column):
                features[column.name] = value
                continue
            if column.is_ragged:
                features[column.name] = value.to_tensor()
                lengths, longest = value.row_lengths(), tf.shape(features[column.name])[1]
                is_present = tf.sequence_mask(lengths, longest)
            else:
                dense = value.to_tensor(shape=[serialized.shape[0], column.length or 1])
                features[column.name] = _whole(column, value, dense) if column.length else dense[:, 0]
                is_present = value.row_lengths() > 0
            if column.type == "string":
                is_present = tf.not_equal(features[column.name], "")
            features[mask_name(column.name)] = tf.cast(is_present, tf.float32)
        return features, _known(self._ids, label) if self._ids else tf.cast(label, tf.float64)


def _whole(column: Column, lists: tf.RaggedTensor, vectors: tf.Tensor) -> tf.Tensor:
    """Return the vectors of lists. A list of another length, which would be cut or filled up, is an error."""
    lengths = lists.row_lengths()
    is_whole = tf.reduce_all(tf.logical_or(lengths == 0, lengths == column.length))
    problem = f"a record has a list of another length than {column.length} in the column {column.name!r}"
    with tf.control_dependencies([tf.debugging.Assert(is_whole, [problem, lengths])]):
        return tf.identity(vectors)


def _known(ids: Ids, labels: tf.Tensor) -> tf.Tensor:
    """Return the ids (int32) of labels. An unknown label is an error."""
    found, is_known = ids.of(labels)
    check = tf.debugging.Assert(tf.reduce_all(is_known), ["a record has a label that is not in dataset.json", labels])
    with tf.control_dependencies([check]):
        return tf.cast(found, tf.int32)


def value_of_text(column: Column, text: str) -> int | float | bytes:
    """Return the value that a record holds for a value of a column that is written as text.

    Raises:
        DatasetError: If the text is no value of the column.
    """
    try:
        match column.type:
            case "string":
                return text.encode("utf-8", "surrogateescape")
            case "float":
                return float(text)
            case "bool" if text.lower() in _BOOLS:
                return _BOOLS[text.lower()]
            case "date" if "-" in text[1:]:
                return (date.fromisoformat(text) - _EPOCH.date()).days
            case "time" if "-" in text[1:]:
                moment = datetime.fromisoformat(text)
                moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
                return (moment - _EPOCH) // timedelta(microseconds=1)
            case _:
                return int(text)
    except ValueError as error:
        raise DatasetError(
            f"the label {text!r} is no {column.type} of the column {column.name!r}: build the dataset again"
        ) from error
