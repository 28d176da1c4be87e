"""The scale of each position of the vectors of a table, over a sample of the training rows.

The sample has the first rows of their order, so it is the same whatever the order of the source and the engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.records.example import decode
from pipeline.records.tfrecord import data_of
from pipeline.snapshot.raw_example import record_of_line
from pipeline.tables.schema import Schema

MAX_NUMBERS = 1 << 22
"""The sample has about this many numbers: 1,024 rows of vectors of 4,096 positions, whose means are then right to 3% of
a deviation. They take 32 MB."""
MIN_ROWS = 16
"""The sample has this many rows, however many positions there are."""
_DIGITS = 9
"""Significant digits of a float of 32 bits. All digits of 64 bits would double the size of `dataset.json`."""


def vector_facts(schema: Schema, lines: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    """Return mean and deviation of each position of the vectors of a table, by column.

    Only the first of `lines`, which are those of training rows, are read.
    """
    lengths = {column.name: column.length for column in schema.features if column.length}
    if not lengths:
        return {}
    vectors: dict[str, list[NDArray[np.float64]]] = {name: [] for name in lengths}
    sampled = islice(lines, max(MIN_ROWS, MAX_NUMBERS // sum(lengths.values())))
    for record in filter(None, map(record_of_line, sampled)):  # A rejected row has none.
        row = decode(data_of(record))
        for name in lengths.keys() & row.keys():
            vectors[name].append(np.array(row[name], np.float64))
    return {name: _facts(np.array(vectors[name]).reshape(-1, length)) for name, length in lengths.items()}


def _facts(vectors: NDArray[np.float64]) -> dict[str, Any]:
    """Return the facts of vectors, (rows, positions). Infinite numbers do not count."""
    is_finite = np.isfinite(vectors)
    counts = np.maximum(is_finite.sum(axis=0), 1)
    vectors = np.where(is_finite, vectors, 0.0)
    # Without the subtraction, equal numbers would get a deviation by rounding, and times would lose digits.
    first = vectors[:1].sum(axis=0)
    centered = np.where(is_finite, vectors - first, 0.0)
    shifts = centered.sum(axis=0) / counts
    squares = np.where(is_finite, np.square(centered - shifts), 0.0).sum(axis=0) / counts
    return _as_facts(len(vectors), first + shifts, np.sqrt(squares))


def joined_vectors(facts: Sequence[Mapping[str, Any]], rows: Sequence[int]) -> dict[str, Any]:
    """Return the facts of the vectors of several versions together, each with its number of rows with a vector."""
    weights = np.array(rows, np.float64)[:, np.newaxis] / sum(rows)
    means, deviations = (np.array([each[fact] for each in facts], np.float64) for fact in ("mean", "deviation"))
    mean = (weights * means).sum(axis=0)
    squares = (weights * (np.square(deviations) + np.square(means - mean))).sum(axis=0)
    return _as_facts(sum(each["count"] for each in facts), mean, np.sqrt(squares))


def _as_facts(count: int, means: NDArray[np.float64], deviations: NDArray[np.float64]) -> dict[str, Any]:
    units = np.where(deviations > 0, deviations, 1.0)
    # A mean that is far from 0, such as that of times, needs all digits.
    digits = _DIGITS + np.log10(np.maximum(np.abs(means) / units, 1.0)).astype(int)
    return {"count": count, "mean": _rounded(means, digits), "deviation": _rounded(deviations, [_DIGITS] * len(means))}


def _rounded(numbers: NDArray[np.float64], digits: Iterable[int]) -> list[float]:
    return [float(f"{number:.{count}g}") for number, count in zip(numbers.tolist(), digits, strict=True)]
