"""Is the accelerator waiting for data? From the times of the batches, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas

FEWEST_STEPS = 10
FINE, INPUT_BOUND = 0.05, 0.20  # the thresholds of TensorBoard's input-pipeline analyser


@dataclass(frozen=True)
class Spread:
    """Mean, median, standard deviation (of the population) and 95th percentile of some values."""

    mean: float
    median: float
    std: float
    p95: float


@dataclass(frozen=True)
class Summary:
    """Where the time of the steps went, in ms; spreads are None where there is no value.

    ``steps`` counts the steady steps, which the spreads and ``wait_fraction`` (waiting time of all time) are about.
    The first step of each process (it traces and compiles) and the first batch of each further epoch (it fills the
    pipeline anew) are apart: they say nothing about the steady state.
    """

    steps: int
    time_ms: Spread | None
    wait_ms: Spread | None
    compute_ms: Spread | None
    wait_fraction: float | None
    first_step_ms: float | None
    first_batch_wait_ms: float | None


def summarize(batches: pandas.DataFrame | Mapping[str, Any]) -> Summary:
    """Summary of the rows of kind "batches", in order: input/wait_ms, step/compute_ms, step/time_ms, epoch, first."""
    if not len(batches) or not len(batches["step/time_ms"]):
        return Summary(0, None, None, None, None, None, None)
    total, wait, compute = (
        np.asarray(batches[name], dtype=float) for name in ("step/time_ms", "input/wait_ms", "step/compute_ms")
    )
    steady, process_first, epoch_first = parts(batches)
    return Summary(
        steps=int(steady.sum()),
        time_ms=spread(total[steady]),
        wait_ms=spread(wait[steady]),
        compute_ms=spread(compute[steady]),
        wait_fraction=float(wait[steady].sum() / total[steady].sum()) if total[steady].sum() > 0 else None,
        first_step_ms=_mean(total[process_first]),
        first_batch_wait_ms=_mean(wait[epoch_first]),
    )


def parts(batches: pandas.DataFrame | Mapping[str, Any]) -> tuple[NDArray[np.bool_], ...]:
    """Masks over the batches: steady ones, first of a process, first of a further epoch. Each batch is in one."""
    epoch = np.asarray(batches["epoch"])
    process_first = np.asarray(batches["first"]) > 0
    epoch_first = np.append(True, epoch[1:] != epoch[:-1]) & ~process_first
    return ~(process_first | epoch_first), process_first, epoch_first


def spread(values: NDArray[np.float64]) -> Spread | None:
    """Spread of the finite values; None where there is none."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return Spread(*(float(v) for v in (values.mean(), np.median(values), values.std(), np.percentile(values, 95))))


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def verdict(summary: Summary) -> str:
    """One sentence with numbers: under 5% of waiting is fine, up to 20% moderate, above is input-bound."""
    wait = summary.wait_fraction
    if summary.steps < FEWEST_STEPS or wait is None or not (summary.time_ms and summary.wait_ms):
        return f"Not enough steps to say: {summary.steps} in the steady state, at least {FEWEST_STEPS} are needed."
    share = f"{percent(wait)} of the step time is waiting for data"
    numbers = f"{share} ({summary.wait_ms.mean:.3g} of {summary.time_ms.mean:.3g} ms a step, {summary.steps:,} steps)"
    if wait < FINE:
        return f"Not input-bound: {numbers}."
    limit = f"without any wait a step would be at most {_times(wait)} faster"
    if wait <= INPUT_BOUND:
        return f"Waiting moderately: {numbers}; {limit}."
    return f"Input-bound: {numbers}; {limit}."


def percent(fraction: float) -> str:
    """41%, but 4.2%: under ten percent the next digit matters."""
    return f"{fraction:.0%}" if fraction >= 0.1 else f"{fraction:.1%}"


def _times(wait: float) -> str:
    return f"{1 / (1 - wait):.3g} times" if wait < 0.99 else "a hundred times or more"
