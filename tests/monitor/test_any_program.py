"""The verdict on a program without visible steps."""

import pandas
import pytest

from pipeline.monitor.any_program import UNKNOWN_FROM_OUTSIDE, diagnose_from_outside
from pipeline.monitor.limits import Limit

IDLE = {
    "sys/cores": 4.0,
    "proc/cores": 4.0,
    "sys/cpu_pct": 5.0,
    "proc/cpu_pct": 10.0,
    "proc/busiest_thread_pct": 10.0,
    "proc/core_wait_pct": 0.0,
    "proc/read_Bps": 0.0,
    "proc/major_faults_per_s": 0.0,
    "pressure/io_some_pct": 1.0,
    "pressure/memory_some_pct": 0.0,
    "sys/net_recv_Bps": 2e6,
}
BUSY = {"sys/cpu_pct": 95.0, "proc/cpu_pct": 370.0, "proc/busiest_thread_pct": 95.0}
BESIDE_OTHERS = {"sys/cpu_pct": 100.0, "proc/cpu_pct": 100.0, "proc/core_wait_pct": 200.0}


@pytest.mark.parametrize(
    ("changed", "limits", "sentence"),
    [
        (
            {},
            [],
            "Nothing on this machine limits this program, so it waits for a server, a lock or a timer",
        ),
        (BUSY, [Limit.DECODING], "Limited by its own work on all cores: it kept 3.7 of 4 cores busy"),
        ({"proc/busiest_thread_pct": 99.0, "proc/cpu_pct": 100.0}, [Limit.SERIAL], "its own work on one core"),
        (BESIDE_OTHERS, [Limit.OTHER_PROGRAMS], "Limited by other programs: it kept 1.0 of 4 cores busy"),
        ({"pressure/io_some_pct": 70.0, "proc/read_Bps": 1e8}, [Limit.READING], "Limited by the disk"),
        ({"pressure/io_some_pct": 70.0}, [], "Nothing on this machine"),  # It reads nothing itself. Other programs do.
        ({"pressure/io_some_pct": 95.0, "proc/children_read_Bps": 1e8}, [Limit.READING], "Limited by the disk"),
        # Reads of a network file system count for no process.
        ({"pressure/io_some_pct": 9.0, "proc/disk_wait_pct": 70.0}, [Limit.READING], "Limited by the disk"),
        ({"proc/cpu_pct": 100.0}, [Limit.SERIAL], "its own work on one core"),
        ({"cgroup/cpu_throttled_pct": 60.0}, [Limit.CPU_QUOTA], "the CPU quota of its container"),
        ({**BUSY, "gpu/0/util_pct": 90.0}, [Limit.COMPUTE], "Limited by the GPU: the GPU was 90% busy"),
        ({**BUSY, "gpu/0/util_pct": 9.0}, [Limit.DECODING], "the GPU was 9% busy"),
        (
            {"pressure/memory_some_pct": 40.0, "proc/major_faults_per_s": 900.0},
            [Limit.MEMORY],
            "Limited by too little memory",
        ),
        (
            {**BUSY, "pressure/io_some_pct": 70.0, "proc/read_Bps": 1e8},
            [Limit.DECODING, Limit.READING],
            "Limited by its own work on all cores and the disk",
        ),
    ],
)
def test_the_verdict_names_the_exhausted_resource(
    changed: dict[str, float], limits: list[Limit], sentence: str
) -> None:
    samples = pandas.DataFrame([{"time": float(second), **IDLE, **changed} for second in range(10)])
    judged = diagnose_from_outside(samples)
    assert list(judged.limits) == limits, judged.sentence
    assert sentence in judged.sentence
    assert judged.sentence.endswith(f"{UNKNOWN_FROM_OUTSIDE}.")


def test_a_record_without_samples_has_no_verdict() -> None:
    judged = diagnose_from_outside(pandas.DataFrame({"time": []}))
    assert (judged.limits, judged.sentence) == ((), "Not enough samples to say what limits this program.")
