"""What the training rows of a table are like: the numbers by which a model prepares its inputs.

Only training rows count, so that the scores on the other rows are honest. The sums and the values are exact, so they
are the same whatever the order of the rows and the engine.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.manifest import Dataset
from pipeline.gate.duplicates import MAX_NAMES
from pipeline.gate.statistics import SIGMAS
from pipeline.kinds.table.quantiles import MAX_CODED, MAX_SAMPLE, RowSample
from pipeline.kinds.table.split_values import split_column, split_facts
from pipeline.kinds.table.vectors import vector_facts
from pipeline.plan.order import Order
from pipeline.records.example import decode
from pipeline.records.tfrecord import data_of
from pipeline.snapshot.part import TRAIN
from pipeline.snapshot.raw_example import RawExample
from pipeline.system.wording import shortened
from pipeline.tables.order_hash import line_hashes, order_hashes
from pipeline.tables.row_values import base_of, load_values, number_columns, text_columns
from pipeline.tables.schema import Column, Schema
from pipeline.tables.sums import ExactSums

MIN_BUCKETS, MAX_BUCKETS = 1_000, 100_000
"""Texts of a column with very many different values are hashed into a number of buckets between these."""
MAX_SHOWN = 120
"""The values of a row are cut to this many characters together."""
MIN_STEPS = 100
"""The deviation of a label of floats should be at least this many steps of float32."""
_log = logging.getLogger(__name__)


def table_facts(schema: Schema, order: Order) -> dict[str, Any]:
    """Return the field `table` of `dataset.json`: the schema, and how to prepare each column."""
    numbers = {column.name: _Numbers(column) for column in number_columns(schema)}
    texts: dict[str, Counter[str]] = {column.name: Counter() for column in text_columns(schema)}
    sampled = order_hashes(line_hashes(order.first_lines(TRAIN, MAX_SAMPLE)))
    sample = RowSample(sampled, len(numbers))
    vectors = vector_facts(schema, order.first_lines(TRAIN, MAX_SAMPLE))
    for number, part in enumerate(order.parts):
        is_training, values = order.is_training(number), load_values(part, schema)
        sample.add(part.columns()["order"], values.numbers)
        for position, of_column in enumerate(numbers.values()):
            of_column.add(values.numbers[is_training, position])
        for position, column in enumerate(text_columns(schema)):
            codes = values.codes[is_training, position]
            counts = np.bincount(codes[codes >= 0], minlength=len(column.values)).tolist()
            texts[column.name].update({text: count for text, count in zip(column.values, counts, strict=True) if count})
    preprocessing = {
        column.name: vectors.get(column.name) or _preprocessing(column, numbers, texts, sample, order)
        for column in schema.prepared
    }
    if schema.label.name in preprocessing and schema.label.type == "float":
        _warn_of_steps(schema.label, preprocessing[schema.label.name])
    # The notes, and the columns that were left out, are in `quality`.
    return {**replace(schema, notes=(), left_out={}).to_json(), "preprocessing": preprocessing}


def _warn_of_steps(label: Column, facts: Mapping[str, Any]) -> None:
    """Warn if the records hold a label only with few different values, because they hold floats in 32 bits."""
    step = float(np.spacing(np.float32(abs(facts["mean"]))))
    if facts["deviation"] < MIN_STEPS * step:
        _log.warning(
            "the label column %r has a mean of %.4g and a standard deviation of %.4g, but the records hold floats of "
            "this size only in steps of %.4g: store the label as integers, which keep all digits, or subtract a number "
            "from it",
            *(label.name, facts["mean"], facts["deviation"], step),
        )


class _Numbers:
    """The numbers of a column in the training rows: their sums, and the values of whole numbers with few of them."""

    def __init__(self, column: Column) -> None:
        self.column, self.sums = column, ExactSums()
        self._values: NDArray[np.float32] = np.empty(0, np.float32)
        is_exact = int(column.high or 0) - base_of(column) < 2**24  # float32 holds these whole numbers.
        is_coded = column.distinct is not None and column.distinct <= MAX_CODED
        self._are_listed = column.type == "int" and column.role == "feature" and is_coded and is_exact

    def add(self, numbers: NDArray[np.float32]) -> None:
        """Add the numbers of some rows."""
        self.sums.add(numbers)
        if self._are_listed and len(self._values) < (self.column.distinct or 0):
            self._values = np.union1d(self._values, numbers[~np.isnan(numbers)])

    def facts(self, sample: RowSample, position: int) -> dict[str, Any]:
        """Return the facts of the column. `position` is that of the column in the sample."""
        base = base_of(self.column)
        facts: dict[str, Any] = {
            "count": self.sums.count,
            "mean": float(base + self.sums.mean),
            "deviation": self.sums.deviation,
        }
        if self.column.role == "feature":  # A label has one scale, that of the mean and the deviation.
            facts["sampled"] = sample.count(position)
            facts["quantiles"] = [base + each for each in sample.quantiles(position).tolist()]
        if self._are_listed:
            facts["values"] = [base + int(each) for each in self._values]
        return facts


def _preprocessing(
    column: Column,
    numbers: Mapping[str, _Numbers],
    texts: Mapping[str, Counter[str]],
    sample: RowSample,
    order: Order,
) -> dict[str, Any]:
    if column.name in numbers:
        return numbers[column.name].facts(sample, list(numbers).index(column.name))
    if column.name in texts:
        counts = texts[column.name]
        vocabulary = sorted(counts, key=lambda text: (-counts[text], text))
        return {"vocabulary": vocabulary, "counts": [counts[text] for text in vocabulary]}
    if column.type == "string":
        return {"hash_buckets": hash_buckets(sum(order.examples.values()))}
    return {}


def values_of_row(schema: Schema, row: RawExample) -> str:
    """Return the values of the features of a row. Empty if the table has a key column."""
    if schema.of_role("key"):
        return ""
    values = decode(data_of(row.content))
    shown = [
        f"{each.name}={', '.join(map(_text, values[each.name]))}" for each in schema.features if each.name in values
    ]
    return shortened("; ".join(shown), MAX_SHOWN)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def hash_buckets(rows: int) -> int:
    """Return the number of buckets for the texts of a column with very many different values, in a number of rows."""
    return int(min(max(rows // 100, MIN_BUCKETS), MAX_BUCKETS))


def table_changes(now: Mapping[str, Any], before: Dataset | None, rows: int) -> dict[str, Any] | None:
    """Return how a table with a number of training `rows` differs from that of the last version; None if there is none.

    Returns:
        `against` is the last version. `columns` are those that are missing now, are new, or have another type, each
        with what is different. `new_values` are, by column, the share of the training rows whose text was in no
        training row of the last version, and the most frequent of these texts. `means` are, by column, how far the mean
        moved, in standard deviations of the last version, less what chance explains. Of a vector, this is the root mean
        square over its positions.
    """
    if before is None or not before.table:
        return None
    one, other = Schema.from_json(before.table), Schema.from_json(now)
    pairs_of_columns = [(column, other.by_name.get(column.name)) for column in one.columns]
    columns = {column.name: what for column, after in pairs_of_columns if (what := _change(column, after))}
    new = {name: "is new" for name in other.by_name if name not in one.by_name}
    shared = [name for name in now["preprocessing"] if name in before.table["preprocessing"] and name not in columns]
    pairs = [(name, now["preprocessing"][name], before.table["preprocessing"][name]) for name in shared]
    return {
        "against": before.version,
        "columns": columns,
        "new_columns": new,
        "new_values": {
            name: facts
            for name, after, earlier in pairs
            if "vocabulary" in after and "vocabulary" in earlier and (facts := _new_values(after, earlier, rows))
        },
        "means": {
            name: round(_shift(after, earlier), 4)
            for name, after, earlier in pairs
            if after.get("count") and earlier.get("count") and np.any(earlier["deviation"])
        },
    }


def _change(before: Column, after: Column | None) -> str:
    """Return what is different of a column; empty if nothing is."""
    if after is None:
        return "is missing"
    # Lists of any length may all have one length.
    is_narrower = before.is_ragged and (before.type, before.is_list) == (after.type, after.is_list)
    if is_narrower or before.type_words == after.type_words:
        return ""
    return f"holds values of type {after.type_words} instead of {before.type_words}"


def _shift(after: Mapping[str, Any], earlier: Mapping[str, Any]) -> float:
    """Return how far the mean of a column moved, in standard deviations, less what chance explains: at least 0.

    Places without a deviation do not count.
    """
    mean, before, deviation = map(np.atleast_1d, (after["mean"], earlier["mean"], earlier["deviation"]))
    has_unit = deviation > 0
    shift = np.sqrt(np.mean(np.square((mean - before)[has_unit] / deviation[has_unit])))
    # Without any change, the means of n and of m values differ by about this many deviations.
    by_chance = np.sqrt(1 / after["count"] + 1 / earlier["count"])
    return max(0.0, float(shift - SIGMAS * by_chance))


def _new_values(after: Mapping[str, Any], earlier: Mapping[str, Any], rows: int) -> dict[str, Any] | None:
    known = set(earlier["vocabulary"])
    counts = dict(zip(after["vocabulary"], after["counts"], strict=True))
    new = [text for text in counts if text not in known]
    if not new:
        return None
    return {"fraction": sum(counts[text] for text in new) / rows, "values": new[:MAX_NAMES]}


def split_unit(schema: Schema) -> str:
    """Return which rows are always in the same split, in words."""
    column = split_column(schema)
    return f"rows with one value of {column.name!r} ({column.role}_column)" if column else "equal rows"


def table_quality(schema: Schema, order: Order) -> dict[str, Any]:
    """Return what is notable about columns, and how many values decide the split, with its shares."""
    return {
        "column_notes": list(schema.notes),
        "columns_left_out": dict(schema.left_out),
        "split_values": split_facts(schema, order),
    }
