"""What each stage of the input costs: its file and its words. No TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.evaluation.estimates import RESAMPLES, Estimate, interval
from pipeline.monitor.diagnosis import three_digits
from pipeline.monitor.record import record_folders
from pipeline.runs.files import STAGES, read_or_empty
from pipeline.storage import Place, write_json

WORDS = {"read": "reading", "parse": "parsing", "decode": "decoding", "resize": "resizing", "batch": "making batches"}
"""What a stage does, by its name."""
SHOWN_SHARE = 0.005
"""A sentence leaves out stages that take a smaller share."""
NARROW_TOTAL, NARROW_STAGE = 0.03, 0.02
"""A measurement is complete if its intervals reach this far to both sides, as shares of the time of all stages."""
MIN_ROUNDS = 8
"""With fewer blocks, an interval would be a guess."""


@dataclass(frozen=True)
class StageCosts:
    """What each stage of the input costs on one host, measured on a sample of the examples of a dataset."""

    us: Mapping[str, Estimate]
    """CPU microseconds per example of each stage, in the order of the stages."""
    bytes_per_example: float
    """Bytes of an example in the shards."""
    examples: int
    """Number of examples that were measured."""
    cpu_s: float
    """CPU seconds that the measurement took."""
    elapsed_us: Mapping[str, float] = field(default_factory=dict)
    """Microseconds per example until a stage was done: with all cores, but reading one record after another from the
    place of the dataset. A slow disk, or a limit of the container, shows only here."""

    @property
    def total_us(self) -> float:
        """CPU microseconds per example of all stages together."""
        return sum(stage.value for stage in self.us.values())

    @property
    def in_turn_us(self) -> float:
        """CPU microseconds per example of the stages that handle one example after another."""
        return sum(stage.value for name, stage in self.us.items() if name in ("read", "batch"))

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of each stage in the total, from 0 to 1."""
        total = self.total_us
        return {name: stage.value / total if total else 0.0 for name, stage in self.us.items()}

    @property
    def is_narrow(self) -> bool:
        """Whether the intervals are so narrow that more blocks would say nothing new."""
        half_widths = [(stage.high - stage.low) / 2 for stage in self.us.values()]
        limits = NARROW_TOTAL * self.total_us, NARROW_STAGE * self.total_us
        return bool(np.hypot.reduce(half_widths) <= limits[0]) and max(half_widths) <= limits[1]

    def sentence(self, unit: str) -> str:
        """Say what each stage takes of the time of a `unit`, such as an image, with the longest first."""
        shares = self.shares
        stages = sorted((stage for stage in shares if shares[stage] >= SHOWN_SHARE), key=lambda stage: -shares[stage])
        parts = (f"{WORDS[one]}{' takes' * (one == stages[0])} {time_text(self.us[one].value)}" for one in stages)
        return f"Of {time_text(self.total_us)} of processor time per {unit}, {', '.join(parts)}."


def time_text(us: float) -> str:
    """Write a time in ms, or a short one in µs."""
    return f"{three_digits(us / 1000)} ms" if us >= 1000 else f"{three_digits(us)} µs"


def costs_of(
    rounds: Sequence[Mapping[str, tuple[float, float]]],
    read_us: float,
    bytes_per_example: float,
    examples: int,
    cpu_s: float,
) -> StageCosts:
    """Return the costs of some blocks of examples, each with CPU time and elapsed time of its stages, per example.

    The blocks are drawn again and again (bootstrap). So an interval contains the noise of the machine, and the
    difference between the sample and all examples. `read_us` is the elapsed time of reading.
    """
    drawn = np.random.default_rng(0).integers(len(rounds), size=(RESAMPLES, len(rounds)))
    us, elapsed = {}, {}
    for stage in rounds[0]:
        cpu = np.array([each[stage][0] for each in rounds])
        # The difference of two inputs may be slightly negative if a stage takes no time.
        low, high = np.maximum(interval(cpu[drawn].mean(axis=1)), 0.0)
        us[stage] = Estimate(max(0.0, float(cpu.mean())), float(low), float(high))
        elapsed[stage] = max(0.0, float(np.mean([each[stage][1] for each in rounds])))
    return StageCosts(us, bytes_per_example, examples, cpu_s, {**elapsed, "read": read_us})


def save_stages(folder: Place, costs: StageCosts) -> None:
    """Write the costs into the folder of a training server."""
    write_json(folder / STAGES, asdict(costs), indent=1)


def load_stages(folder: Place) -> StageCosts | None:
    """Return the costs in the folder of a training server; None if there are none."""
    return costs_from(read_or_empty(folder / STAGES))


def stages_of_servers(training: Path) -> dict[int, StageCosts]:
    """Return the costs of each training server that measured them, by its index."""
    found = {index: load_stages(record.parent) for index, record in record_folders(training).items()}
    return {index: costs for index, costs in found.items() if costs}


def costs_from(content: Mapping[str, Any]) -> StageCosts | None:
    """Return the costs in the content of a file; None if it holds none."""
    try:
        us = {name: Estimate(*map(float, content["us"][name])) for name in WORDS if name in content["us"]}
        elapsed = {name: float(us) for name, us in content["elapsed_us"].items() if name in WORDS}
        costs = StageCosts(**{**content, "us": us, "elapsed_us": elapsed})
        return costs if costs.total_us > 0 and costs.bytes_per_example + costs.cpu_s + costs.examples > 0 else None
    except (AttributeError, KeyError, TypeError, ValueError):  # Missing, or damaged by another user of the folder.
        return None
