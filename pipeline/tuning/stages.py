"""What each stage of the input costs: the file of the costs, and their shares. Imports no TensorFlow."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.evaluation.estimates import Estimate
from pipeline.runs.files import read_or_empty
from pipeline.storage import Place, write_json

STAGES = "stages.json"
"""Each training server writes this file into its own folder."""


@dataclass(frozen=True)
class StageCosts:
    """What each stage of the input costs on one host, measured on a sample of the examples of a dataset."""

    us: Mapping[str, Estimate]
    """CPU microseconds per example of each stage, in the order of the stages."""
    bytes_per_example: float
    """Bytes of an example in the shards."""
    examples: int
    """Number of examples in the sample."""
    cpu_s: float
    """CPU seconds that the measurement took."""

    @property
    def total_us(self) -> float:
        """CPU microseconds per example of all stages together."""
        return sum(stage.value for stage in self.us.values())

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of each stage in the total, from 0 to 1."""
        total = self.total_us
        return {name: stage.value / total for name, stage in self.us.items()}


def save_stages(folder: Place, costs: StageCosts) -> None:
    """Write the costs into the folder of a training server."""
    write_json(folder / STAGES, asdict(costs), indent=1)


def load_stages(folder: Place) -> StageCosts | None:
    """Return the costs in the folder of a training server; None if there are none."""
    return costs_from(read_or_empty(folder / STAGES))


def costs_from(content: Mapping[str, Any]) -> StageCosts | None:
    """Return the costs in the content of a file; None if it holds none."""
    try:
        return StageCosts(**{**content, "us": {name: Estimate(*ends) for name, ends in content["us"].items()}})
    except (AttributeError, KeyError, TypeError):  # Missing, or damaged by another user of the folder.
        return None
