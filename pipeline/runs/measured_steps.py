"""What was measured of training steps without the input: as they are, with another precision, and compiled with XLA."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from pipeline.config.automatic import TrainingSettings
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.limits import Limit
from pipeline.monitor.verdict import Verdict
from pipeline.runs.files import STEPS, read_or_empty
from pipeline.storage import Place, write_json

FLOAT16_CAPABILITY, BFLOAT16_CAPABILITY = 7.0, 8.0
"""NVIDIA's GPUs have tensor cores for float16 from the first compute capability on (V100, T4), and for bfloat16 from
the second one on (A100, RTX 30, L4, H100)."""

_OF_STEPS = {"precision": str, "xla": bool}
"""The settings that change a step, with the types of their values."""


@dataclass(frozen=True)
class StepRatio:
    """What was measured of the steps of a training with other settings."""

    change: Mapping[str, Any]
    """Settings and their new values."""
    ratio: Estimate
    """Time of such a step as a share of the time of a step without the change."""
    start_s: float
    """Seconds until the first step was done."""


@dataclass(frozen=True)
class MeasuredSteps:
    """What was measured of the steps of a training on one batch in memory, in microseconds per example."""

    us: Estimate
    """Time of a step."""
    cpu_us: Estimate
    """Processor time of a step."""
    ratios: Sequence[StepRatio] = ()


def faster_precision(gpu_capability: float | None) -> str:
    """Return the precision for which a GPU has tensor cores; empty if it has none. An unknown GPU counts as new."""
    if gpu_capability is None or gpu_capability >= BFLOAT16_CAPABILITY:
        return "mixed_bfloat16"
    return "mixed_float16" if gpu_capability >= FLOAT16_CAPABILITY else ""


def step_changes(verdict: Verdict, settings: TrainingSettings) -> list[dict[str, Any]]:
    """Return the changes whose steps are worth measuring; none if the steps do not limit the training."""
    if Limit.COMPUTE not in verdict.limits or verdict.is_simulated or settings.num_training_servers > 1:
        return []
    load = verdict.load
    precision = faster_precision(load.gpu_capability) if load.has_gpu and settings.precision == "float32" else ""
    of_precision: dict[str, Any] = {"precision": precision} if precision else {}
    of_xla: dict[str, Any] = {} if settings.xla else {"xla": True}
    both = [{**of_precision, **of_xla}] if of_precision and of_xla else []
    return [each for each in (of_precision, of_xla, *both) if each]


def are_worth_measuring(verdict: Verdict, settings: TrainingSettings) -> bool:
    """Return whether a prediction would use measured steps.

    Without a GPU, a step needs the same cores as the input, and a record does not say how long it would take alone.
    """
    is_on_cores = not verdict.load.has_gpu and not verdict.is_simulated and settings.num_training_servers == 1
    return (is_on_cores and verdict.limit is not Limit.UNKNOWN) or bool(step_changes(verdict, settings))


def save_steps(folder: Place, steps: MeasuredSteps) -> None:
    """Write what was measured into the folder of a training."""
    write_json(folder / STEPS, asdict(steps), indent=1)


def load_steps(folder: Place) -> MeasuredSteps | None:
    """Return what was measured; None if the file is missing, or another user of the folder damaged it."""
    try:
        content = read_or_empty(folder / STEPS)
        us, cpu_us = (estimate_from(content[name]) for name in ("us", "cpu_us"))
        ratios = [
            StepRatio(_change_of(each["change"]), estimate_from(each["ratio"]), float(each["start_s"]))
            for each in content["ratios"]
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return MeasuredSteps(us, cpu_us, ratios)


def estimate_from(numbers: Sequence[Any]) -> Estimate:
    """Return a measured time or ratio, which a file holds. Raises ValueError if it is none."""
    found = Estimate(*map(float, numbers))
    if not all(isfinite(each) and each > 0 for each in found):
        raise ValueError(f"{numbers} was not measured")
    return found


def _change_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a change that `step_changes` can give. Raises ValueError if it is none."""
    if not content or not all(isinstance(value, _OF_STEPS[name]) for name, value in content.items()):
        raise ValueError(f"{content} is no change of steps")
    return dict(content)
