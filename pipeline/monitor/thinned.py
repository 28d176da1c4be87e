"""The samples of a record, few enough for memory, whatever the length of the training."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.monitor.gpu_columns import ONE_GPU, with_gpus_together
from pipeline.monitor.record import chunks

if TYPE_CHECKING:
    import pandas

MAX_ROWS = 50_000
"""Maximum number of samples in memory: those of almost three hours. Means and percentiles of more hardly differ."""
BLOCK = 250
"""Number of successive samples that share one pair of extremes: 50 seconds of them."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio as a share of 2^64. Its multiples have no period."""


@dataclass(frozen=True)
class Samples:
    """The samples of a training server."""

    rows: "pandas.DataFrame"
    """All samples, or evenly spread ones if there are more than MAX_ROWS."""
    extremes: "pandas.DataFrame"
    """The samples with all GPUs together. If `rows` are not all, two rows for each BLOCK: the lowest values, at its
    first time, and the highest values, at its last time. So no peak is lost."""
    count: int
    """Number of samples."""


def all_samples(rows: "pandas.DataFrame") -> Samples:
    """Return samples that fit into memory."""
    return Samples(rows, with_gpus_together(rows), len(rows))


def read_samples(folder: Path, wanted: Callable[[str], bool] = lambda _: True, max_rows: int = MAX_ROWS) -> Samples:
    """Return the samples of the record in a folder. `wanted` says whether to read a metric, by its name."""
    import pandas

    extremes: list[pandas.DataFrame] = []

    def noted() -> Iterator[pandas.DataFrame]:
        for chunk in chunks(folder, "samples", wanted):
            extremes.append(_extremes(with_gpus_together(chunk)))
            yield chunk

    rows, count = thinned(noted(), max_rows)
    return all_samples(rows) if len(rows) == count else Samples(rows, pandas.concat(extremes, ignore_index=True), count)


def thinned(tables: "Iterable[pandas.DataFrame]", max_rows: int = MAX_ROWS) -> "tuple[pandas.DataFrame, int]":
    """Return at most `max_rows` evenly spread rows of successive tables, and the number of all rows.

    It keeps one row of each block of 2, 4, 8, ... rows. This is not always the first row of the block: some metrics
    are measured only in every eighth sample, and then all or none of the kept rows would have them.
    """
    import pandas

    halvings, count = 0, 0
    kept: list[pandas.DataFrame] = []
    for table in tables:
        kept.append(_halved(table, count, halvings))
        count += len(table)
        while sum(map(len, kept)) > max_rows:
            # One table after the other: a copy of all of them would be the largest thing in memory.
            first = 0
            for number, rows in enumerate(kept):
                kept[number] = _halved(rows, first, 1)
                first += len(rows)
            halvings += 1
    return pandas.concat(kept, ignore_index=True), count


def _halved(rows: "pandas.DataFrame", first: int, times: int) -> "pandas.DataFrame":
    """Keep one row of each pair, and repeat this `times` times. `first` is the number of the first row."""
    one, numbers = np.uint64(1), np.arange(first, first + len(rows), dtype=np.uint64)
    kept = np.ones(len(rows), bool)
    for _ in range(times):
        place, numbers = numbers & one, numbers >> one
        kept &= place == (numbers * _GOLDEN) >> np.uint64(63)
    return rows[kept]


def _extremes(samples: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return two rows for each BLOCK of samples: the lowest, then the highest value of each column."""
    import pandas

    shown = samples[[name for name in samples if not ONE_GPU.match(str(name))]]
    if not len(shown):
        return shown
    values, starts = shown.to_numpy(dtype=float), np.arange(0, len(shown), BLOCK)
    # These leave out NaN, which stands for a metric that was not measured.
    pairs = np.stack([np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)], axis=1)
    return pandas.DataFrame(pairs.reshape(-1, values.shape[1]), columns=shown.columns)
