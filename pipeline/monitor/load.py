"""How busy a machine was while it trained: what tells the causes of a wait apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas

    Table = pandas.DataFrame | Mapping[str, Any]

_GPU_BUSY = re.compile(r"gpu/\d+/util_pct")


@dataclass(frozen=True)
class Load:
    """Means over the steady steps, in percent but for the last ones; None where nobody measured it."""

    cpu: float | None = None
    """Of the cores that this process may use: those of its container, where there is a limit."""
    busiest_core: float | None = None
    throttled: float | None = None
    """Of the time in which the container was held back, as it had used up its share of the cores."""
    disk: float | None = None
    """Of the time in which the busiest disk was at work."""
    disk_stalls: float | None = None
    """Of the time in which somebody stood still for a disk or a network file system."""
    gpu: float | None = None
    received_Bps: float | None = None
    """From the network, in bytes a second."""
    cores: float | None = None
    """How many the container may use; None where it has no limit."""
    own_cores: float | None = None
    """How many the training itself kept busy, with the processes that it started."""

    def others(self, cores: float) -> float | None:
        """How many of the cores of this machine other programs kept busy.

        None where that is not known, or where a container keeps them away.
        """
        if self.cpu is None or self.own_cores is None or self.cores is not None:
            return None
        return max(0.0, self.cpu * cores / 100 - self.own_cores)


def load_of(samples: Table, batches: Table, steady: NDArray[np.bool_]) -> Load:
    """The load while the ``steady`` ones of ``batches`` were under way; both tables are those of a record."""
    if not len(samples) or not len(samples["time"]):
        return Load()
    chosen = _during(np.asarray(samples["time"]), np.asarray(batches["time"]), steady)

    def mean(*names: str) -> float | None:
        """Of the first of these that was measured."""
        known = (values for name in names if (values := _known(samples, name, chosen)) is not None)
        return next((float(values.mean()) for values in known), None)

    gpus = [found for name in samples if _GPU_BUSY.fullmatch(str(name)) and (found := mean(str(name))) is not None]
    return Load(
        cpu=mean("cgroup/cpu_pct", "sys/cpu_pct"),
        busiest_core=mean("sys/cpu_max_core_pct"),
        throttled=mean("cgroup/cpu_throttled_pct"),
        disk=mean("sys/disk_busy_pct"),
        disk_stalls=mean("pressure/io_some_pct"),
        gpu=sum(gpus) / len(gpus) if gpus else None,
        received_Bps=mean("sys/net_recv_Bps"),
        cores=mean("cgroup/cpu_limit_cores"),
        own_cores=_own_cores(mean("proc/cpu_pct"), mean("proc/children_cpu_pct")),
    )


def _own_cores(process: float | None, children: float | None) -> float | None:
    return None if process is None else (process + (children or 0.0)) / 100


def _during(times: NDArray[np.float64], ends: NDArray[np.float64], steady: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each sample was taken in a step that counts; a step is over at its end, and no validation is in one."""
    step = np.searchsorted(ends, times)
    inside = step < len(ends)
    inside[inside] = steady[step[inside]]
    return inside


def _known(samples: Table, name: str, chosen: NDArray[np.bool_]) -> NDArray[np.float64] | None:
    if name not in samples:
        return None
    values = np.asarray(samples[name], dtype=float)[chosen]
    values = values[np.isfinite(values)]
    return values if len(values) else None
