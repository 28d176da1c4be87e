"""The verdict: what limits a training, in one sentence with numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.monitor.columns import BatchColumns
from pipeline.monitor.diagnosis import (
    Summary,
    Table,
    is_steady,
    mean_of,
    percent,
    seconds_by_part,
    step_masks,
    summarize,
    three_digits,
)
from pipeline.monitor.limits import BOUND, FINE, OTHERS, Bottleneck, Limit, Part, Shares, Supply, find_bottleneck
from pipeline.monitor.load import Load, during, during_validation, is_of_load, load_of
from pipeline.monitor.record import chunks, read, record_folders
from pipeline.monitor.thinned import thinned

MIN_STEPS, MIN_S = 10, 2.0
"""A verdict needs at least this number of steady steps, which take at least this time: ten samples of the machine."""
FULL = 99.0
"""The input counts as standing still if at least this percentage of the batches that it may keep ready are ready."""
CALM_WAITS = 4
"""A step hardly waits if it waits for at most the mean divided by this number."""
SLICES, STEPS_OF_SLICE = 8, 5
"""The steady steps are divided into this number of slices, if each has at least this number of steps."""
MORE_BATCHES = tuple(2**power for power in range(11))
"""Numbers of batches by which a buffer may grow."""
MIN_RECEIVED_BPS = 5e4
"""What came over the network is named from this number of bytes a second on, because less is 0.0 MB."""
WORTH_NAMING = 0.1
"""Other programs are named if they use more than this share of the cores. Every machine runs a few small ones."""
_NAMES = {
    Limit.ONE_CORE: "one core",
    Limit.WAITING: "waiting for a server or a lock",
    Limit.SERIAL: "a serial stage",
    Limit.BUFFER: "too small a buffer",
    Limit.OTHER_PROGRAMS: "starved by other programs",
    Limit.CPU_QUOTA: "the CPU quota",
    Limit.MEMORY: "too little memory",
    Limit.PYTHON: "Python code in the step",
    Limit.LATE_KERNELS: "kernels that start late",
}
"""Words for the limits whose value is not clear enough in a sentence."""
_PARTS = (Limit.COMPUTE, Limit.HOST, Limit.CHECKPOINTS, Limit.VALIDATION, Limit.CALLBACKS)
"""Limits that say no more than the part of the time that they limit, which has the same value."""
_BOUND_BY = {
    Part.INPUT: "Input-bound",
    Part.COMPUTE: "Compute-bound",
    Part.HOST: "Host-bound",
    Part.CHECKPOINTS: "Checkpoint-bound",
    Part.VALIDATION: "Validation-bound",
    Part.CALLBACKS: "Callback-bound",
}
_TAKES = {
    Part.HOST: "of the step time is the training loop itself",
    Part.CHECKPOINTS: "of the step time is waiting for checkpoints",
    Part.VALIDATION: "of the time is validation",
    Part.CALLBACKS: "of the time is work of callbacks between epochs",
}


@dataclass(frozen=True)
class Verdict:
    """What limits a training, with the numbers. What to change depends on the settings (tuning/advice.py)."""

    limits: tuple[Limit, ...]
    """The strongest first. Several if several are reached, or if the record cannot tell them apart. Empty only for a
    program whose steps are not known, if nothing on the machine is used up."""
    sentence: str
    load: Load
    wait_fraction: float = 0.0
    wait_ms: float = 0.0
    step_ms: float = 0.0
    """Mean of the steady steps; 0 if there are none."""
    examples_per_s: float = 0.0
    """Over the steady steps."""
    shares: Mapping[Part, float] = field(default_factory=dict)
    """Shares of the time after the first step, by part; empty if there are too few steps."""
    is_simulated: bool = False
    """Whether the steps only waited."""
    bridged_ms: Mapping[int, float] = field(default_factory=dict)
    """The mean wait of a step that would be left if this number of batches more could be ready."""
    since: float = 0.0
    """When the first of the steps ended (Unix s)."""
    slices_us: Sequence[float] = ()
    """Microseconds per example in slices of the steady steps, one after the other: how much the rate varies."""

    @property
    def limit(self) -> Limit:
        """The strongest limit."""
        return self.limits[0]


def words_of(limit: Limit) -> str:
    """Return the words of a verdict that name a limit. Without a limit, a verdict says what it lacks."""
    if limit is Limit.UNKNOWN:
        return "Not enough steps, time or samples for a verdict"
    return _BOUND_BY[Part(limit)] if limit in _PARTS else _NAMES.get(limit, limit.value)


def numbers(verdict: Verdict) -> dict[str, float | None]:
    """Return the numbers of a verdict, for JSON. A number that is not known is None.

    Shares are from 0 to 1. Times are means of the steady steps, in ms. The use of GPUs and cores is in percent.
    """
    known = {
        "wait_fraction": verdict.wait_fraction,
        "wait_ms": verdict.wait_ms,
        "step_ms": verdict.step_ms,
        "examples_per_s": verdict.examples_per_s,
        "gpu_pct": verdict.load.gpu,
        "cpu_pct": verdict.load.busy,
    }
    if not verdict.step_ms:
        return dict.fromkeys(known)
    # Rounded to seven digits, not to decimal places: a wait of microseconds, rounded to four places, was a third off.
    return {name: None if value is None else float(f"{value:.7g}") for name, value in known.items()}


def has_enough_steps(batches: Table) -> bool:
    """Return whether there are enough steady steps for a verdict, which take enough time."""
    summary = summarize(batches)
    return summary.steps >= MIN_STEPS and _steady_s(summary) >= MIN_S


def diagnose(batches: Table, samples: Table, epochs: "Table | None" = None, whole: bool = True) -> Verdict:
    """Return the verdict on a training, or on a part of it, from tables as a record has them.

    The first step of a process and the first of an epoch are left out, and the samples that were taken meanwhile.

    `epochs` are needed for the time between epochs. `whole` says whether the tables begin with the training, so that
    its start-up is in them.
    """
    summary = summarize(batches)
    unknown = Verdict((Limit.UNKNOWN,), f"{_too_few(summary)}.", Load())
    if summary.wait_fraction is None or not (summary.time_ms and summary.wait_ms):
        return unknown
    # The means are right for any steps, even if there are too few of them to name a limit.
    numbered = replace(
        unknown,
        wait_fraction=summary.wait_fraction,
        wait_ms=summary.wait_ms.mean,
        step_ms=summary.time_ms.mean,
        examples_per_s=summary.examples_per_s or 0.0,
    )
    if summary.steps < MIN_STEPS:
        return numbered
    steady = is_steady(batches)
    load = load_of(samples, during(samples, batches, steady))
    shares = _shares(summary, batches, epochs)
    supply = _supply(summary, batches, steady)
    python_calls, simulated = (mean_of(batches, f"step/{name}", steady) for name in ("python_calls", "simulated"))
    validation = Load()
    if epochs is not None and shares[Part.VALIDATION] >= BOUND:
        validation = load_of(samples, during_validation(samples, epochs))
    bottleneck = find_bottleneck(shares, supply, load, validation, python_calls or 0.0, is_simulated=bool(simulated))
    start_up = [*_start_up(batches, samples, whole)]
    facts = [
        _first_fact(bottleneck, summary, shares),
        *_other_parts(bottleneck, shares),
        *_about_load(bottleneck, load, validation, bool(simulated)),
        *start_up,
        *_most_to_gain(bottleneck, summary, load),
    ]
    if gap := _gap(summary, bottleneck, load):
        facts = [gap, *start_up]
    return replace(
        numbered,
        limits=(Limit.UNKNOWN,) if gap else bottleneck.limits,
        sentence="; ".join(facts) + ".",
        load=load,
        shares=shares,
        is_simulated=bool(simulated),
        bridged_ms=_bridged_ms(batches, steady),
        since=float(np.asarray(batches["time"])[0]),
        slices_us=_slices_us(batches, steady),
    )


def diagnose_run(run_folder: Path, first_epoch: int = 1) -> Verdict:
    """Return the verdict on a run, from the records of all training servers that are in its folder.

    It is about the epochs (from 1) from `first_epoch` on.
    """
    epochs = read(run_folder / "record", "epochs")
    folders = record_folders(run_folder)
    batches = {index: BatchColumns(folder, first_epoch) for index, folder in folders.items()}
    index = slowest_server(batches)
    samples, _ = thinned(chunks(folders[index], "samples", is_of_load))
    return diagnose_server(index, batches, samples, epochs[epochs["step"] >= first_epoch], whole=first_epoch == 1)


def diagnose_server(
    index: int, batches: Mapping[int, Table], samples: Table, epochs: "Table | None" = None, whole: bool = True
) -> Verdict:
    """Return the verdict on the `slowest_server`, from the batches of each server and the samples of this one.

    `whole` says whether they begin with the training.
    """
    verdict = diagnose(batches[index], samples, epochs, whole)
    if len(batches) == 1 or verdict.limit is Limit.UNKNOWN:
        return verdict
    return replace(verdict, sentence=f"Server {index} waits most. {verdict.sentence}")


def slowest_server(batches: Mapping[int, Table]) -> int:
    """Return the index of the training server that waits most. All numbers are about this server.

    The other servers wait for it within their steps, and count that time as compute. `batches` has the rows of each
    server.
    """

    def waiting(index: int) -> float:
        steady = is_steady(batches[index])
        if steady.sum() < MIN_STEPS:
            return 0.0
        names = ("input/wait_ms", "step/time_ms")
        wait, total = (float(np.asarray(batches[index][name], dtype=float)[steady].sum()) for name in names)
        return wait / total if total else 0.0

    return max(batches, key=waiting)


def _shares(summary: Summary, batches: Table, epochs: "Table | None") -> Shares:
    """Return shares of the time after the first step. Within the steps, the steady ones stand for all."""
    steady, process_first, _ = step_masks(batches)
    total = np.asarray(batches["step/time_ms"], dtype=float)
    wait, host = summary.wait_fraction or 0.0, summary.host_fraction or 0.0
    # The host's fraction includes the checkpoints, which are named on their own.
    checkpoints = min(host, (mean_of(batches, "step/checkpoint_ms", steady) or 0.0) / max(total[steady].mean(), 1e-9))
    seconds = seconds_by_part(batches, epochs)
    in_steps = total[~process_first].sum() / 1000
    whole = in_steps + seconds["validation"] + seconds["callbacks"]
    steps = in_steps / whole
    return {
        Part.INPUT: wait * steps,
        Part.HOST: (host - checkpoints) * steps,
        Part.CHECKPOINTS: checkpoints * steps,
        Part.COMPUTE: (1 - wait - host) * steps,
        Part.VALIDATION: seconds["validation"] / whole,
        Part.CALLBACKS: seconds["callbacks"] / whole,
    }


def _supply(summary: Summary, batches: Table, steady: NDArray[np.bool_]) -> Supply:
    waits = np.asarray(batches["input/wait_ms"], dtype=float)[steady]
    # Relative to the mean: the question is whether few steps wait for all, not how long they wait.
    calm = float((waits <= waits.mean() / CALM_WAITS).mean())
    if "input/ready_pct" not in batches:
        return Supply(summary.wait_fraction or 0.0, calm)
    times = np.asarray(batches["step/time_ms"], dtype=float)[steady]
    is_full = np.asarray(batches["input/ready_pct"], dtype=float)[steady] >= FULL
    return Supply(summary.wait_fraction or 0.0, calm, float(times[is_full].sum() / times.sum()))


def _bridged_ms(batches: Table, steady: NDArray[np.bool_]) -> dict[int, float]:
    """Return the mean wait of a step that would be left with more ready batches, by their number.

    Steps in a row that wait are one pause of the input. A batch more bridges it for as long as a step works.
    """
    waits, times = (np.asarray(batches[name], dtype=float)[steady] for name in ("input/wait_ms", "step/time_ms"))
    is_long = waits > waits.mean() / CALM_WAITS
    ends = np.diff(is_long.astype(int), append=0, prepend=0)
    totals = np.append(0.0, np.cumsum(waits))
    pauses = totals[np.flatnonzero(ends < 0)] - totals[np.flatnonzero(ends > 0)]
    work = (times - waits).mean()
    return {more: float(np.maximum(pauses - more * work, 0).sum() / len(waits)) for more in MORE_BATCHES}


def _slices_us(batches: Table, steady: NDArray[np.bool_]) -> tuple[float, ...]:
    if "input/examples" not in batches:
        return ()
    columns = (np.asarray(batches[name], dtype=float)[steady] for name in ("step/time_ms", "input/examples"))
    count = min(SLICES, steady.sum() // STEPS_OF_SLICE)
    times, examples = (np.array([each.sum() for each in np.array_split(column, count)]) for column in columns)
    return tuple(map(float, 1000 * times / examples)) if (examples > 0).all() else ()


def _steady_s(summary: Summary) -> float:
    return summary.steps * summary.time_ms.mean / 1000 if summary.time_ms else 0.0


def _gap(summary: Summary, bottleneck: Bottleneck, load: Load) -> str | None:
    """Return what a verdict lacks; None if it lacks nothing."""
    if _steady_s(summary) < MIN_S:
        return _too_few(summary)
    if Part.INPUT in bottleneck.parts and load.busy is None and load.own_cores is None:
        waited = f"{percent(summary.wait_fraction or 0.0)} of the step time is waiting for data"
        return f"Not enough samples for a verdict: {waited}, and no sample of the machine shows why"
    return None


def _too_few(summary: Summary) -> str:
    if summary.steps < MIN_STEPS:
        return f"Not enough steps for a verdict: {summary.steps} in the steady state, at least {MIN_STEPS} are needed"
    took = f"{summary.steps:,} steps in the steady state took {_steady_s(summary):.1f} s"
    return f"Not enough time for a verdict: {took}, at least {MIN_S:g} s are needed"


def _first_fact(bottleneck: Bottleneck, summary: Summary, shares: Shares) -> str:
    """Return the bottleneck in two words, with its causes, and how much of the time it takes."""
    # `diagnose` has returned already if there are too few steps.
    assert summary.time_ms is not None
    assert summary.wait_ms is not None
    part, wait = bottleneck.parts[0], summary.wait_fraction or 0.0
    head = _BOUND_BY[part]
    if part is not Part.COMPUTE and shares[part] <= BOUND:
        head = f"Moderately {head[0].lower()}{head[1:]}"
    # The causes, if they say more than the part.
    causes = [words_of(limit) for limit in bottleneck.limits if limit not in _PARTS]
    head += f" ({' and '.join(causes)})" if causes else ""
    whole = f"{three_digits(summary.time_ms.mean)} ms a step, {summary.steps:,} steps"
    if part is Part.COMPUTE:
        computing = percent(1 - wait - (summary.host_fraction or 0.0))
        return f"{head}: {computing} of the step time is computing, {percent(wait)} waiting for data ({whole})"
    if part is Part.INPUT:
        waited = f"{three_digits(summary.wait_ms.mean)} of {whole}"
        return f"{head}: {percent(wait)} of the step time is waiting for data ({waited})"
    return f"{head}: {percent(shares[part])} {_TAKES[part]} ({whole})"


def _other_parts(bottleneck: Bottleneck, shares: Shares) -> Iterator[str]:
    """Yield the parts besides the first that take a share worth naming."""
    for part, text in _TAKES.items():
        if part is not bottleneck.parts[0] and shares[part] >= FINE:
            yield f"{percent(shares[part])} {text}"
    if Part.INPUT in bottleneck.parts[1:]:
        yield f"{percent(shares[Part.INPUT])} of the time is waiting for data"


def _about_load(bottleneck: Bottleneck, load: Load, validation: Load, is_simulated: bool) -> Iterator[str]:
    """Yield what the machine did in the steps, or in the validations if more threads waited for a core then."""
    if Limit.OTHER_PROGRAMS in bottleneck.limits:
        load = max(load, validation, key=lambda each: each.core_wait or 0.0)
    if load.gpu is not None:
        yield f"the GPU was {load.gpu:.0f}% busy"
    elif is_simulated:
        yield "the accelerator was simulated"
    elif load.has_gpu:
        yield "the use of the GPU is not known"
    elif Part.COMPUTE in bottleneck.parts and load.busy is not None:
        yield "there is no GPU"
    if load.busy is not None and (Part.INPUT in bottleneck.parts or not load.has_gpu or bottleneck.limits[0] in _NAMES):
        yield _about_cores(load)
    if Limit.OTHER_PROGRAMS in bottleneck.limits:
        yield f"{load.core_wait:.1f} threads of this training waited for a core"
    if Limit.CPU_QUOTA in bottleneck.limits:
        yield f"the CPU limit of the container held it back {load.throttled:.0f}% of the time"
    if Limit.MEMORY in bottleneck.limits:
        yield f"tasks were stalled on memory {load.memory_stalls:.0f}% of the time"
    if {Limit.ONE_CORE, Limit.SERIAL} & {*bottleneck.limits} and load.busiest_thread is not None:
        yield f"its busiest thread was busy {load.busiest_thread:.0f}% of the time"
    if Limit.READING in bottleneck.limits or Limit.WAITING in bottleneck.limits:
        yield from about_reading(load)
    if Limit.BUFFER in bottleneck.limits:
        yield "most steps find their batch ready, but the other steps wait long"


def about_reading(load: Load) -> Iterator[str]:
    """Yield what disks and the network did."""
    if load.disk_stalls is not None:
        yield f"tasks were stalled on disk I/O {load.disk_stalls:.0f}% of the time"
    elif load.disk is not None:
        yield f"the disk was {load.disk:.0f}% busy"
    if load.received_Bps is not None and load.received_Bps >= MIN_RECEIVED_BPS:
        yield f"{load.received_Bps / 1e6:.1f} MB a second came over the network"


def _about_cores(load: Load) -> str:
    """Return how many cores the training kept busy, how many it may use, and how many other programs kept busy."""
    busy, others = load.busy or 0.0, load.other_cores or 0.0
    if load.cores is None:
        return f"the cores were {busy:.0f}% busy"
    if load.own_cores is None or load.usable_cores is None:
        return f"{busy * load.cores / 100:.1f} of {load.cores:g} cores were busy"
    own = f"this training kept {load.own_cores:.1f} of {load.usable_cores:g} cores busy"
    is_shared = others > OTHERS * load.own_cores and others > WORTH_NAMING * load.cores
    return f"{own}, and other programs kept {others:.1f} of {load.cores:g} busy" if is_shared else own


def _start_up(batches: Table, samples: Table, whole: bool) -> Iterator[str]:
    """Yield the time until the end of the first step, if it is a large share, with the wait for the first batch."""
    if not whole or not len(samples) or not len(samples["time"]):
        return
    ends = np.asarray(batches["time"], dtype=float)
    seconds = float(ends[0] - np.asarray(samples["time"])[0])
    if seconds <= 0:
        return
    share = seconds / (seconds + float(ends[-1] - ends[0]))
    waited_s = float(np.asarray(batches["input/wait_ms"], dtype=float)[0]) / 1000
    waiting = f", of which {waited_s:.0f} s were waiting for the first batch" if waited_s >= BOUND * seconds else ""
    if share >= BOUND:
        yield f"start-up and the first step took {percent(share)} of the time ({seconds:.0f} s{waiting})"


def _most_to_gain(bottleneck: Bottleneck, summary: Summary, load: Load) -> Iterator[str]:
    """Yield how much faster the training could be at most."""
    wait = summary.wait_fraction or 0.0
    if bottleneck.parts[0] is Part.INPUT:
        times = f"{1 / (1 - wait):.3g}" if wait < 0.99 else "a hundred or more"
        yield f"without waiting, steps would be at most {times} times as fast"
        if not load.has_gpu and Limit.DECODING in bottleneck.limits:
            yield "the real gain is smaller, because without a GPU the same cores decode and compute"
