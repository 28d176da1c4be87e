"""Models of the rows of a table. They take the values of the records, and prepare numbers themselves.

A model takes the features of `pipeline/input/tables.py`: a dict with a tensor for each column, and for each mask. It
gives logits, (batch, classes), or for a regression (batch, 1): the label less its mean, over its deviation.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers, ops

from pipeline.dataset.manifest import Dataset
from pipeline.input.ids import id_count
from pipeline.input.tables import feature_dtype, has_mask, mask_name, schema_of
from pipeline.tables.schema import Column, Schema
from pipeline.training.model.models import ModelOptions, dtype_policy, functional, own_model, with_weights

HIDDEN = (256, 128)
"""Units of the hidden layers."""
DROPOUT = 0.2
MAX_DEVIATIONS = 10.0
"""A number counts as at most this many deviations from the mean. Otherwise, an outlier would decide a whole step."""
MAX_EMBEDDING = 50

Tensors = dict[str, Any]


def build_table_model(options: ModelOptions, dataset: Dataset) -> keras.Model:
    """Build the model of a table, `mlp` or a function of the user's own.

    The function is called with the content of `dataset.table` and the number of classes, 1 for a regression.

    Raises:
        ValueError, OSError: If the file of weights does not fit.
        DatasetError: If the schema cannot be used.
        SettingsError: If a function of the user's own cannot be used.
    """
    schema = schema_of(dataset)
    inputs = inputs_of(schema)
    outputs = len(dataset.labels) or 1  # A regression has no classes.
    with dtype_policy(options.precision):
        if ":" in options.name:
            taken = f"a dict of the inputs {', '.join(inputs)}"
            return own_model(options, (dict(dataset.table), outputs), f"(schema, {outputs})", inputs, taken)
        logits = _mlp(inputs, schema, dataset.table["preprocessing"], outputs)
        return with_weights(functional(inputs, logits, name="mlp"), options)


def inputs_of(schema: Schema) -> Tensors:
    """Return the inputs of a model of a table, by column, and by mask. A function of the user's own can use them."""
    inputs = {}
    for number, column in enumerate(schema.features):
        shape = (None,) if column.is_list else ()
        # The keys of the dict count, not these names, see `functional`.
        name = f"column_{number}"
        inputs[column.name] = keras.Input(shape, name=name, dtype=feature_dtype(column).name)
        if has_mask(column):
            inputs[mask_name(column.name)] = keras.Input(shape, name=mask_name(name), dtype="float32")
    return inputs


def _mlp(inputs: Tensors, schema: Schema, preprocessing: dict[str, Any], outputs: int) -> Any:
    """Return the logits of a linear part (wide) beside hidden layers (deep), as Cheng et al. 2016 describe."""
    deep, wide = [], []
    numbers = [column for column in schema.features if column.type != "string"]
    single = [column for column in numbers if not column.is_list]
    if single:
        deep.append(_normalized(inputs, single, preprocessing))
    deep += [
        _mean(_normalized_list(inputs, column, preprocessing), inputs[mask_name(column.name)])
        for column in numbers
        if column.is_list
    ]
    missing = [inputs[mask_name(column.name)] for column in single if column.missing]
    if missing:
        deep.append(1.0 - ops.stack(missing, axis=-1))
    if deep:
        linear = layers.Dense(outputs, use_bias=False, kernel_initializer="zeros", dtype="float32", name="wide")
        wide.append(linear(_joined(deep)))
    texts = [column for column in schema.features if column.type == "string"]
    for number, column in enumerate(texts):
        ids, size = inputs[column.name], id_count(preprocessing[column.name])
        # The linear part begins at zero, so that the first steps are not lost on undoing random weights.
        weights = layers.Embedding(size, outputs, "zeros", dtype="float32", name=f"weights_{number}")(ids)
        width = int(min(MAX_EMBEDDING, round(1.6 * size**0.56)))
        embedded = layers.Embedding(size, width, name=f"embedding_{number}")(ids)
        if column.is_list:
            weights, embedded = (_mean(each, inputs[mask_name(column.name)]) for each in (weights, embedded))
        wide.append(weights)
        deep.append(embedded)
    x = _joined(deep)
    for units in HIDDEN:
        x = layers.Dropout(DROPOUT)(layers.Dense(units, activation="relu")(x))
    # float32 whatever the policy: logits of half precision overflow in the loss.
    return layers.Add(dtype="float32", name="logits")([layers.Dense(outputs, dtype="float32", name="deep")(x), *wide])


def _normalized(inputs: Tensors, columns: Sequence[Column], preprocessing: dict[str, Any]) -> Any:
    """Return the numbers of some columns, (batch, columns), with mean 0 and deviation 1; 0 for missing values."""
    facts = [_facts(preprocessing[column.name]) for column in columns]
    # In float64, because float32 holds a time only to two minutes.
    centered = [
        ops.cast(inputs[column.name], "float64") - mean for column, (mean, _) in zip(columns, facts, strict=True)
    ]
    scaled = _scaled(ops.stack(centered, axis=-1), [1 / deviation for _, deviation in facts])
    if not any(column.missing for column in columns):
        return scaled
    present = [
        inputs[mask_name(column.name)] if column.missing else ops.ones_like(inputs[column.name], "float32")
        for column in columns
    ]
    return scaled * ops.stack(present, axis=-1)


def _normalized_list(inputs: Tensors, column: Column, preprocessing: dict[str, Any]) -> Any:
    """Return the numbers of a column of lists, (batch, longest, 1)."""
    facts = preprocessing[column.name]
    values = ops.expand_dims(ops.cast(inputs[column.name], "float64"), -1)
    if "mean" not in facts:
        # Numbers of an unknown scale. Their logarithm tells small ones apart, and large ones up to 10^8, too.
        return _scaled(ops.sign(values) * ops.log1p(ops.abs(values)), [0.5])
    mean, deviation = _facts(facts)
    return _scaled(values - mean, [1 / deviation])


def _scaled(centered: Any, scale: Sequence[float]) -> Any:
    scaled = layers.Rescaling(list(scale), dtype="float32")(ops.cast(centered, "float32"))
    # A value that is not a number counts as missing.
    return ops.clip(ops.nan_to_num(scaled), -MAX_DEVIATIONS, MAX_DEVIATIONS)


def _facts(facts: dict[str, Any]) -> tuple[float, float]:
    """Return mean and deviation of a column; 0 and 1 for a bool, and for a column without values."""
    return float(facts.get("mean") or 0.0), float(facts.get("deviation") or 1.0)


def _mean(values: Any, mask: Any) -> Any:
    """Return the mean of lists, (batch, width), of (batch, longest, width); 0 of an empty list."""
    mask = ops.expand_dims(mask if values.dtype == "float32" else ops.cast(mask, values.dtype), -1)
    return ops.sum(values * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1.0)


def _joined(parts: Sequence[Any]) -> Any:
    # Embeddings have the dtype of the policy.
    wide = [part if part.dtype == "float32" else ops.cast(part, "float32") for part in parts]
    return ops.concatenate(wide, axis=-1) if len(wide) > 1 else wide[0]
