"""The verdict as a table: what limits a training by its times and its load, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.monitor.verdict import Limit, Verdict, diagnose, diagnose_run, diagnose_servers

STEPS = 200
PERIOD_S = 0.1


def batches(wait: float | list[float], compute: float, host: float = 0.0, steps: int = STEPS) -> dict[str, Any]:
    """So many steady steps of one epoch, in ms, and a first one that took a minute of each; ``wait`` is repeated."""
    waits = np.append(60_000, np.resize(np.asarray(wait, dtype=float), steps))
    computes, hosts = (np.append(60_000, np.full(steps, each)) for each in (compute, host))
    return {
        "time": 1000 + PERIOD_S * np.arange(steps + 1),
        "input/wait_ms": waits,
        "step/compute_ms": computes,
        "step/time_ms": waits + computes + hosts,
        "epoch": np.ones(steps + 1),
        "first": np.append(1, np.zeros(steps)),
    }


def samples(**means: float) -> dict[str, Any]:
    """A sample every two steps; the names as in a record, but `_` for `/` where it comes first."""
    times = 1000 + 2 * PERIOD_S * np.arange(STEPS // 2)
    columns = {name.replace("_", "/", 1): np.full(len(times), value) for name, value in means.items()}
    return {"time": times, "step": np.zeros(len(times)), **columns}


def verdict(of: dict[str, Any], **means: float) -> Verdict:
    return diagnose(of, samples(**means), cores=16)


IDLE = {"sys_cpu_pct": 12.0, "sys_cpu_max_core_pct": 40.0, "pressure_io_some_pct": 1.0}
BURSTS = [0.0, 0.0, 0.0, 0.0, 400.0]


@pytest.mark.parametrize(
    ("of", "means", "limit"),
    [
        (batches(4, 96), IDLE, Limit.COMPUTE),
        (batches(4, 96), {"sys_cpu_pct": 99.0, "pressure_io_some_pct": 60.0}, Limit.COMPUTE),
        (batches(0, 100), {}, Limit.COMPUTE),
        (batches(41, 59), {"sys_cpu_pct": 98.0}, Limit.DECODING),
        (batches(41, 59), {"sys_cpu_pct": 20.0, "cgroup_cpu_pct": 97.0}, Limit.DECODING),
        (batches(41, 59), {**IDLE, "cgroup_cpu_throttled_pct": 35.0}, Limit.DECODING),
        (batches(41, 59), {"sys_cpu_pct": 65.0, "sys_cpu_max_core_pct": 75.0}, Limit.DECODING),
        # All cores and the disk: more of the disk would find no core.
        (batches(41, 59), {"sys_cpu_pct": 98.0, "pressure_io_some_pct": 60.0}, Limit.DECODING),
        (batches(41, 59), {**IDLE, "pressure_io_some_pct": 21.0}, Limit.READING),
        (batches(41, 59), {**IDLE, "sys_disk_busy_pct": 95.0}, Limit.READING),
        (batches(BURSTS, 59), {**IDLE, "pressure_io_some_pct": 50.0}, Limit.READING),
        (batches(41, 59), IDLE, Limit.READING),  # it waits for something that is no core and no disk: a slow server
        (batches(41, 59), {}, Limit.READING),
        (batches(BURSTS, 59), IDLE, Limit.BUFFER),
        (batches(BURSTS, 59), {"sys_cpu_pct": 95.0}, Limit.DECODING),
        (batches(41, 59), {**IDLE, "sys_cpu_max_core_pct": 97.0}, Limit.ONE_CORE),
        (batches(BURSTS, 59), {**IDLE, "sys_cpu_max_core_pct": 97.0}, Limit.ONE_CORE),
        (batches(1, 59, host=40), {"sys_cpu_pct": 98.0}, Limit.HOST),
        (batches(30, 59, host=40), {"sys_cpu_pct": 98.0}, Limit.HOST),
        (batches(40, 59, host=30), {"sys_cpu_pct": 98.0}, Limit.DECODING),
        (batches(6, 94), {"sys_cpu_pct": 98.0}, Limit.DECODING),
        (batches(41, 59, steps=9), {"sys_cpu_pct": 98.0}, Limit.UNKNOWN),
    ],
)
def test_limit(of: dict[str, Any], means: dict[str, float], limit: Limit) -> None:
    assert verdict(of, **means).limit is limit


@pytest.mark.parametrize(
    ("of", "means", "sentence"),
    [
        (
            batches(41, 59, steps=9),
            {},
            "Not enough steps to say: 9 in the steady state, at least 10 are needed.",
        ),
        (
            batches(0, 2345),
            {},
            "Compute-bound: 100% of the step time is computing, 0.0% waiting for data (2,345 ms a step, 200 steps).",
        ),
        (
            batches(0, 100),
            {"sys_cpu_pct": 100.0, "proc_cpu_pct": 400.0},
            "Compute-bound: 100% of the step time is computing, 0.0% waiting for data (100 ms a step, 200 steps); "
            "there is no GPU; 16.0 of 16 cores were busy, 12.0 of them with other programs.",
        ),
        (
            batches(4, 96),
            {"gpu_0/util_pct": 90.0, "gpu_1/util_pct": 96.0},
            "Compute-bound: 96% of the step time is computing, 4.0% waiting for data (100 ms a step, 200 steps); the "
            "GPU was 93% busy.",
        ),
        (
            batches(41, 59),
            {"sys_cpu_pct": 98.0, "gpu_0/util_pct": 50.0},
            "Input-bound by decoding: 41% of the step time is waiting for data (41 of 100 ms a step, 200 steps); the "
            "GPU was 50% busy; 15.7 of 16 cores were busy; without any wait a step would be at most 1.69 times faster.",
        ),
        (
            batches(20, 80),
            {"sys_cpu_pct": 98.0},
            "Waiting moderately, for decoding: 20% of the step time is waiting for data (20 of 100 ms a step, 200 "
            "steps); 15.7 of 16 cores were busy; without any wait a step would be at most 1.25 times faster; without "
            "a GPU, training computes on the cores that decode, and less than that can be won.",
        ),
        (
            batches(41, 59),
            {"cgroup_cpu_pct": 99.0, "cgroup_cpu_limit_cores": 2.0, "cgroup_cpu_throttled_pct": 30.0},
            "Input-bound by decoding: 41% of the step time is waiting for data (41 of 100 ms a step, 200 steps); 2.0 "
            "of 2 cores were busy, held back by the container's limit in 30% of the time; without any wait a step "
            "would be at most 1.69 times faster; without a GPU, training computes on the cores that decode, and less "
            "than that can be won.",
        ),
        (
            batches(41, 59),
            {"sys_cpu_pct": 100.0, "proc_cpu_pct": 150.0, "proc_children_cpu_pct": 800.0, "gpu_0/util_pct": 50.0},
            "Input-bound by decoding: 41% of the step time is waiting for data (41 of 100 ms a step, 200 steps); the "
            "GPU was 50% busy; 16.0 of 16 cores were busy, 6.5 of them with other programs; without any wait a step "
            "would be at most 1.69 times faster.",
        ),
        (
            batches(100, 0),
            {**IDLE, "pressure_io_some_pct": 88.0, "sys_net_recv_Bps": 2e7},
            "Input-bound by reading: 100% of the step time is waiting for data (100 of 100 ms a step, 200 steps); 1.9 "
            "of 16 cores were busy; somebody stood still for a disk in 88% of the time; 20.0 MB a second came over "
            "the network; without any wait a step would be at most a hundred or more times faster.",
        ),
        (
            batches(BURSTS, 120),
            IDLE,
            "Input-bound by a too small buffer: 40% of the step time is waiting for data (80 of 200 ms a step, 200 "
            "steps); 1.9 of 16 cores were busy; most steps find their batch ready, and the others wait the longer; "
            "without any wait a step would be at most 1.67 times faster.",
        ),
        (
            batches(41, 59),
            {**IDLE, "sys_cpu_max_core_pct": 97.0},
            "Input-bound by what runs on one core: 41% of the step time is waiting for data (41 of 100 ms a step, 200 "
            "steps); 1.9 of 16 cores were busy; the busiest one 97%; without any wait a step would be at most 1.69 "
            "times faster.",
        ),
        (
            batches(1, 59, host=40),
            {},
            "Host-bound: 40% of the step time is the loop itself, checkpoints included (100 ms a step, 200 steps).",
        ),
        (
            batches(1, 84, host=15),
            {},
            "The loop itself takes a moderate share: 15% of the step time is the loop itself, checkpoints included "
            "(100 ms a step, 200 steps).",
        ),
    ],
)  # fmt: skip
def test_sentence(of: dict[str, Any], means: dict[str, float], sentence: str) -> None:
    assert verdict(of, **means).sentence == sentence


def test_samples_of_a_validation_and_of_first_steps_say_nothing() -> None:
    of = batches(41, 59)
    of["epoch"][101:] = 2
    of["time"][101:] += 50  # a validation of 50 s, then a first step of the epoch
    at = samples(sys_cpu_pct=10.0)
    at["time"] = np.linspace(1000.05, of["time"][-1], 700)
    at["sys/cpu_pct"] = np.where((at["time"] > of["time"][100]) & (at["time"] <= of["time"][101]), 100.0, 10.0)
    found = diagnose(of, at, cores=16)
    assert found.load.cpu == pytest.approx(10.0)
    assert found.limit is Limit.READING


def test_of_several_servers_the_one_that_waits_most_is_named() -> None:
    busy, waiting = (batches(1, 99), samples(sys_cpu_pct=50.0)), (batches(41, 59), samples(sys_cpu_pct=95.0))
    found = diagnose_servers({0: busy, 1: waiting})
    assert found.limit is Limit.DECODING
    assert found.sentence.startswith("Server 1 waits most. Input-bound by decoding: 41%")
    assert diagnose_servers({0: busy}) == diagnose(*busy)


def test_a_run_is_judged_by_the_records_of_all_its_servers(tmp_path: Path) -> None:
    for server, of in {"": batches(1, 99), "servers/1": batches(41, 59)}.items():
        sink = RecordSink(tmp_path / server / "record")
        names = [name for name in of if name != "time"]
        for row in range(STEPS + 1):
            sink.write(Row("batches", of["time"][row], row, {name: of[name][row] for name in names}))
        sink.close()
    assert diagnose_run(tmp_path).sentence.startswith("Server 1 waits most. Input-bound by reading: 41%")


def test_a_sample_that_lacks_a_value_does_not_count_for_it() -> None:
    at = samples(sys_cpu_pct=90.0)
    at["sys/cpu_pct"][::2] = np.nan
    assert diagnose(batches(41, 59), at).load.cpu == 90.0
