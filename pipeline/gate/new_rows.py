"""How new rows differ from the table that a model learned from. `predict` says so, and predicts the rows all the same.

The facts are those of the gate's checks of tables. New rows are often few, so drift by chance is subtracted here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from pipeline.gate.duplicates import MAX_NAMES
from pipeline.gate.statistics import SIGMAS
from pipeline.system.wording import MAX_EXAMPLES, counted, first_of, share, shortened
from pipeline.tables.schema import Schema

MAX_CHANCE = 0.01
"""A column without a value in any row is reported if the probability of this in the table of the model is not above."""
MAX_SHOWN = 60
"""A sentence shows at most this many characters of a text."""


class _Moments:
    """Compares the mean of a number, or that of each position of a vector, with that of the training rows.

    Without a deviation, there is no unit for a drift, so such a position does not count.
    """

    def __init__(self, mean: float | Sequence[float], deviation: float | Sequence[float]) -> None:
        self._mean, self._deviation = np.atleast_1d(mean), np.atleast_1d(deviation)
        self._counts = np.zeros(len(self._mean), np.intp)
        self._shifts = np.zeros(len(self._mean))
        """The sums of the differences from the means, in standard deviations."""

    def add(self, values: pa.Array) -> None:
        """Add numbers, those of a vector behind each other."""
        numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).reshape(-1, len(self._mean))
        is_finite = np.isfinite(numbers)
        units = np.where(self._deviation > 0, self._deviation, np.inf)
        self._counts += is_finite.sum(axis=0) * (self._deviation > 0)
        self._shifts += ((np.where(is_finite, numbers, self._mean) - self._mean) / units).sum(axis=0)

    def drift(self) -> float | None:
        """Return how far the mean moved, less what chance explains; None if there is no number."""
        counts, shifts = self._counts[self._counts > 0], self._shifts[self._counts > 0]
        if not len(counts):
            return None
        # The mean of n numbers is 1 / sqrt(n) deviations away by chance.
        return max(0.0, float(np.sqrt(np.mean(np.square(shifts / counts))) - SIGMAS / np.sqrt(counts.max())))


class NewRows:
    """Compares any number of batches of new rows with the table of a model."""

    def __init__(self, table: Mapping[str, Any], version: str) -> None:
        """Take the field `table` of the `dataset.json` that the model learned from, and the version of the dataset."""
        schema = Schema.from_json(table)
        self._version, self._rows = version, 0
        self._columns = schema.features
        self._missing = {column.name: column.missing / max(schema.rows, 1) for column in self._columns}
        facts = {column.name: table["preprocessing"][column.name] for column in self._columns if not column.is_ragged}
        texts = {name: each["vocabulary"] for name, each in facts.items() if "vocabulary" in each}
        self._known = {name: pa.array(known, pa.large_string()) for name, known in texts.items()}
        counted_facts = {name: each for name, each in facts.items() if each.get("count")}
        self._moments = {name: _Moments(each["mean"], each["deviation"]) for name, each in counted_facts.items()}
        self._present: Counter[str] = Counter()
        self._new: dict[str, Counter[str]] = {name: Counter() for name in self._known}

    def add(self, rows: pa.RecordBatch) -> None:
        """Compare the rows of a batch, whose columns have the types of the records."""
        self._rows += rows.num_rows
        for column in self._columns:
            name, values = column.name, rows.column(column.name).drop_null()
            if column.type == "string" and not column.is_list:
                values = values.filter(compute.not_equal(values, ""))  # A model takes an empty text as missing.
            self._present[name] += len(values)
            if name in self._known:
                new = values.filter(compute.invert(compute.is_in(values, self._known[name])))
                self._new[name].update({each["values"]: each["counts"] for each in new.value_counts().to_pylist()})
            elif name in self._moments:
                self._moments[name].add(values.flatten() if column.is_list else values)

    def changes(self) -> dict[str, Any]:
        """Return how the rows differ from the table.

        Returns:
            `against` is the version of the dataset, and `rows` the number of new rows. `columns` are those without a
            value in any row, with what is different. `new_values` are, by column, the texts that the model never saw:
            number and share of the `rows` with them, number of `texts`, and the most frequent ones. `means` are, by
            column, how far the mean moved, in standard deviations of the training rows, less what chance explains.
            Of a vector, this is the root mean square over its positions.
        """
        drifts = {name: moments.drift() for name, moments in self._moments.items()}
        return {
            "against": self._version,
            "rows": self._rows,
            "columns": {
                name: f"has no value, but {1 - missing:.3g} of the rows of that version have one"
                for name, missing in self._missing.items()
                if not self._present[name] and missing**self._rows <= MAX_CHANCE
            },
            "new_values": {name: self._new_values(new) for name, new in self._new.items() if new},
            "means": {name: round(drift, 4) for name, drift in drifts.items() if drift is not None},
        }

    def _new_values(self, new: Counter[str]) -> dict[str, Any]:
        frequent = sorted(new, key=lambda text: (-new[text], text))[:MAX_NAMES]
        rows = new.total()
        return {"rows": rows, "fraction": rows / self._rows, "texts": len(new), "values": frequent}


def sentences_of(changes: Mapping[str, Any], thresholds: Mapping[str, float]) -> list[str]:
    """Return a sentence for each kind of changes above its threshold, from `NewRows.changes`.

    `thresholds` are those of the gate, by the names of their settings.
    """
    rows, version, columns = changes["rows"], changes["against"], changes["columns"]
    found = []
    if columns:
        shown = first_of((f"{name!r} {what}" for name, what in columns.items()), MAX_NAMES)
        found.append(
            f"{counted(len(columns), 'column')} of the {counted(rows, 'new row')} changed since version {version} of "
            f"the dataset: {shown}. Fill in the values, because the model learned from them"
        )
    limit = thresholds["max_new_values_fraction"]
    new_values = {name: new for name, new in changes["new_values"].items() if new["fraction"] > limit}
    if new_values:
        shown = first_of((f"{name!r} in {_texts(new, rows)}" for name, new in new_values.items()), MAX_NAMES)
        found.append(
            f"{counted(len(new_values), 'column')} of the new rows with texts that the model never saw, in more than "
            f"max_new_values_fraction={limit:g} of the rows: {shown}. To the model, all of them are one unknown text: "
            "train it on rows that have them"
        )
    limit = thresholds["max_mean_drift"]
    means = {name: shift for name, shift in changes["means"].items() if shift > limit}
    if means:
        names = sorted(means, key=lambda name: -means[name])
        shown = first_of((f"{name!r} by {means[name]:.2f}" for name in names), MAX_NAMES)
        found.append(
            f"the means of {counted(len(means), 'column')} of the new rows differ from those of the training rows by "
            f"more than max_mean_drift={limit:g} standard deviations: {shown}. Look for another unit or another "
            "source, or train the model on newer rows"
        )
    return found


def _texts(new: Mapping[str, Any], rows: int) -> str:
    shown = ", ".join(repr(shortened(text, MAX_SHOWN)) for text in new["values"][:MAX_EXAMPLES])
    return f"{share(new['rows'], rows)} rows ({counted(new['texts'], 'text')}, such as {shown})"
