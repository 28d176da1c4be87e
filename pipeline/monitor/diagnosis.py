"""Where the time of a training went, from the times of its batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas

Table: TypeAlias = "pandas.DataFrame | Mapping[str, Any]"
"""Rows of one kind, as a record has them."""
PARTS = {
    "waiting for data": "input/wait",
    "computing": "step/compute",
    "host": "step/host",
    "checkpoints": "step/checkpoint",
}
"""Parts of the time of a step, with the column of each in the record, without its unit."""
BETWEEN_EPOCHS = {"validation": "epoch/validation_s", "callbacks": "epoch/callbacks_s"}
"""Parts of the time between two epochs, with the column of each in the rows of epochs."""
SHORT_EPOCH = 5
"""Steps of an epoch. With fewer, its first step is over 20% of them. An epoch of one step has no other."""


@dataclass(frozen=True)
class Spread:
    """Mean, median, standard deviation (of the population) and 95th percentile of some values."""

    mean: float
    median: float
    std: float
    p95: float


@dataclass(frozen=True)
class Summary:
    """Where the time of the steps went, in ms. A number without values is None.

    `steps` is the number of steady steps. The spreads, `examples_per_s` and the fractions are over these steps:
    `wait_fraction` of their time was waiting for data, and `host_fraction` was the loop itself, with checkpoints.
    The first step of each process (it traces and compiles) and the first batch of each further epoch (it fills the
    pipeline again; unless epochs have fewer than SHORT_EPOCH steps) are separate, because they say nothing about the
    steady state.
    """

    steps: int
    time_ms: Spread | None
    wait_ms: Spread | None
    compute_ms: Spread | None
    wait_fraction: float | None
    host_fraction: float | None
    examples_per_s: float | None
    first_step_ms: float | None
    first_batch_wait_ms: float | None


def summarize(batches: Table) -> Summary:
    """Return the summary of rows of kind "batches", in order.

    They have the columns input/wait_ms, step/compute_ms, step/time_ms, epoch and first.
    """
    steady, process_first, epoch_first = step_masks(batches)
    if not len(steady):
        return Summary(0, None, None, None, None, None, None, None, None)

    # One column at a time: of a long training, few columns fit into memory together.
    sums, spreads, first_of_process, first_of_epoch = {}, {}, {}, {}
    for name in ("step/time_ms", "input/wait_ms", "step/compute_ms"):
        values = np.asarray(batches[name], dtype=float)
        first_of_process[name], first_of_epoch[name] = _mean(values[process_first]), _mean(values[epoch_first])
        values = values[steady]
        sums[name], spreads[name] = float(values.sum()), spread(values)
    total, wait, compute = sums.values()
    examples = float(np.asarray(batches["input/examples"])[steady].sum()) if "input/examples" in batches else np.nan
    rate = 1000 * examples / total if total else np.nan
    return Summary(
        steps=int(steady.sum()),
        time_ms=spreads["step/time_ms"],
        wait_ms=spreads["input/wait_ms"],
        compute_ms=spreads["step/compute_ms"],
        wait_fraction=wait / total if total else None,
        # A sum of many numbers is rounded, so the rest may be less than nothing.
        host_fraction=max(0.0, total - wait - compute) / total if total else None,
        examples_per_s=rate if np.isfinite(rate) else None,
        first_step_ms=first_of_process["step/time_ms"],
        first_batch_wait_ms=first_of_epoch["input/wait_ms"],
    )


def seconds_by_part(batches: Table, epochs: "Table | None") -> dict[str, float]:
    """Return the seconds of a training by the parts of its time, with those of the first steps.

    The time before the first step is not in them.
    """
    in_steps = {part: _sum(batches, f"{name}_ms") / 1000 for part, name in PARTS.items()}
    return {**in_steps, **{part: _sum(epochs, name) for part, name in BETWEEN_EPOCHS.items()}}


def seconds_by_epoch(batches: Table, epochs: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return the `seconds_by_part` of each epoch, the current one included. The index is the epoch, from 1."""
    import pandas

    epoch = np.asarray(batches["epoch"]).astype(int)
    numbers = np.flatnonzero(np.bincount(epoch))
    in_steps = {
        part: np.bincount(epoch, np.nan_to_num(np.asarray(batches[f"{name}_ms"], dtype=float)))[numbers] / 1000
        for part, name in PARTS.items()
        if f"{name}_ms" in batches
    }
    ended, unknown = epochs.set_index("step"), pandas.Series(dtype=float)
    between = {part: ended.get(name, unknown).reindex(numbers) for part, name in BETWEEN_EPOCHS.items()}
    seconds = pandas.DataFrame(in_steps, index=numbers, columns=[*PARTS])
    return seconds.assign(**between).fillna(0.0)


def _sum(table: "Table | None", column: str) -> float:
    return float(np.nansum(np.asarray(table[column], dtype=float))) if table is not None and column in table else 0.0


def is_steady(batches: Table) -> NDArray[np.bool_]:
    """Return for each batch whether its step is steady: neither the first of a process nor of an epoch."""
    return step_masks(batches)[0]


def step_masks(batches: Table) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks over the batches: steady, first of a process, first of a further epoch. Each batch is in one.

    If epochs are short, their first steps are steady: the wait for them is a large part of such a training.
    """
    epoch = np.asarray(batches["epoch"]) if "epoch" in batches else np.empty(0)
    if not len(epoch):
        return np.zeros(0, bool), np.zeros(0, bool), np.zeros(0, bool)
    process_first = np.asarray(batches["first"]) > 0
    begins = np.append(True, epoch[1:] != epoch[:-1])
    epoch_first = begins & ~process_first & (not _are_short(begins))
    return ~(process_first | epoch_first), process_first, epoch_first


def _are_short(begins: NDArray[np.bool_]) -> bool:
    """Return whether epochs have few steps, by a mask of their first steps. The batches may begin within an epoch."""
    whole = np.diff(np.flatnonzero(begins))[1:]  # The last epoch may lack its end.
    return bool(len(whole)) and float(np.median(whole)) < SHORT_EPOCH


def finite(table: Table, column: str, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the finite values of a column in the `chosen` rows; empty if the table lacks the column."""
    values = np.asarray(table[column], dtype=float)[chosen] if column in table else np.empty(0)
    return values[np.isfinite(values)]


def mean_of(table: Table, column: str, chosen: NDArray[np.bool_]) -> float | None:
    """Return the mean of a column over the `chosen` rows; None if nothing measured it."""
    return _mean(finite(table, column, chosen))


def spread(values: NDArray[np.float64]) -> Spread | None:
    """Return the spread of the finite values; None if there is none."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    mean, std = float(values.mean()), float(values.std())
    median, p95 = np.percentile(values, (50, 95), overwrite_input=True)  # The values are a copy.
    return Spread(mean, float(median), std, float(p95))


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def three_digits(value: float) -> str:
    """Return a number with three digits, but never as 1.23e+03."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def range_text(low: str, high: str) -> str:
    """Write a range as in 5% to 7%, and one that shows a single value as this value."""
    return low if low == high else f"{low} to {high}"


def percent(fraction: float) -> str:
    """Return 41%, but 4.2% and 99.6%, because the next digit matters there. "0.0%" would not say if it is nothing."""
    if fraction == 0:
        return "0%"
    if 0 < fraction < 0.0005:
        return "under 0.1%"
    is_close = fraction < 0.1 or 0.995 <= fraction < 0.9995
    return f"{fraction:.1%}" if is_close else f"{fraction:.0%}"
