"""How fast a training is, from what an example needs of each resource: operational analysis, without fitted constants.

The accelerator, the cores, the disk or network, and the slowest stage that handles one example after another work at
the same time. The one that needs the longest for an example sets the rate. How much of their work overlaps, and which
time none of them explains, is taken from the record of the training.

A number that is known within an interval is an array of `DRAWS` values, its draws. Calculations with such arrays carry
the intervals along, and a number that occurs twice is the same draw both times. An interval holds three things:

- What the record cannot tell, such as which of two limits counts: any value between the ends.
- The spread of the measured costs of the stages, with as few degrees of freedom as there were blocks at least.
- That a later period differs from the measured one, as slices of the measured one differ from each other. It is a
  prediction interval for one more slice (Student's t), not that of a mean, because a machine does not drift from slice
  to slice independently. Two slices say little, so their interval is wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.evaluation.estimates import Estimate, interval
from pipeline.monitor.epochs import usual_epochs
from pipeline.monitor.limits import BUSY, Limit, Part
from pipeline.monitor.verdict import SLICES, Verdict
from pipeline.runs.measured_steps import MeasuredSteps
from pipeline.tuning.stages import MIN_ROUNDS, StageCosts

if TYPE_CHECKING:
    import pandas

DRAWS = 2000
LAST_EPOCHS = 40
"""The time of the steps and between epochs is that of this number of epochs, the newest."""
MAX_DRIFT = 5.0
"""Limit of the logarithm of a drift, so that rare draws stay numbers."""
NORMAL_95 = 1.96
"""Half the width of a 95% interval, in standard deviations of a normal distribution."""
Draws: TypeAlias = "NDArray[np.float64]"

_ON_CORES = {Limit.DECODING, Limit.CPU_QUOTA, Limit.OTHER_PROGRAMS}
_ONE_BY_ONE = {Limit.SERIAL, Limit.ONE_CORE}
_OUTSIDE = {Limit.WAITING, Limit.MEMORY}
_OF_INPUT = (*sorted(_ON_CORES), *sorted(_ONE_BY_ONE), *sorted(_OUTSIDE), Limit.READING)


@dataclass(frozen=True)
class Rates:
    """What an example needs, and what there is. Times are in microseconds per training example."""

    compute_us: Draws
    """Time of a step that is neither of the following two, nor a wait for data."""
    host_us: Draws
    """Time of the loop itself."""
    waited_us: Draws
    """Time that steps wait for checkpoints."""
    input_us: Draws
    """Processor time of the input."""
    other_us: Draws
    """Processor time of the step and of everything else."""
    serial_us: Draws
    """Time of the slowest stage that handles one example after another."""
    outside_us: Draws
    """Time of what no setting changes: a server that answers late, or memory that is too small."""
    bytes_per_example: Draws
    bytes_per_us: Draws
    """Infinite if nothing shows how much the disk or the network can do."""
    cores: Draws
    overlap: Draws
    """Share (0 to 1) of the shorter one of input and step that the longer one hides."""
    gap_us: Draws
    """Time that none of these explains, such as pauses that the buffer does not bridge."""
    inflation: Draws
    """How much more processor time the input took in the training than in its measurement."""
    between_us: Draws
    """What an epoch takes beyond its steady steps: validation, callbacks, its first step, all that lies between two."""
    validation_us: Draws
    """The validation, a part of it."""
    checkpoints_us: Draws
    """Time that a checkpoint takes beside the steps. Each draw has several values, (draws, values)."""
    drift: Draws
    """How many times longer a step takes in another period."""
    between_drift_us: Draws
    """How much longer it takes between the epochs of another period."""

    @property
    def step_us(self) -> Draws:
        """Time of a step, without waiting for data."""
        return self.compute_us + self.host_us + self.waited_us

    @property
    def cores_us(self) -> Draws:
        """Time of all cores together."""
        return (self.input_us + self.other_us) / self.cores

    @property
    def reading_us(self) -> Draws:
        """Time of the disk or the network."""
        return self.bytes_per_example / self.bytes_per_us

    @property
    def supply_us(self) -> Draws:
        """Time of the input."""
        return np.asarray(np.maximum.reduce([self.cores_us, self.reading_us, self.serial_us, self.outside_us]))

    @property
    def steps_us(self) -> Draws:
        """Time of the steps."""
        longer, shorter = np.maximum(self.step_us, self.supply_us), np.minimum(self.step_us, self.supply_us)
        return longer + (1 - self.overlap) * shorter + self.gap_us

    @property
    def whole_us(self) -> Draws:
        """Time of whole epochs in the period that was measured."""
        return self._whole_us(self.steps_us, self.between_us)

    def later_us(self, steps_us: "Draws | None" = None, between_us: "Draws | None" = None) -> Draws:
        """Return the time of whole epochs in another period, with other steps, or other work between the epochs."""
        steps_us = self.steps_us if steps_us is None else steps_us
        between_us = self.between_us if between_us is None else between_us
        return self._whole_us(steps_us * self.drift, np.maximum(between_us + self.between_drift_us, 0))

    def _whole_us(self, steps_us: Draws, between_us: Draws) -> Draws:
        # A checkpoint is written beside the next epoch, and the checkpoint after it waits for its end. So an epoch
        # takes as long as the longer one of the two. A faster input shortens the epoch, but not the checkpoint: a time
        # that was hidden then shows.
        return np.asarray(np.maximum((steps_us + between_us)[:, None], self.checkpoints_us).mean(axis=1))

    def with_costs(self, costs: StageCosts) -> "Rates":
        """Return the rates with another input, whose stages cost this."""
        return replace(
            self,
            input_us=costs_us(costs) * self.inflation,
            bytes_per_example=np.full(DRAWS, costs.bytes_per_example),
        )

    def limit(self) -> Limit:
        """Return the limit in most draws: the slowest part of step or input, whichever takes longer, or of the rest."""
        of_step = {Limit.COMPUTE: self.compute_us, Limit.HOST: self.host_us, Limit.CHECKPOINTS: self.waited_us}
        of_input = {Limit.DECODING: self.cores_us, Limit.READING: self.reading_us}
        of_input |= {Limit.SERIAL: self.serial_us, Limit.WAITING: self.outside_us}
        beside = {Limit.BUFFER: self.gap_us, Limit.VALIDATION: self.validation_us}
        beside[Limit.BETWEEN_EPOCHS] = self.between_us - self.validation_us
        is_step = self.step_us >= self.supply_us
        times = [*(us * is_step for us in of_step.values()), *(us * ~is_step for us in of_input.values())]
        slowest = np.argmax([*times, *beside.values()], axis=0)
        return [*of_step, *of_input, *beside][int(np.bincount(slowest).argmax())]


def estimate_of(draws: Draws) -> Estimate:
    """Return the median of the draws, with its 95% interval."""
    low, high = interval(draws)
    return Estimate(float(np.median(draws)), float(low), float(high))


def costs_us(costs: StageCosts) -> Draws:
    """Return the processor time of all stages, in microseconds per example."""
    return np.asarray(np.sum([drawn(each, name) for name, each in costs.us.items()], axis=0))


def between(low: Any, high: Any, name: str) -> Draws:
    """Return draws of a number of which only its ends are known."""
    return np.asarray(low + (high - low) * _random(name).random(DRAWS))


def drawn(estimate: Estimate, name: str) -> Draws:
    """Return draws of a measured number."""
    spread = (estimate.high - estimate.low) / 2 / NORMAL_95
    # An infinite interval says that the value may be anything: up to twice as much, here.
    spread = spread if np.isfinite(spread) else estimate.value / 2
    return np.maximum(estimate.value + spread * _random(name).standard_t(MIN_ROUNDS - 1, DRAWS), 0.0)


def _one_more(slices: Any, name: str) -> Draws:
    """Return by how much one more slice differs from the mean of some slices, two at least."""
    scale = np.std(slices, ddof=1) * (1 + 1 / len(slices)) ** 0.5
    return np.asarray(scale * _random(name).standard_t(len(slices) - 1, DRAWS))


def _random(name: str) -> np.random.Generator:
    """Return the random numbers of a name: the same ones each time, and others for another name."""
    return np.random.default_rng([*name.encode()])


def observed(
    verdict: Verdict,
    stages: StageCosts | None,
    epochs: "pandas.DataFrame | None" = None,
    steps: MeasuredSteps | None = None,
    simulated_us: float = 0.0,
    validation_ratio: float = 0.0,
) -> Rates:
    """Return the rates of a training. They explain exactly its `whole_epochs`, or its steps if it has none.

    Args:
        verdict: The verdict on its steps.
        stages: The measured costs of its input, if any.
        epochs: Its `whole_epochs`; None if the verdict is about whole epochs.
        steps: What was measured of its steps on the cores, if anything was.
        simulated_us: The time of a simulated accelerator, in microseconds per example.
        validation_ratio: Validation examples per training example.
    """
    load, whole_us = verdict.load, 1e6 / verdict.examples_per_s
    if epochs is not None and len(epochs):
        epochs = usual_epochs(epochs)[-LAST_EPOCHS:]
        whole_us = 1e6 * float(epochs["steps_s"].sum() / epochs["examples"].sum())
    busy_us = whole_us * (1 - verdict.wait_fraction)
    usable = load.usable_cores or load.cores or 1.0
    used = min(load.own_cores, usable) if load.own_cores else usable * BUSY
    input_us, other_us, inflation = _split_cpu(verdict, stages, steps, used * whole_us, busy_us)
    cause = _causes(verdict.limits, whole_us, stages)
    # How many of the cores of other programs it would get is unknown, as long as it does not miss them.
    free = usable if load.idle_cores is None else min(usable, used + load.idle_cores)
    is_full = np.isin(cause, [*_ON_CORES]) | (used >= BUSY * usable)
    cores = np.where(is_full, used, between(max(BUSY * free, used), usable, "cores"))
    # The accelerator itself, if it is not the cores.
    alone_us = simulated_us if load.gpu is None else whole_us * load.gpu / 100
    waited_us = min(_share_in_steps(verdict, Part.CHECKPOINTS) * whole_us, busy_us)
    busy_us -= waited_us
    of_host = min(_share_in_steps(verdict, Part.HOST) * whole_us / max(busy_us, 1e-9), 1.0)
    if steps:  # Their time is without the work of the loop.
        host_us = np.full(DRAWS, of_host * busy_us)
        compute_us = np.minimum(drawn(steps.us, "steps alone"), busy_us - host_us)
    else:
        step_us = _step_us(verdict, busy_us, min(alone_us, busy_us), input_us / cores, other_us / cores, is_full)
        host_us, compute_us = step_us * of_host, step_us * (1 - of_host)
    bytes_per_example = np.full(DRAWS, stages.bytes_per_example if stages else 0.0)
    reads = (cause == Limit.READING) & (bytes_per_example > 0)
    is_outside = np.isin(cause, [*_OUTSIDE]) | ((cause == Limit.READING) & ~reads)
    slices = np.log(verdict.slices_us) if len(verdict.slices_us) > 1 else np.zeros(2)
    drift = np.exp(np.clip(_one_more(slices, "drift"), -MAX_DRIFT, MAX_DRIFT))
    rates = Rates(
        compute_us=compute_us,
        host_us=host_us,
        waited_us=np.full(DRAWS, waited_us),
        input_us=input_us,
        other_us=other_us,
        serial_us=np.where(np.isin(cause, [*_ONE_BY_ONE]), whole_us, 0.0),
        outside_us=np.where(is_outside, whole_us, 0.0),
        bytes_per_example=bytes_per_example,
        bytes_per_us=np.where(reads, bytes_per_example / whole_us, np.inf),
        cores=cores,
        overlap=np.ones(DRAWS),
        gap_us=np.zeros(DRAWS),
        inflation=inflation,
        drift=drift,
        **_between_epochs(verdict, whole_us, epochs, drift, validation_ratio),
    )
    return _explained(rates, whole_us)


def _between_epochs(
    verdict: Verdict, steps_us: float, epochs: "pandas.DataFrame | None", drift: Draws, validation_ratio: float
) -> Any:
    """Return the fields of the rates that are about whole epochs."""
    if epochs is not None and len(epochs):
        names = "between_s", "validation_s", "checkpoint_s"
        of_example = ((1e6 * epochs[name] / epochs["examples"]).dropna().to_numpy(float) for name in names)
        # Before a first checkpoint is complete, nothing says what one takes.
        between_us, validation_us, written_us = (each if len(each) else np.zeros(1) for each in of_example)
        mean_us, validation_us = np.full(DRAWS, between_us.mean()), np.full(DRAWS, validation_us.mean())
        slices = [each.mean() for each in np.array_split(between_us, min(SLICES, len(between_us)))]
    else:
        validation, callbacks = (verdict.shares.get(part, 0.0) for part in (Part.VALIDATION, Part.CALLBACKS))
        whole_us = steps_us / max(1 - validation - callbacks, 1e-3)
        mean_us, validation_us = np.full(DRAWS, whole_us - steps_us), np.full(DRAWS, validation * whole_us)
        slices, written_us = [], np.zeros(1)
        if epochs is not None:
            # No epoch has ended, so nothing shows a whole validation. For an example, it takes no longer than a step.
            mean_us = validation_us = between(0.0, max(validation_ratio * steps_us, whole_us - steps_us), "unseen")
    return {
        "between_us": mean_us,
        # Of a single epoch, nothing shows the spread: it varies as the steps do.
        "between_drift_us": _one_more(slices, "between") if len(slices) > 1 else mean_us * (drift - 1),
        "validation_us": validation_us,
        "checkpoints_us": written_us[_random("written").integers(len(written_us), size=(DRAWS, len(written_us)))],
    }


def _explained(rates: Rates, whole_us: float) -> Rates:
    """Return the rates with the overlap and the gap that explain the measured time."""
    longer, shorter = np.maximum(rates.step_us, rates.supply_us), np.minimum(rates.step_us, rates.supply_us)
    overlap = np.clip((longer + shorter - whole_us) / np.maximum(shorter, 1e-9), 0, 1)
    return replace(rates, overlap=overlap, gap_us=np.maximum(whole_us - longer - (1 - overlap) * shorter, 0))


def _causes(limits: Sequence[Limit], whole_us: float, stages: StageCosts | None) -> "NDArray[Any]":
    """Return what limits the input in each draw: of several limits that a verdict names, each may be the only one."""
    named = [limit for limit in limits if limit in _OF_INPUT] or [Limit.UNKNOWN]
    # A record cannot tell decoding beside idle cores from a serial stage, but the measured stages can.
    if stages and Limit.DECODING in named and stages.in_turn_us < whole_us / 2:
        named = [limit for limit in named if limit is not Limit.SERIAL]
    return np.array(named)[_random("causes").integers(len(named), size=DRAWS)]


def _split_cpu(
    verdict: Verdict, stages: StageCosts | None, steps: MeasuredSteps | None, cpu_us: float, busy_us: float
) -> Sequence[Draws]:
    """Return the processor time of the input, that of the rest, and how much more the input took than measured."""
    if steps:
        step_us = np.minimum(drawn(steps.cpu_us, "processor time of steps"), cpu_us)
        measured_us = costs_us(stages) if stages else cpu_us - step_us
        # Of time that neither explains, nothing says which of the two took it. If both together took less than
        # measured, it is the same share of both.
        excess_us, sum_us = cpu_us - measured_us - step_us, np.maximum(measured_us + step_us, 1e-9)
        part = np.where(excess_us < 0, measured_us / sum_us, between(0.0, 1.0, "excess"))
        input_us = measured_us + part * excess_us
        return input_us, cpu_us - input_us, input_us / np.maximum(measured_us, 1e-9)
    if stages is None:
        # A simulated step needs no core, one of a GPU at most one, and one on the cores may need all.
        of_step = 0.0 if verdict.is_simulated else min(cpu_us, busy_us) if verdict.load.has_gpu else cpu_us
        other_us = between(0.0, of_step, "step")
        return cpu_us - other_us, other_us, np.ones(DRAWS)
    measured_us = costs_us(stages)
    excess = cpu_us / np.maximum(measured_us, 1e-9)
    # Beside a simulated step, what the input did not take in its measurement is either overhead of each step, or the
    # input is slower because other threads use the same memory. Beside a real step, it is the step.
    part = between(0.0, 1.0 if verdict.is_simulated else 0.0, "inflation")
    inflation = np.where(excess < 1, excess, 1 + part * (excess - 1))
    input_us = measured_us * inflation
    return input_us, np.maximum(cpu_us - input_us, 0), inflation


def _share_in_steps(verdict: Verdict, part: Part) -> float:
    """Return the share of a part in the time of the steps."""
    in_steps = 1 - verdict.shares.get(Part.VALIDATION, 0.0) - verdict.shares.get(Part.CALLBACKS, 0.0)
    return verdict.shares.get(part, 0.0) / max(in_steps, 1e-3)


def _step_us(
    verdict: Verdict, busy_us: float, alone_us: float, input_us: Draws, other_us: Draws, is_full: Any
) -> Draws:
    """Return the time of a step without the input. On cores that the input uses too, it would be shorter alone."""
    if verdict.is_simulated or verdict.load.has_gpu:
        # On full cores, the thread that sends the work to the accelerator waits for a core, too.
        is_late = is_full | (Limit.LATE_KERNELS in verdict.limits)
        return np.where(is_late, between(alone_us, busy_us, "kernels"), busy_us)
    least = np.minimum(busy_us, np.maximum(other_us, busy_us - input_us))
    return np.where(is_full, np.minimum(busy_us, other_us), between(least, busy_us, "alone"))
