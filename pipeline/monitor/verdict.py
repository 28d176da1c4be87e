"""What limits a training, in one sentence with numbers, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.monitor.diagnosis import Summary, parts, percent, summarize, three_digits
from pipeline.monitor.load import Load, load_of
from pipeline.monitor.record import read, record_folders

if TYPE_CHECKING:
    from pipeline.monitor.load import Table

FEWEST_STEPS = 10
FINE, BOUND = 0.05, 0.20
"""Shares of the time; the thresholds of TensorBoard's input-pipeline analyser."""
BUSY, HALF_BUSY = 80.0, 50.0
"""Percent of what there is. From the first on there is nothing left: some is always lost between two tasks."""
THROTTLED = 20.0
"""Percent of the time from which on the limit of the container holds the input back."""
OTHERS = 0.25
"""Share of the busy cores from which on it is worth saying that other programs have them."""
CALM = 0.5
"""Share of the steps that hardly wait, from which on the others' wait comes in bursts."""


class Limit(StrEnum):
    """What a training is bound by."""

    UNKNOWN = "unknown"
    COMPUTE = "compute"
    DECODING = "decoding"
    ONE_CORE = "one core"
    READING = "reading"
    BUFFER = "buffer"
    HOST = "host"


_OF_THE_INPUT = {
    Limit.DECODING: "decoding",
    Limit.ONE_CORE: "what runs on one core",
    Limit.READING: "reading",
    Limit.BUFFER: "a too small buffer",
}


@dataclass(frozen=True)
class Verdict:
    """What limits a training. ``sentence`` says so; what to change is for those to say who know the settings."""

    limit: Limit
    sentence: str
    load: Load
    wait_fraction: float = 0.0
    step_ms: float = 0.0
    """Mean of the steady steps; 0 where they are too few to tell."""


def diagnose(batches: Table, samples: Table, cores: int | None = None) -> Verdict:
    """The verdict on a training, or on a part of it, from tables as a record has them.

    ``cores`` are those of the machine, for the words. The first step of a process and the first of an epoch are left
    out, and the samples that were taken meanwhile.
    """
    summary = summarize(batches)
    if summary.steps < FEWEST_STEPS or summary.wait_fraction is None or summary.time_ms is None:
        return Verdict(Limit.UNKNOWN, _too_few(summary.steps), Load())
    steady = parts(batches)[0]
    load = load_of(samples, batches, steady)
    limit = _limit(summary, load, _calm_share(batches, steady))
    facts = [_first_fact(limit, summary), *_about_load(limit, load, cores), *_bound(limit, summary, load)]
    return Verdict(limit, "; ".join(facts) + ".", load, summary.wait_fraction, summary.time_ms.mean)


def diagnose_run(run_folder: Path, cores: int | None = None) -> Verdict:
    """The verdict on a run by the records in its folder: of all training servers that write them there."""
    folders = record_folders(run_folder).items()
    return diagnose_servers({index: (read(at, "batches"), read(at, "samples")) for index, at in folders}, cores)


def diagnose_servers(records: Mapping[int, tuple[Table, Table]], cores: int | None = None) -> Verdict:
    """The verdict on the training server that waits most, by the (batches, samples) of each: the steps of the others
    wait for it, which they take for computing.
    """
    verdicts = {index: diagnose(batches, samples, cores) for index, (batches, samples) in records.items()}
    index = max(verdicts, key=lambda index: verdicts[index].wait_fraction)
    if len(verdicts) == 1 or verdicts[index].limit is Limit.UNKNOWN:
        return verdicts[index]
    return replace(verdicts[index], sentence=f"Server {index} waits most. {verdicts[index].sentence}")


def _calm_share(batches: Table, steady: NDArray[np.bool_]) -> float:
    """Share of the steady steps that wait less than a quarter of what they do on average."""
    waits = np.asarray(batches["input/wait_ms"], dtype=float)[steady]
    return float((waits <= waits.mean() / 4).mean())


def _limit(summary: Summary, load: Load, calm: float) -> Limit:
    wait, host = summary.wait_fraction or 0.0, summary.host_fraction or 0.0
    if max(wait, host) < FINE:
        return Limit.COMPUTE
    return Limit.HOST if host > wait else _limit_of_input(wait, load, calm)


def _limit_of_input(wait: float, load: Load, calm: float) -> Limit:
    """The cores first: where they have nothing left to give, a faster disk or a larger buffer would not help."""
    if (load.cpu or 0.0) >= BUSY or (load.throttled or 0.0) >= THROTTLED:
        return Limit.DECODING
    if (load.disk or 0.0) >= BUSY or (load.disk_stalls or 0.0) >= 100 * wait / 2:
        return Limit.READING
    if (load.busiest_core or 0.0) >= BUSY:
        return Limit.ONE_CORE
    if calm >= CALM:
        return Limit.BUFFER
    return Limit.DECODING if (load.cpu or 0.0) >= HALF_BUSY else Limit.READING


def _too_few(steps: int) -> str:
    return f"Not enough steps to say: {steps} in the steady state, at least {FEWEST_STEPS} are needed."


def _first_fact(limit: Limit, summary: Summary) -> str:
    """What takes the time, by how much."""
    assert summary.time_ms is not None
    assert summary.wait_ms is not None
    wait, host = summary.wait_fraction or 0.0, summary.host_fraction or 0.0
    whole = f"{three_digits(summary.time_ms.mean)} ms a step, {summary.steps:,} steps"
    if limit is Limit.COMPUTE:
        computing = percent(1 - wait - host)
        return f"Compute-bound: {computing} of the step time is computing, {percent(wait)} waiting for data ({whole})"
    if limit is Limit.HOST:
        name = "Host-bound" if host > BOUND else "The loop itself takes a moderate share"
        return f"{name}: {percent(host)} of the step time is the loop itself, checkpoints included ({whole})"
    name = "Input-bound by" if wait > BOUND else "Waiting moderately, for"
    share = f"{percent(wait)} of the step time is waiting for data ({three_digits(summary.wait_ms.mean)} of {whole})"
    return f"{name} {_OF_THE_INPUT[limit]}: {share}"


def _about_load(limit: Limit, load: Load, cores: float | None) -> Iterator[str]:
    """What the machine was at meanwhile."""
    if load.gpu is not None:
        yield f"the GPU was {load.gpu:.0f}% busy"
    elif limit is Limit.COMPUTE and load.cpu is not None:
        yield "there is no GPU"
    if load.cpu is not None and (limit in _OF_THE_INPUT or load.gpu is None):
        yield _about_cores(load, load.cores or cores)
    if limit is Limit.ONE_CORE:
        yield f"the busiest one {load.busiest_core:.0f}%"
    if limit is Limit.READING:
        yield from _about_reading(load)
    if limit is Limit.BUFFER:
        yield "most steps find their batch ready, and the others wait the longer"


def _about_cores(load: Load, cores: float | None) -> str:
    held_back = f", held back by the container's limit in {load.throttled:.0f}% of the time" if load.throttled else ""
    if cores is None:
        return f"the cores were {load.cpu:.0f}% busy{held_back}"
    busy, others = (load.cpu or 0.0) * cores / 100, load.others(cores) or 0.0
    shared = f", {others:.1f} of them with other programs" if others > OTHERS * busy else ""
    return f"{busy:.1f} of {cores:g} cores were busy{shared}{held_back}"


def _about_reading(load: Load) -> Iterator[str]:
    if load.disk_stalls is not None:
        yield f"somebody stood still for a disk in {load.disk_stalls:.0f}% of the time"
    elif load.disk is not None:
        yield f"the disk was {load.disk:.0f}% busy"
    if load.received_Bps is not None:
        yield f"{load.received_Bps / 1e6:.1f} MB a second came over the network"


def _bound(limit: Limit, summary: Summary, load: Load) -> Iterator[str]:
    """What could be won at most."""
    wait = summary.wait_fraction or 0.0
    if limit in _OF_THE_INPUT:
        times = f"{1 / (1 - wait):.3g}" if wait < 0.99 else "a hundred or more"
        yield f"without any wait a step would be at most {times} times faster"
        if load.gpu is None and limit is Limit.DECODING:
            yield "without a GPU, training computes on the cores that decode, and less than that can be won"
