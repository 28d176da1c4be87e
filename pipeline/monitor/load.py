"""How busy a machine was while it trained: the numbers that tell the causes of a wait apart."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pipeline.monitor import gpu_columns
from pipeline.monitor.diagnosis import BETWEEN_EPOCHS, Table, finite, mean_of

_COLUMNS = {
    *(
        f"sys/{name}"
        for name in ("cores", "cpu_pct", "cpu_max_core_pct", "disk_busy_pct", "net_recv_Bps", "net_sent_Bps")
    ),
    *(f"proc/{name}" for name in ("cpu_pct", "children_cpu_pct", "cores", "core_wait_pct", "busiest_thread_pct")),
    *(f"proc/{of}{name}" for of in ("", "children_") for name in ("read_Bps", "major_faults_per_s")),
    "proc/disk_wait_pct",
    *(f"cgroup/{name}" for name in ("cpu_limit_cores", "cpu_used_cores", "cpu_throttled_pct")),
    *(f"pressure/{name}" for name in ("io_some_pct", "memory_some_pct")),
    "monitor/tick_late_ms",
}

_OF_GPUS = ("util_pct", "compute_capability", "mem_total_bytes")


@cache  # It is asked for each column of thousands of segments.
def is_of_load(column: str) -> bool:
    """Return whether `load_of` reads a column of the samples."""
    return column in _COLUMNS or any(gpu_columns.columns_of_gpus([column], name) for name in _OF_GPUS)


@dataclass(frozen=True)
class Load:
    """Means over the steady steps, in percent unless a name says otherwise; None if nothing measured it.

    "Own" is the training with all processes that it started; "other programs" are all the rest of the machine.
    """

    cores: float | None = None
    """Cores of the machine."""
    usable_cores: float | None = None
    """Cores that this process may use: its affinity, or the limit of its container."""
    busy: float | None = None
    """Use of all cores of the machine by all programs, in percent."""
    own_cores: float | None = None
    """Number of cores that the training kept busy."""
    own_cores_peak: float | None = None
    """The 90th percentile of that over the samples."""
    core_wait: float | None = None
    """Number of threads of the training that waited for a core, on average."""
    demand: float | None = None
    """Share (0 to 1) of the time in which at least one thread of the training ran or waited for a core."""
    busiest_thread: float | None = None
    """Use of one core by the busiest thread of the training."""
    busiest_core: float | None = None
    """Use of the busiest core, by all programs."""
    late_ms: float | None = None
    """How late the monitor's thread woke up, in ms: Python code that holds the interpreter's lock delays it."""
    throttled: float | None = None
    """Share of the time in which the container was throttled, because it had used up its share of the cores."""
    disk: float | None = None
    """Share of the time in which the busiest disk was at work."""
    disk_stalls: float | None = None
    """Share of the time in which some task of the machine was stalled on a disk or a network file system."""
    disk_wait: float | None = None
    """Share (0 to 1) of the time in which the threads that read waited for a disk or a network file system."""
    own_read_Bps: float | None = None
    """Bytes a second that the training read from disks. The page cache and network file systems do not count."""
    memory_stalls: float | None = None
    """Share of the time in which some task of the machine was stalled on memory."""
    major_faults: float | None = None
    """Pages a second of the training that had to be read from a disk."""
    gpu: float | None = None
    """Use of the GPUs: the share of the time in which a kernel ran, as mean over the GPUs."""
    gpus: int = 0
    """Number of GPUs, also of those whose use nothing measured, such as a part of a divided GPU (MIG)."""
    gpu_capability: float | None = None
    """Compute capability of the oldest GPU, such as 8.0 for an A100."""
    received_Bps: float | None = None
    """Bytes a second from the network."""
    sent_Bps: float | None = None
    """Bytes a second to the network."""

    @property
    def has_gpu(self) -> bool:
        """Whether the training has a GPU."""
        return self.gpus > 0 or self.gpu is not None

    @property
    def other_cores(self) -> float | None:
        """Number of cores that other programs kept busy; None if unknown."""
        if self.busy is None or self.own_cores is None or self.cores is None:
            return None
        return max(0.0, self.busy * self.cores / 100 - self.own_cores)

    @property
    def idle_cores(self) -> float | None:
        """Number of cores of the machine that no program kept busy; None if unknown."""
        return None if self.busy is None or self.cores is None else self.cores * (1 - self.busy / 100)

    @property
    def inflow_Bps(self) -> float | None:
        """Bytes a second from the network beyond those sent. Servers that add up gradients send what they receive."""
        return None if self.received_Bps is None else self.received_Bps - (self.sent_Bps or 0.0)

    @property
    def own_share(self) -> float | None:
        """Share (0 to 1) of its usable cores that the training kept busy. Of all cores if its own are not known."""
        if self.own_cores is not None and self.usable_cores:
            return self.own_cores / self.usable_cores
        return None if self.busy is None else self.busy / 100


def load_of(samples: Table, chosen: NDArray[np.bool_] | None = None) -> Load:
    """Return the load over all samples of a record, or only over the `chosen` ones."""
    if not len(samples) or not len(samples["time"]):
        return Load()
    if chosen is None:
        chosen = np.ones(len(samples["time"]), bool)

    def mean(column: str) -> float | None:
        return mean_of(samples, column, chosen)

    def with_children(column: str) -> float | None:
        of_process = mean(f"proc/{column}")
        return None if of_process is None else of_process + (mean(f"proc/children_{column}") or 0.0)

    capabilities = map(mean, gpu_columns.columns_of_gpus(samples, "compute_capability"))
    of_gpus = [mean(name) for name in gpu_columns.columns_of_gpus(samples, "util_pct")]
    gpus = [busy for busy in of_gpus if busy is not None]
    own = finite(samples, "proc/cpu_pct", chosen)
    own_pct, children_pct = with_children("cpu_pct"), mean("proc/children_cpu_pct") or 0.0
    cores = mean("sys/cores")
    # A container may limit the use of cores without hiding any, so the smaller number counts.
    usable = [each for each in (mean("cgroup/cpu_limit_cores"), mean("proc/cores") or cores) if each]
    core_wait, disk_wait = mean("proc/core_wait_pct"), mean("proc/disk_wait_pct")
    return Load(
        cores=cores,
        usable_cores=min(usable, default=None),
        busy=mean("sys/cpu_pct"),
        # The use of the container stands in if the process was not measured.
        own_cores=mean("cgroup/cpu_used_cores") if own_pct is None else own_pct / 100,
        own_cores_peak=(float(np.percentile(own, 90)) + children_pct) / 100 if len(own) else None,
        core_wait=None if core_wait is None else core_wait / 100,
        demand=_demand(samples, chosen),
        busiest_thread=mean("proc/busiest_thread_pct"),
        busiest_core=mean("sys/cpu_max_core_pct"),
        late_ms=mean("monitor/tick_late_ms"),
        throttled=mean("cgroup/cpu_throttled_pct"),
        disk=mean("sys/disk_busy_pct"),
        disk_stalls=mean("pressure/io_some_pct"),
        disk_wait=None if disk_wait is None else disk_wait / 100,
        own_read_Bps=with_children("read_Bps"),
        memory_stalls=mean("pressure/memory_some_pct"),
        major_faults=with_children("major_faults_per_s"),
        gpu=gpu_columns.mean(gpus) if gpus else None,
        gpus=sum(mean(name) is not None for name in gpu_columns.columns_of_gpus(samples, "mem_total_bytes")),
        gpu_capability=min((each for each in capabilities if each is not None), default=None),
        received_Bps=mean("sys/net_recv_Bps"),
        sent_Bps=mean("sys/net_sent_Bps"),
    )


def _demand(samples: Table, chosen: NDArray[np.bool_]) -> float | None:
    """Return the `demand` of a load.

    Many threads that wait for a core at once do not keep the training from sleeping at other times, so each sample
    counts with one core at most.
    """
    waited, ran, children = (
        np.asarray(samples[name], dtype=float)[chosen] / 100 if name in samples else np.full(chosen.sum(), np.nan)
        for name in ("proc/core_wait_pct", "proc/cpu_pct", "proc/children_cpu_pct")
    )
    # Most samples lack the wait, which is measured once a second.
    demanded = (np.nan_to_num(ran) + np.nan_to_num(children) + waited)[np.isfinite(waited)]
    return float(np.minimum(demanded, 1.0).mean()) if len(demanded) else None


def during_validation(samples: Table, epochs: Table) -> NDArray[np.bool_]:
    """Return for each sample whether it was taken in a validation after the steps of an epoch."""
    if not len(samples):
        return np.zeros(0, bool)
    sampled = np.asarray(samples["time"], dtype=float)
    ends = np.asarray(epochs["time"], dtype=float)
    validation_s, callbacks_s = (
        np.nan_to_num(np.asarray(epochs[name], dtype=float)) if name in epochs else np.zeros(len(ends))
        for name in BETWEEN_EPOCHS.values()
    )
    ends = ends - callbacks_s  # The callbacks follow the validation.
    epoch = np.searchsorted(ends, sampled)
    inside: NDArray[np.bool_] = epoch < len(ends)
    inside[inside] = sampled[inside] >= (ends - validation_s)[epoch[inside]]
    return inside


def during(samples: Table, batches: Table, steady: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each sample whether it was taken in one of the `steady` steps of `batches`.

    The time between two steps, as that of a validation, belongs to none of them.
    """
    if not len(samples):
        return np.zeros(0, bool)
    ends, sampled = (np.asarray(table["time"], dtype=float) for table in (batches, samples))
    # A sample belongs to the first step that ends after it, if this step had begun.
    step = np.searchsorted(ends, sampled)
    inside = step < len(steady)
    step = step[inside]
    begins = ends[step] - np.asarray(batches["step/time_ms"], dtype=float)[step] / 1000
    inside[inside] = steady[step] & (sampled[inside] >= begins)
    return inside
