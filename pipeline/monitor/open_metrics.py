"""The newest values of a training as an OpenMetrics file, for Prometheus and Grafana.

    # HELP tenfold_gpu_util_pct gpu/N/util_pct of Tenfold's record: mean over the last seconds
    # TYPE tenfold_gpu_util_pct gauge
    tenfold_gpu_util_pct{dag="image_training",run="run 7",server="0",gpu="0"} 93.5
    # EOF

The file is also valid in the older text format of Prometheus, because it has gauges only, and no times. The textfile
collector of node_exporter reads it.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.monitor.aggregation import HIGHEST, OF_BATCHES, Intervals
from pipeline.monitor.row import KINDS, Row
from pipeline.storage import write_whole

METRICS = "metrics.prom"
EVERY_S = 10.0
"""The file is written at most this often. Prometheus usually reads it every 15 s or more."""
_PREFIX = "tenfold"
_NUMBERED = re.compile(r"(gpu)/(\d+)/(.+)")
_INVALID = re.compile(r"[^a-zA-Z0-9_]")
LAST_STEP = "training/last_step_time_seconds"
"""The time of the newest training step, in Unix seconds. Samples also come from a training that is stuck."""
_STEP = {"batches": "training/step", "epochs": "training/epochs_done"}
"""What the step of a row is, by its kind."""


class OpenMetricsSink:
    """Writes means over the last seconds, and the values of the last epoch. The file is removed at the end.

    Without this, a dashboard would show the last values of an ended training as if it were going on.

    Args:
        file: Where the values are written, as a whole.
        labels: Names and values that each metric has, such as those of the run.
    """

    def __init__(self, file: Path, labels: Mapping[str, str]) -> None:
        self._file, self._labels = file, dict(labels)
        self._intervals = Intervals(of_batches=(*OF_BATCHES, "input/examples"))
        self._values: dict[str, float] = {}
        self._written: float | None = None

    def write(self, row: Row) -> None:
        """Add a row, and write the file if it is due. Raises OSError if the disk fails."""
        if row.kind not in KINDS:
            return
        for complete in self._intervals.add(row):
            self._values |= _values_of(complete)
        if row.kind == "batches":
            self._values[LAST_STEP] = row.time
        if self._values and (self._written is None or row.time - self._written >= EVERY_S):
            self._written = row.time
            with write_whole(self._file) as file:
                file.write(open_metrics(self._values, self._labels).encode())

    def close(self) -> None:
        """Remove the file. Raises OSError if that fails."""
        self._file.unlink(missing_ok=True)


def _values_of(row: Row) -> dict[str, float]:
    values = {name: value for name, value in row.values.items() if not name.endswith(HIGHEST)}
    if row.kind == "epochs":
        values = {f"epoch/{name.removeprefix('epoch/')}": value for name, value in values.items()}
    if step_ms := values.get("step/time_ms"):
        values["input/wait_ratio"] = values.get("input/wait_ms", 0.0) / step_ms
        if examples := values.pop("input/examples", None):
            values["input/examples_per_s"] = 1000 * examples / step_ms
    if row.kind in _STEP:
        values[_STEP[row.kind]] = float(row.step)
    return values


def open_metrics(values: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """Return values in the text format of OpenMetrics. A value that is not finite is left out.

    The name of a metric is that of the value with an underscore for each other character. Values of GPUs have one name
    and a label `gpu`.
    """
    families: dict[str, list[str]] = {}
    for name, value in values.items():
        if math.isfinite(value):
            family, number = _family(name)
            own = dict(labels) if number is None else {**labels, "gpu": number}
            text = ",".join(f'{_INVALID.sub("_", label)}="{_escaped(text)}"' for label, text in own.items())
            families.setdefault(family, []).append(f"{_metric(family)}{{{text}}} {value:.10g}")
    return "".join(f"{line}\n" for line in [*_lines(families), "# EOF"])


def _lines(families: Mapping[str, list[str]]) -> Iterator[str]:
    for family, samples in families.items():
        # The same text in each file. Otherwise node_exporter refuses a metric that is in the files of two trainings.
        yield f"# HELP {_metric(family)} {family} of Tenfold's record: mean over the last seconds or value of the epoch"
        yield f"# TYPE {_metric(family)} gauge"
        yield from samples


def _family(name: str) -> tuple[str, str | None]:
    """Return the name of a value without the number of its GPU, and that number."""
    found = _NUMBERED.fullmatch(name)
    return (f"{found[1]}/N/{found[3]}", found[2]) if found else (name, None)


def _metric(family: str) -> str:
    return f"{_PREFIX}_{_INVALID.sub('_', family.replace('/N/', '/'))}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
