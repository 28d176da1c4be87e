"""Which columns of a record are of GPUs, and all GPUs of a server as one: nothing else averages over GPUs.

A column of one GPU is `gpu/<number>/<metric>`. The column of all GPUs of a server is `gpu/<metric>`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from numpy.typing import NDArray

ONE_GPU = re.compile(r"^gpu/\d+/")
"""Matches the start of the name of a column of one GPU."""
_COMBINED = re.compile(r"gpu/\d+/(util_pct|power_w|power_limit_w|throttled_\w+|mem_(used|total)_bytes)")
"""Columns that `with_gpus_together` reads."""


def mean(values: Sequence[float]) -> float:
    """Return the mean over GPUs, from one value of each GPU."""
    return sum(values) / len(values)


def mean_over_gpus(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of one moment, with the mean over GPUs in place of the values of each GPU.

    Values that are not of a GPU stay as they are.
    """
    values_of: dict[str, list[float]] = {}
    for column, value in values.items():
        values_of.setdefault(ONE_GPU.sub("gpu/", column), []).append(value)
    return {column: mean(each) for column, each in values_of.items()}


def columns_of_gpus(columns: Iterable[Any], metric: str) -> list[str]:
    """Return the columns of one metric, one for each GPU."""
    return [str(column) for column in columns if re.fullmatch(rf"gpu/\d+/{metric}", str(column))]


def without_use(columns: Iterable[Any]) -> str:
    """Return what a sentence says of the GPUs if no column is their use: a part of a divided GPU (MIG) has none."""
    return "; the use of the GPU is not known" if columns_of_gpus(columns, "mem_total_bytes") else "; no GPU was found"


def is_busy(column: str) -> bool:
    """Return whether `busy_pct` reads a column."""
    return column == "sys/cpu_pct" or bool(columns_of_gpus([column], "util_pct"))


def is_combined(column: str) -> bool:
    """Return whether `with_gpus_together` reads a column."""
    return _COMBINED.fullmatch(column) is not None


def gpus(samples: "pandas.DataFrame", metric: str) -> "pandas.DataFrame":
    """Return one metric of all GPUs: a column for each GPU, named by its number."""
    return samples[columns_of_gpus(samples, metric)].rename(columns=lambda column: column.split("/")[1])


def with_gpus_together(samples: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return the samples with columns `gpu/<metric>` of all GPUs added: percentages are means, power is the sum.

    `gpu/throttled_...` is the share of the GPUs that were throttled, in percent. A metric that was recorded of no GPU
    has no column.
    """
    import pandas

    columns = {f"gpu/{name}": gpus(samples, name) for name in ("util_pct", "power_w", "power_limit_w")}
    throttled = {f"gpu/{name}": 100 * gpus(samples, name) for name in ("throttled_power", "throttled_thermal")}
    used, whole = gpus(samples, "mem_used_bytes"), gpus(samples, "mem_total_bytes")
    columns["gpu/mem_pct"] = (100 * used / whole).dropna(axis=1, how="all")
    together = {
        # A sum without one of the GPUs would look like a drop of power.
        name: each.sum(axis=1, skipna=False) if "power_" in name else each.mean(axis=1)
        for name, each in (columns | throttled).items()
        if len(each.columns)
    }
    # All columns at once: column after column, a table of 8 GPUs would be copied again and again.
    return pandas.concat([samples, pandas.DataFrame(together, index=samples.index)], axis=1)


def busy_pct(samples: "pandas.DataFrame") -> "NDArray[np.float64]":
    """Return how busy the GPUs were on average, or the processor if there is no GPU: percent, one value a sample."""
    busy = gpus(samples, "util_pct")
    return (busy.mean(axis=1) if len(busy.columns) else samples["sys/cpu_pct"]).to_numpy(dtype=float)
