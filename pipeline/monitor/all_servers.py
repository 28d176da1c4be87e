"""The machines of all training servers in one row, which the chief sends to Comet."""

from collections.abc import Callable, Mapping, Sequence

from pipeline.monitor.gpu_columns import mean_over_gpus
from pipeline.monitor.row import Row


class SampleSender:
    """A sink that sends the percentages of this machine to the other servers."""

    def __init__(self, send: Callable[[Mapping[str, float]], None]) -> None:
        self._send = send

    def write(self, row: Row) -> None:
        """Send the percentages of a sample, as means over the GPUs of this server."""
        if row.kind == "samples":
            # Bytes of different machines cannot be compared, percentages can.
            values = row.values.items()
            percentages = {k: v for k, v in values if k.endswith("_pct") and not k.startswith("servers/")}
            self._send(mean_over_gpus(percentages))


def aggregate(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return mean and minimum over the servers, such as `servers/gpu/util_pct_min`, and how many have sent a sample.

    The minimum is the server that the others wait for, or that waits for its data. `samples` are the last sample of
    each server, which is empty if the server has not sent any.
    """
    known = [sample for sample in samples if sample]
    aggregated = {"servers/seen": float(len(known))}
    for name in sorted(set().union(*known)):
        values = [sample[name] for sample in known if name in sample]
        aggregated[f"servers/{name}_mean"] = sum(values) / len(values)
        aggregated[f"servers/{name}_min"] = min(values)
    return aggregated
