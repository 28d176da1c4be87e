"""What the machines of all training servers do, in one row: the first server sends it to Comet, for all."""

from collections.abc import Callable, Mapping, Sequence

from pipeline.monitor.gpu_columns import mean_over_gpus
from pipeline.monitor.row import Row

Samples = Callable[[], Sequence[Mapping[str, float]]]


class SampleTeller:
    """A sink that tells the other servers what this machine does."""

    def __init__(self, tell: Callable[[Mapping[str, float]], None]) -> None:
        self._tell = tell

    def write(self, row: Row) -> None:
        if row.kind == "samples":
            self._tell(_shares(row.values))

    def close(self) -> None:
        """Nothing is held."""


def aggregate(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean and least of what the servers told, such as `servers/gpu/util_pct_min`, and how many have told something.

    The least one is the server that the others wait for, or that waits for its data.
    """
    told = [sample for sample in samples if sample]
    found = {"servers/seen": float(len(told))}
    for name in sorted(set().union(*told)):
        values = [sample[name] for sample in told if name in sample]
        found[f"servers/{name}_mean"] = sum(values) / len(values)
        found[f"servers/{name}_min"] = min(values)
    return found


def _shares(values: Mapping[str, float]) -> dict[str, float]:
    """What is in percent, on average over the GPUs of this server: the bytes of different machines do not compare."""
    return mean_over_gpus(
        {name: value for name, value in values.items() if name.endswith("_pct") and not name.startswith("servers/")}
    )
