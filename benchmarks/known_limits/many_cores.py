"""Trainings as if on a machine of 64 cores with a GPU, for `benchmarks.verdicts`: only the monitor's numbers are made.

A job has stages of an input with known times, so its slowest stage is known. The numbers follow from these times: a
stage with `threads` threads makes `threads / (cpu_s + disk_s + network_s)` batches a second, and all stages together
make as many as the slowest one, the steps or the cores allow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.known_limits.jobs import Job
from pipeline.monitor.limits import Limit
from pipeline.monitor.verdict import Verdict, diagnose

CORES = 64
STEPS, SAMPLES = 400, 100
STEP_S = 0.1
LOCKED = {"monitor/tick_late_ms": 5.0}
"""Samples beside Python code that holds the interpreter's lock."""


@dataclass(frozen=True)
class Stage:
    """A stage of an input: seconds of one thread for a batch, and the bytes of a batch that it reads."""

    cpu_s: float
    threads: int = CORES
    disk_s: float = 0.0
    network_s: float = 0.0
    disk_bytes: float = 0.0
    network_bytes: float = 0.0

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.threads / (self.cpu_s + self.disk_s + self.network_s)


@dataclass(frozen=True)
class ManyCores:
    """A job on 64 cores."""

    job: Job
    stages: tuple[Stage, ...]
    others: float = 0.0
    """Cores that other programs keep busy."""
    usable: float = CORES
    """Cores that the container may use."""
    kernels: float = 1.0
    """Share of a step in which a kernel runs."""
    gradients_Bps: float = 0.0
    """Bytes a second that the servers of a training exchange."""
    waits_ms: tuple[float, ...] = ()
    """The waits of the steps, if they are not all alike. They take turns."""
    seen: Mapping[str, float] = field(default_factory=dict)
    """Further columns of samples."""

    @property
    def rate(self) -> float:
        """Steps a second."""
        of_cores = min(self.usable, CORES - self.others) / (sum(stage.cpu_s for stage in self.stages) + STEP_S)
        return min(1 / STEP_S, of_cores, *(stage.rate for stage in self.stages))

    def verdict(self) -> Verdict:
        """Return the verdict on the numbers that the monitor would read."""
        samples = {
            "time": np.linspace(0, STEPS / self.rate, SAMPLES),
            **{name: np.full(SAMPLES, value) for name, value in self._sample().items()},
        }
        return diagnose(self._batches(), samples)

    def _batches(self) -> dict[str, Any]:
        waits = np.resize(self.waits_ms or (1000 / self.rate - 1000 * STEP_S,), STEPS)
        return {
            "time": np.arange(1, STEPS + 1) / self.rate,
            "input/wait_ms": waits,
            "input/ready_pct": np.where(waits > 0, 0.0, 100.0),
            "step/compute_ms": np.full(STEPS, 1000 * STEP_S),
            "step/time_ms": waits + 1000 * STEP_S,
            "epoch": np.ones(STEPS),
            "first": np.arange(STEPS) == 0,
        }

    def _sample(self) -> dict[str, float]:
        rate, stages = self.rate, self.stages
        # A thread of the training loop works during each step.
        own = rate * (sum(stage.cpu_s for stage in stages) + STEP_S)
        on_disk = rate * sum(stage.disk_s for stage in stages)
        is_full = own + self.others >= 0.95 * CORES
        return {
            "sys/cores": CORES,
            "proc/cores": CORES,
            "sys/cpu_pct": 100 * (own + self.others) / CORES,
            "sys/cpu_max_core_pct": 100.0,
            "sys/net_recv_Bps": self.gradients_Bps + rate * sum(stage.network_bytes for stage in stages),
            "sys/net_sent_Bps": self.gradients_Bps,
            "proc/cpu_pct": 100 * own,
            "proc/busiest_thread_pct": 100 * max(rate * stage.cpu_s / stage.threads for stage in stages),
            "proc/core_wait_pct": 100.0 * CORES if is_full else 0.0,
            "proc/disk_wait_pct": 100 * max(rate * stage.disk_s / stage.threads for stage in stages),
            "proc/read_Bps": rate * sum(stage.disk_bytes for stage in stages),
            "proc/major_faults_per_s": 0.0,
            # The kernel weighs stalls by the cores that have something to do.
            "pressure/io_some_pct": 100 * on_disk / (own + self.others + on_disk),
            "pressure/memory_some_pct": 0.0,
            "gpu/0/util_pct": 100 * rate * STEP_S * self.kernels,
            "monitor/tick_late_ms": 0.1,
            **({"cgroup/cpu_limit_cores": self.usable} if self.usable < CORES else {}),
            **self.seen,
        }


def _job(name: str, *limits: Limit, also: frozenset[Limit] = frozenset()) -> Job:
    return Job(name, frozenset(limits), also=also)


_DECODE = Stage(cpu_s=0.6)
_IN_TURN = Stage(cpu_s=0.25, threads=1)
_FAST_DISK = Stage(cpu_s=0.02, threads=8, disk_s=0.1, disk_bytes=3e7)
MANY_CORES = (
    ManyCores(_job("fast input", Limit.COMPUTE), (_DECODE,)),
    ManyCores(_job("decoding on all cores", Limit.DECODING), (Stage(cpu_s=12),)),
    ManyCores(_job("decoding on all cores, from a fast disk", Limit.DECODING), (_FAST_DISK, Stage(cpu_s=12))),
    ManyCores(_job("serial stage beside decoding, nothing read", Limit.SERIAL), (_DECODE, _IN_TURN)),
    ManyCores(_job("serial stage, from a fast disk", Limit.SERIAL), (_FAST_DISK, _DECODE, _IN_TURN)),
    ManyCores(
        _job("serial stage beside gradients of other servers", Limit.SERIAL), (_DECODE, _IN_TURN), gradients_Bps=1e9
    ),
    ManyCores(
        # Idle cores look the same, whether a serial stage or the decoding leaves them idle.
        _job("serial stage beside decoding on half of the cores", Limit.SERIAL, also=frozenset({Limit.DECODING})),
        (Stage(cpu_s=8), _IN_TURN),
    ),
    ManyCores(_job("pool of eight threads", Limit.SERIAL), (Stage(cpu_s=1.6, threads=8),)),
    ManyCores(_job("Python generator", Limit.ONE_CORE), (_DECODE, _IN_TURN), seen=LOCKED),
    ManyCores(_job("serial stage beside little decoding", Limit.SERIAL), (Stage(cpu_s=0.05), _IN_TURN)),
    ManyCores(_job("slow disk", Limit.READING), (Stage(0.02, 8, disk_s=4, disk_bytes=3e7), _DECODE)),
    ManyCores(
        _job("slow disk beside decoding on a third of the cores", Limit.READING),
        (Stage(0.02, 8, disk_s=2, disk_bytes=3e7), Stage(cpu_s=5)),
    ),
    ManyCores(_job("slow file server", Limit.READING), (Stage(0.02, 8, disk_s=4, network_bytes=3e7), _DECODE)),
    ManyCores(_job("slow bucket", Limit.READING), (Stage(0.02, 8, network_s=20, network_bytes=3e7), _DECODE)),
    ManyCores(
        # The network may bring as much as the input needs, or a stage may take no more.
        _job("slow bucket beside decoding", Limit.READING, also=frozenset({Limit.SERIAL})),
        (Stage(0.02, 8, network_s=2, network_bytes=3e7), _DECODE),
    ),
    ManyCores(_job("lock in the input", Limit.WAITING), (Stage(0.02, threads=1, network_s=0.4),)),
    ManyCores(_job("pauses that a buffer bridges", Limit.BUFFER), (_DECODE,), waits_ms=(0, 0, 0, 0, 300)),
    ManyCores(_job("decoding that leaves no core to the step", Limit.LATE_KERNELS), (Stage(cpu_s=6.2),), kernels=0.4),
    ManyCores(
        _job("quota of 8 cores", Limit.CPU_QUOTA, also=frozenset({Limit.DECODING})),
        (Stage(cpu_s=4),),
        usable=8,
        seen={"cgroup/cpu_throttled_pct": 70.0},
    ),
    ManyCores(_job("other programs on 50 cores", Limit.OTHER_PROGRAMS), (Stage(cpu_s=6),), others=50),
)
