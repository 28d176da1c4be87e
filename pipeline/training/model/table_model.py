"""Models of the rows of a table. They take the values of the records, and prepare numbers themselves.

A model takes the features of `pipeline/input/tables.py`: a dict with a tensor for each column, and for each mask. It
gives logits, (batch, classes), or for a regression (batch, 1): the label less its mean, over its deviation.

The model `mlp` sees a number in up to three forms, which follow from the quantiles of the training rows, so that a few
outliers do not decide them:

- on a scale with the median at 0, on which a normal distribution has the deviation 1, and no number is beyond 3: the
  robust scale of Holzmüller et al. 2024, Better by Default: Strong Pre-Tuned MLPs and Boosted Trees on Tabular Data.
- in pieces: between each two quantiles, a number that rises from 0 to 1, as in Gorishniy et al. 2022, On Embeddings for
  Numerical Features in Tabular Deep Learning. A linear layer of them is any curve of straight pieces.
- whole numbers with few values: a weight for each value, as the values of a text have one.

Of a vector, it sees each position on a scale with the mean at 0 and the deviation 1, with the same limit. Of other
lists it sees a mean.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

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
MAX_SCALED = 3.0
"""No number on its scale is larger. Otherwise, an outlier would decide a whole step."""
MAX_UNITS = 1e6
"""Numbers are cut here before they are squared, which would overflow."""
MIN_WIDTH = 1e-30
"""Narrower pieces and units are left out, because float32 cannot hold their inverse."""
FAR = 1e30
"""A place that stands for no value: far from all numbers."""
MAX_LOGARITHM = 10.0
"""A number of a list is at most this large, on its scale of logarithms."""
PIECE_ROWS = 16
"""A piece between two quantiles has at least about this many rows of the sample, unless a column has fewer values."""
STEPS = (1, 2, 4, 8, 16)
"""A piece is between two quantiles that are this many places apart."""
MAX_WIDTH = 8192
"""The pieces of all columns are at most half as many inputs of the hidden layers, and so are the values."""
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
        shape = (column.length,) if column.is_list else ()
        # The keys of the dict count, not these names, see `functional`.
        name = f"column_{number}"
        inputs[column.name] = keras.Input(shape, name=name, dtype=feature_dtype(column).name)
        if has_mask(column):
            shape = shape if column.is_ragged else ()
            inputs[mask_name(column.name)] = keras.Input(shape, name=mask_name(name), dtype="float32")
    return inputs


def _mlp(inputs: Tensors, schema: Schema, preprocessing: dict[str, Any], outputs: int) -> Any:
    """Return the logits of a linear part (wide) beside hidden layers (deep), as Cheng et al. 2016 describe."""
    deep, wide = [], []
    numbers = [column for column in schema.features if column.type != "string"]
    single = [column for column in numbers if not column.is_list]
    if single:
        deep += _forms(inputs, single, preprocessing)
    deep += [_places(inputs, column, preprocessing[column.name]) for column in numbers if column.length]
    deep += [
        _mean(_logarithms(inputs[column.name]), inputs[mask_name(column.name)])
        for column in numbers
        if column.is_ragged
    ]
    missing = [inputs[mask_name(column.name)] for column in numbers if column.missing and not column.is_ragged]
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


def _forms(inputs: Tensors, columns: Sequence[Column], preprocessing: dict[str, Any]) -> list[Any]:
    """Return the forms of the numbers of some columns, each (batch, width); 0 for missing values."""
    scales = scales_of([preprocessing[column.name] for column in columns])
    in_pieces = [number for number, scale in enumerate(scales) if len(scale.edges) > 1]
    in_values = [number for number, scale in enumerate(scales) if scale.values]

    def centered(numbers: Iterable[int]) -> Any:
        # In float64, because float32 holds a time only to two minutes.
        values = [ops.cast(inputs[columns[number].name], "float64") - scales[number].center for number in numbers]
        # A value that is not a number counts as the median.
        return ops.nan_to_num(ops.cast(ops.stack(values, axis=-1), "float32"))

    def present(form: Any, numbers: Sequence[int]) -> Any:
        """Return a form, (batch, columns, width), with 0 for missing values, as (batch, columns * width)."""
        if any(columns[number].missing for number in numbers):
            masks = [_mask(inputs, columns[number]) for number in numbers]
            form = form * ops.expand_dims(ops.stack(masks, axis=-1), -1)
        return ops.reshape(form, (-1, form.shape[1] * form.shape[2]))

    every = range(len(columns))
    scaled = _clipped(_scaled(centered(every), [1 / scale.unit for scale in scales]))
    forms = [present(ops.expand_dims(scaled, -1), every)]
    if in_pieces:
        pieces = [list(pairwise(scales[number].edges)) for number in in_pieces]
        above = _less(centered(in_pieces), [[low for low, _ in each] for each in pieces], 0.0)
        steepness = _filled([[1 / (high - low) for low, high in each] for each in pieces], 0.0)
        forms.append(present(ops.clip(_scaled(above, steepness), 0.0, 1.0), in_pieces))
    if in_values:
        values = [scales[number].values for number in in_values]
        distance = ops.abs(_less(centered(in_values), values, FAR))
        # 1 for the value itself, and 0 for all other whole numbers.
        forms.append(present(ops.relu(1.0 - distance), in_values))
    return forms


def _mask(inputs: Tensors, column: Column) -> Any:
    return inputs[mask_name(column.name)] if column.missing else ops.ones_like(inputs[column.name], "float32")


class Scale(NamedTuple):
    """The scale of a column. `edges` and `values` are less the center."""

    center: float
    unit: float
    edges: Sequence[float]
    """The quantiles that pieces are between."""
    values: Sequence[float]
    """The values of a column of whole numbers that has few of them."""


def scales_of(facts: Sequence[Mapping[str, Any]]) -> list[Scale]:
    """Return the scales of columns. If there are very many, each has fewer pieces, or none, and fewer values."""
    pieces = [len(each["quantiles"]) - 1 for each in facts if each.get("quantiles")]
    step = next((step for step in STEPS if sum(each // step for each in pieces) <= MAX_WIDTH // 2), 0)
    # All columns take as many inputs as the one with the most values, so those with more values have none.
    counts = sorted(len(each["values"]) for each in facts if each.get("values"))
    fitting = [count for count in counts if bisect_right(counts, count) * count <= MAX_WIDTH // 2]
    return [_scale_of(each, step, max(fitting, default=0)) for each in facts]


def _scale_of(facts: Mapping[str, Any], smallest_step: int = 1, most_values: int = 0) -> Scale:
    """Return the scale of a column; that of a bool, and of a column without values, has the center 0 and the unit 1.

    Args:
        facts: The preprocessing of the column.
        smallest_step: The smallest of STEPS that the column may have; 0 if it has no pieces.
        most_values: The column has none if its values are more.
    """
    quantiles = facts.get("quantiles") or ()
    if not quantiles:
        return Scale(float(facts.get("mean") or 0.0), float(facts.get("deviation") or 1.0), (), ())
    quarter = len(quantiles) // 4
    center = quantiles[2 * quarter]
    # In a normal distribution, each of them is the standard deviation.
    units = [(quantiles[-quarter - 1] - quantiles[quarter]) / 1.35, (quantiles[-1] - quantiles[0]) / 5.15]
    unit = next((each for each in (*units, facts["deviation"]) if each > MIN_WIDTH), 1.0)
    # Each piece should have enough rows to learn from.
    has_rows = (step for step in STEPS if facts["sampled"] * step >= PIECE_ROWS * len(quantiles))
    step = max(smallest_step, next(has_rows, STEPS[-1]))
    edges: list[float] = []
    for quantile in quantiles[::step] if smallest_step else ():
        if not edges or quantile - center - edges[-1] > MIN_WIDTH:
            edges.append(quantile - center)
    values = facts.get("values", ())
    return Scale(center, unit, edges, [value - center for value in values] if len(values) <= most_values else ())


def _places(inputs: Tensors, column: Column, facts: Mapping[str, Any]) -> Any:
    """Return the numbers of a column of vectors, by the scale of each position, (batch, length); 0 for missing ones."""
    offsets = [-mean for mean in facts["mean"]]
    # In float64, as the numbers of other columns.
    centered = layers.Rescaling(1.0, offsets, dtype="float64")(inputs[column.name])
    units = [deviation if deviation > MIN_WIDTH else 1.0 for deviation in facts["deviation"]]
    scaled = _clipped(_scaled(ops.nan_to_num(ops.cast(centered, "float32")), [1 / unit for unit in units]))
    return scaled * ops.expand_dims(inputs[mask_name(column.name)], -1) if column.missing else scaled


def _logarithms(lists: Any) -> Any:
    """Return the numbers of lists of an unknown scale, (batch, longest, 1)."""
    values = ops.expand_dims(ops.cast(lists, "float64"), -1)
    # The logarithm tells small numbers apart, and large ones up to 10^8, too.
    logarithms = ops.sign(values) * ops.log1p(ops.abs(values))
    return ops.clip(_scaled(ops.nan_to_num(ops.cast(logarithms, "float32")), [0.5]), -MAX_LOGARITHM, MAX_LOGARITHM)


def _scaled(values: Any, scale: Sequence[Any]) -> Any:
    return layers.Rescaling(list(scale), dtype="float32")(values)


def _less(values: Any, subtracted: Sequence[Sequence[float]], filler: float) -> Any:
    """Return values, (batch, columns), less each of some numbers of their column, (batch, columns, width)."""
    offsets = [[-each for each in row] for row in _filled(subtracted, filler)]
    # `Rescaling` does not know the shape of its output if that is larger than its input.
    repeated = ops.stack([values] * len(offsets[0]), axis=-1)
    return layers.Rescaling([1.0], offsets, dtype="float32")(repeated)


def _filled(rows: Sequence[Sequence[float]], filler: float) -> list[list[float]]:
    """Return the rows with equal lengths."""
    width = max(map(len, rows))
    return [[*row, *[filler] * (width - len(row))] for row in rows]


def _clipped(scaled: Any) -> Any:
    """Return numbers that hardly change near 0, and stay below MAX_SCALED in the same order."""
    limited = ops.clip(scaled, -MAX_UNITS, MAX_UNITS)
    return limited / ops.sqrt(1.0 + ops.square(limited / MAX_SCALED))


def _mean(values: Any, mask: Any) -> Any:
    """Return the mean of lists, (batch, width), of (batch, longest, width); 0 of an empty list."""
    mask = ops.expand_dims(mask if values.dtype == "float32" else ops.cast(mask, values.dtype), -1)
    return ops.sum(values * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1.0)


def _joined(parts: Sequence[Any]) -> Any:
    # Embeddings have the dtype of the policy.
    wide = [part if part.dtype == "float32" else ops.cast(part, "float32") for part in parts]
    return ops.concatenate(wide, axis=-1) if len(wide) > 1 else wide[0]
