"""The verdict: the limits of a training for given times and loads, and the sentence that describes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.monitor.limits import Limit
from pipeline.monitor.load import Load
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.monitor.verdict import Verdict, about_reading, diagnose, diagnose_run, diagnose_server, slowest_server

STEPS = 200
PERIOD_S = 0.1


def batches(wait: float | list[float], compute: float, host: float = 0.0, steps: int = STEPS) -> dict[str, Any]:
    """Return columns of an epoch in ms: a first step with a minute per part, then steady steps. `wait` is repeated."""
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


def ready(of: dict[str, Any], percents: list[float]) -> dict[str, Any]:
    """Return the steps with the percentage of ready batches at each step. `percents` is repeated."""
    return {**of, "input/ready_pct": np.append(0, np.resize(np.asarray(percents, dtype=float), len(of["time"]) - 1))}


def samples(**means: float) -> dict[str, Any]:
    """Return a sample every two steps. In the names, the first `_` stands for the `/` of the record."""
    times = 1000 + 2 * PERIOD_S * np.arange(STEPS // 2)
    means = {"sys_cores": 16.0, **means}
    columns = {name.replace("_", "/", 1): np.full(len(times), value) for name, value in means.items()}
    return {"time": times, "step": np.zeros(len(times)), **columns}


def verdict(of: dict[str, Any], **means: float) -> Verdict:
    return diagnose(of, samples(**means))


IDLE = {
    "sys_cpu_pct": 12.0,
    "sys_cpu_max_core_pct": 40.0,
    "pressure_io_some_pct": 1.0,
    "proc_cpu_pct": 150.0,
    "proc_busiest_thread_pct": 40.0,
    "proc_core_wait_pct": 2.0,
    "monitor_tick_late_ms": 0.2,
}
DECODES = {
    **IDLE,
    "sys_cpu_pct": 98.0,
    "sys_cpu_max_core_pct": 100.0,
    "proc_cpu_pct": 1560.0,
    "proc_core_wait_pct": 900.0,
}
OTHERS = {**IDLE, "sys_cpu_pct": 100.0, "sys_cpu_max_core_pct": 100.0, "monitor_tick_late_ms": 6.0}
"""Other programs use 14.5 of 16 cores, but the training does not need more cores."""
STARVED = {**OTHERS, "proc_core_wait_pct": 1200.0, "proc_busiest_thread_pct": 99.0}
FOREIGN_DISK = {"sys_disk_busy_pct": 99.0, "pressure_io_some_pct": 90.0, "proc_read_Bps": 100.0}
OWN_DISK = {"sys_disk_busy_pct": 99.0, "pressure_io_some_pct": 90.0, "proc_read_Bps": 3e6}
NOTHING_READ = {"proc_read_Bps": 0.0, "proc_disk_wait_pct": 0.0, "sys_net_recv_Bps": 1e4}
BURSTS = [0.0, 0.0, 0.0, 0.0, 400.0]


@pytest.mark.parametrize(
    ("of", "means", "limits"),
    [
        (batches(4, 96), IDLE, [Limit.COMPUTE]),
        (batches(0, 100), {}, [Limit.COMPUTE]),
        (batches(4, 96), {**IDLE, **OWN_DISK}, [Limit.COMPUTE]),
        (batches(4, 96), OTHERS, [Limit.COMPUTE]),  # a device computes, so the host is not needed
        (batches(4, 96), STARVED, [Limit.OTHER_PROGRAMS]),  # the host computes, and lacks cores
        (batches(4, 96), {**STARVED, "gpu_0/util_pct": 90.0}, [Limit.COMPUTE]),
        ({**batches(4, 96), "step/simulated": np.ones(STEPS + 1)}, STARVED, [Limit.COMPUTE]),
        # A serial map runs on many threads, one at a time.
        (batches(90, 10), {**IDLE, **NOTHING_READ, "proc_cpu_pct": 100.0}, [Limit.SERIAL]),
        # In 40% of the time, no thread needed a core, so the training waited for something else.
        (batches(80, 20), {**OTHERS, "proc_cpu_pct": 20.0, "proc_core_wait_pct": 40.0}, [Limit.READING]),
        (batches(4, 96), {**STARVED, "gpu_0/util_pct": 20.0}, [Limit.OTHER_PROGRAMS]),
        (batches(4, 96), {**IDLE, "cgroup_cpu_throttled_pct": 60.0}, [Limit.CPU_QUOTA]),
        (batches(4, 96), {**IDLE, "step_python_calls": 2.0}, [Limit.COMPUTE]),
        (batches(41, 59), {}, [Limit.UNKNOWN]),
        (batches(41, 59), IDLE, [Limit.READING]),  # neither a core nor a disk is busy, so it waits for a slow server
        (batches(41, 59), OTHERS, [Limit.READING]),
        (batches(41, 59), {**OTHERS, **FOREIGN_DISK}, [Limit.READING]),
        (batches(41, 59), {**OTHERS, **OWN_DISK}, [Limit.READING]),
        (batches(41, 59), {**IDLE, **OWN_DISK}, [Limit.READING]),
        (batches(BURSTS, 59), {**IDLE, **OWN_DISK}, [Limit.READING]),
        (batches(41, 59), {**IDLE, "pressure_io_some_pct": 21.0}, [Limit.READING]),
        (batches(41, 59), {"sys_cpu_pct": 98.0}, [Limit.DECODING]),
        (batches(41, 59), DECODES, [Limit.DECODING]),
        (batches(6, 94), DECODES, [Limit.DECODING]),
        (batches(BURSTS, 59), DECODES, [Limit.DECODING]),
        (batches(41, 59), {**DECODES, **OWN_DISK}, [Limit.DECODING, Limit.READING]),
        (batches(41, 59), {**DECODES, **FOREIGN_DISK}, [Limit.DECODING]),
        (
            batches(41, 59),
            {**IDLE, "sys_cpu_pct": 65.0, "proc_cpu_pct": 1000.0},
            [Limit.DECODING, Limit.READING, Limit.SERIAL],
        ),
        (
            batches(90, 10),
            {**STARVED, "proc_cpu_pct": 45.0, "proc_core_wait_pct": 55.0},
            [Limit.OTHER_PROGRAMS, Limit.SERIAL],
        ),
        # The lock of Python could be the limit too, because its threads also wait for cores.
        (batches(41, 59), STARVED, [Limit.OTHER_PROGRAMS]),
        (
            batches(41, 59),
            {**DECODES, "proc_cpu_pct": 400.0, "cgroup_cpu_limit_cores": 4.0, "cgroup_cpu_throttled_pct": 90.0},
            [Limit.CPU_QUOTA, Limit.DECODING],
        ),
        (
            batches(41, 59),
            {**IDLE, "pressure_memory_some_pct": 40.0, "proc_major_faults_per_s": 300.0},
            [Limit.MEMORY],
        ),
        # Other programs lack memory. The training has no page faults.
        (
            batches(41, 59),
            {**IDLE, "pressure_memory_some_pct": 40.0, "proc_major_faults_per_s": 0.0},
            [Limit.READING],
        ),
        (batches(41, 59), {**IDLE, "proc_busiest_thread_pct": 97.0}, [Limit.SERIAL]),
        (batches(BURSTS, 59), {**IDLE, "proc_busiest_thread_pct": 97.0}, [Limit.SERIAL]),
        # Another program uses one core.
        (batches(41, 59), {**IDLE, "sys_cpu_max_core_pct": 100.0}, [Limit.READING]),
        # One of the 12 threads that decode is a little busier than the others.
        (
            batches(41, 59),
            {**IDLE, "sys_cpu_pct": 65.0, "proc_cpu_pct": 1000.0, "proc_busiest_thread_pct": 90.0},
            [Limit.DECODING, Limit.READING, Limit.SERIAL],
        ),
        (
            batches(41, 59),
            {**IDLE, **NOTHING_READ, "sys_cpu_pct": 65.0, "proc_cpu_pct": 1000.0},
            [Limit.DECODING, Limit.SERIAL],
        ),
        # Nothing is read. The input works, or it sleeps. Without a GPU, the steps may do the work.
        (batches(41, 59), {**IDLE, **NOTHING_READ, "gpu_0/util_pct": 50.0, "proc_cpu_pct": 300.0}, [Limit.SERIAL]),
        (batches(41, 59), {**IDLE, **NOTHING_READ, "gpu_0/util_pct": 50.0, "proc_cpu_pct": 40.0}, [Limit.WAITING]),
        (batches(41, 59), {**IDLE, **NOTHING_READ}, [Limit.SERIAL, Limit.WAITING]),
        # The same with signs of reading: a thread waits for a disk, or bytes come from a bucket.
        (batches(41, 59), {**IDLE, **NOTHING_READ, "proc_disk_wait_pct": 90.0}, [Limit.READING]),
        (batches(41, 59), {**IDLE, **NOTHING_READ, "sys_net_recv_Bps": 2e6}, [Limit.READING]),
        # The readers wait for a disk most of the time, but not always.
        (
            batches(41, 59),
            {**IDLE, **OWN_DISK, "proc_disk_wait_pct": 60.0, "proc_cpu_pct": 300.0, "gpu_0/util_pct": 50.0},
            [Limit.READING, Limit.SERIAL],
        ),
        (
            batches(41, 59),
            {**IDLE, **OWN_DISK, "proc_disk_wait_pct": 30.0, "sys_net_recv_Bps": 0.0}
            | {"proc_cpu_pct": 300.0, "gpu_0/util_pct": 50.0},
            [Limit.SERIAL],
        ),
        # Servers exchange gradients.
        (
            batches(41, 59),
            {**IDLE, **NOTHING_READ, "proc_cpu_pct": 40.0, "sys_net_recv_Bps": 2e9, "sys_net_sent_Bps": 2e9},
            [Limit.WAITING],
        ),
        # Several threads pass the lock of Python to each other.
        (batches(41, 59), {**IDLE, "proc_cpu_pct": 104.0, "monitor_tick_late_ms": 7.0}, [Limit.ONE_CORE]),
        # The kernel does not report threads.
        (batches(41, 59), {"sys_cpu_pct": 9.0, "sys_cpu_max_core_pct": 97.0}, [Limit.SERIAL]),
        (batches(BURSTS, 120), IDLE, [Limit.READING, Limit.BUFFER]),  # the ready batches were not counted
        (ready(batches(BURSTS, 120), [100, 100, 100, 100, 0]), IDLE, [Limit.BUFFER]),
        (ready(batches(BURSTS, 120), [80, 60, 40, 20, 0]), IDLE, [Limit.READING]),  # never full, so the input is slow
        # The pauses are longer than the buffer.
        (ready(batches(BURSTS, 59), [100, 100, 50, 20, 0]), IDLE, [Limit.READING]),
        (batches(1, 91, host=8), IDLE, [Limit.COMPUTE]),  # normal host time of a short step
        (batches(1, 87, host=12), IDLE, [Limit.HOST]),
        (batches(1, 59, host=40), IDLE, [Limit.HOST]),
        (batches(1, 59, host=40), OTHERS, [Limit.HOST]),
        (batches(1, 59, host=40), STARVED, [Limit.OTHER_PROGRAMS, Limit.HOST]),
        (batches(30, 59, host=40), DECODES, [Limit.HOST, Limit.DECODING]),
        (batches(40, 59, host=30), DECODES, [Limit.DECODING, Limit.HOST]),
        (batches(40, 59, host=10), DECODES, [Limit.DECODING]),
        (batches(41, 59, steps=9), DECODES, [Limit.UNKNOWN]),
    ],
)
def test_the_verdict_names_the_limits(of: dict[str, Any], means: dict[str, float], limits: list[Limit]) -> None:
    assert list(verdict(of, **means).limits) == limits


@pytest.mark.parametrize(
    ("means", "limits"),
    [
        ({**IDLE, "proc_cpu_pct": 100.0}, [Limit.PYTHON]),
        (DECODES, [Limit.COMPUTE]),  # the step uses all cores, so its Python code is no bottleneck
        ({**IDLE, "gpu_0/util_pct": 95.0}, [Limit.COMPUTE]),
        ({**IDLE, "gpu_0/util_pct": 10.0}, [Limit.PYTHON]),
    ],
)
def test_python_code_in_the_step_can_be_the_limit(means: dict[str, float], limits: list[Limit]) -> None:
    of = {**batches(1, 99), "step/python_calls": np.full(STEPS + 1, 2.0)}
    assert list(verdict(of, **means).limits) == limits


@pytest.mark.parametrize(
    ("means", "limit"),
    [
        ({**DECODES, "gpu_0/util_pct": 30.0}, Limit.LATE_KERNELS),
        ({**DECODES, "gpu_0/util_pct": 90.0}, Limit.COMPUTE),
        ({**IDLE, "gpu_0/util_pct": 30.0}, Limit.COMPUTE),
        (DECODES, Limit.COMPUTE),  # without a GPU, the step itself uses the cores
    ],
)
def test_kernels_start_late_beside_busy_cores_and_ready_batches(means: dict[str, float], limit: Limit) -> None:
    assert verdict(batches(1, 99), **means).limits == (limit,)


@pytest.mark.parametrize(
    ("epochs", "limits", "sentence"),
    [
        (
            {"epoch/validation_s": [1.0], "epoch/callbacks_s": [110.0]},
            [Limit.CALLBACKS],
            "Callback-bound: 84% of the time is work of callbacks between epochs (100 ms a step, 200 steps)",
        ),
        ({"epoch/validation_s": [30.0]}, [Limit.VALIDATION], "Validation-bound: 60% of the time is validation (100 ms"),
        ({"epoch/validation_s": [4.0]}, [Limit.COMPUTE], "; 17% of the time is validation"),
        ({"epoch/validation_s": [0.5]}, [Limit.COMPUTE], "Compute-bound: 100% of the step time is computing"),
    ],
)
def test_time_between_epochs_can_be_the_limit(
    epochs: dict[str, list[float]], limits: list[Limit], sentence: str
) -> None:
    judged = diagnose(batches(0, 100), samples(**IDLE), epochs={**epochs, "time": [1030.0]})
    assert list(judged.limits) == limits
    assert sentence in judged.sentence


SLOWED = {"sys_cores": 2.0, "sys_cpu_pct": 100.0, "proc_cpu_pct": 50.0, "proc_core_wait_pct": 150.0}
"""Of the two cores that a validation would use, other programs have one and a half."""


@pytest.mark.parametrize(
    ("validation_s", "limits"),
    [
        (5.5, [Limit.COMPUTE]),  # 5% of the time without other programs
        (9.0, [Limit.OTHER_PROGRAMS]),
        (100.0, [Limit.OTHER_PROGRAMS, Limit.VALIDATION]),
    ],
)
def test_a_validation_that_other_programs_slow_down_is_not_its_own_limit(
    validation_s: float, limits: list[Limit]
) -> None:
    of_steps, of_validation = samples(**{**IDLE, "sys_cores": 2.0}), samples(**SLOWED)
    of_validation["time"] = 1020.5 + validation_s * np.linspace(0, 1, len(of_validation["time"]))
    both = {name: np.append(of_steps.get(name, np.nan * values), values) for name, values in of_validation.items()}
    epochs = {"epoch/validation_s": [validation_s], "time": [1020.5 + validation_s]}
    judged = diagnose(batches(0, 100), both, epochs=epochs)
    assert list(judged.limits) == limits
    has_others = Limit.OTHER_PROGRAMS in limits
    assert ("other programs kept 1.5 of 2 busy; 1.5 threads of this training" in judged.sentence) == has_others


def test_a_callback_is_its_own_limit_whatever_cores_other_programs_hold() -> None:
    of_callback = samples(**SLOWED)
    of_callback["time"] = 1021.5 + 50 * np.linspace(0, 1, len(of_callback["time"]))
    epochs = {"epoch/validation_s": [1.0], "epoch/callbacks_s": [50.0], "time": [1071.5]}
    assert diagnose(batches(0, 100), of_callback, epochs=epochs).limits == (Limit.CALLBACKS,)


@pytest.mark.parametrize(("period", "limit"), [(1, Limit.OTHER_PROGRAMS), (4, Limit.WAITING)])
def test_a_training_that_sleeps_most_of_the_time_is_not_starved(period: int, limit: Limit) -> None:
    """Many threads wait for a core at once, and then none does, as if the answers of a bucket come in bursts."""
    of_waits = samples(**{**NOTHING_READ, "sys_cores": 2.0, "sys_cpu_pct": 100.0, "sys_net_recv_Bps": 0.0})
    number = np.arange(len(of_waits["time"]))
    is_burst = number // 5 % period == 0
    of_waits["proc/cpu_pct"] = is_burst * 20.0 * period
    # It is measured once a second.
    of_waits["proc/core_wait_pct"] = np.where(number % 5 == 0, is_burst * 100.0 * period, np.nan)
    assert diagnose(batches(95, 5), of_waits).limits == (limit,)


def test_checkpoints_are_separated_from_host_time() -> None:
    of = {**batches(0, 60, host=40), "step/checkpoint_ms": np.full(STEPS + 1, 38.0)}
    judged = verdict(of, **IDLE)
    assert judged.limits == (Limit.CHECKPOINTS,)
    assert judged.sentence.startswith("Checkpoint-bound: 38% of the step time is waiting for checkpoints")


def test_the_sentence_mentions_a_long_start() -> None:
    at = samples(**IDLE)
    at["time"] = np.insert(at["time"][1:], 0, 940.0)
    judged = diagnose(batches(0, 100), at)
    assert (
        "start-up and the first step took 75% of the time (60 s, of which 60 s were waiting for the first batch)"
        in judged.sentence
    )
    assert "start-up" not in diagnose(batches(0, 100), at, whole=False).sentence


@pytest.mark.parametrize(
    ("of", "means", "sentence"),
    [
        (
            batches(41, 59, steps=9),
            {},
            "Not enough steps for a verdict: 9 in the steady state, at least 10 are needed.",
        ),
        (
            batches(4, 1),
            {},
            "Not enough time for a verdict: 200 steps in the steady state took 1.0 s, at least 2 s are needed.",
        ),
        (
            batches(0, 2345),
            {},
            "Compute-bound: 100% of the step time is computing, 0% waiting for data (2,345 ms a step, 200 steps).",
        ),
        (
            batches(0, 100),
            OTHERS,
            "Compute-bound: 100% of the step time is computing, 0% waiting for data (100 ms a step, 200 steps); "
            "there is no GPU; this training kept 1.5 of 16 cores busy, and other programs kept 14.5 of 16 busy.",
        ),
        (
            batches(0, 100),
            STARVED,
            "Compute-bound (starved by other programs): 100% of the step time is computing, 0% waiting for data "
            "(100 ms a step, 200 steps); there is no GPU; this training kept 1.5 of 16 cores busy, and other "
            "programs kept 14.5 of 16 busy; 12.0 threads of this training waited for a core.",
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
            "Input-bound (decoding): 41% of the step time is waiting for data (41 of 100 ms a step, 200 steps); the "
            "GPU was 50% busy; 15.7 of 16 cores were busy; without waiting, steps would be at most 1.69 times as "
            "fast.",
        ),
        (
            batches(20, 80),
            DECODES,
            "Moderately input-bound (decoding): 20% of the step time is waiting for data (20 of 100 ms a step, 200 "
            "steps); this training kept 15.6 of 16 cores busy; without waiting, steps would be at most 1.25 times as "
            "fast; the real gain is smaller, because without a GPU the same cores decode and compute.",
        ),
        (
            batches(41, 59),
            {**DECODES, "proc_cpu_pct": 200.0, "cgroup_cpu_limit_cores": 2.0, "cgroup_cpu_throttled_pct": 30.0},
            "Input-bound (the CPU quota and decoding): 41% of the step time is waiting for data (41 of 100 ms a "
            "step, 200 steps); this training kept 2.0 of 2 cores busy, and other programs kept 13.7 of 16 busy; the "
            "CPU limit of the container held it back 30% of the time; without waiting, steps would be at most 1.69 "
            "times as fast; the real gain is smaller, because without a GPU the same cores decode and compute.",
        ),
        (
            batches(100, 0),
            {**IDLE, "pressure_io_some_pct": 88.0, "sys_net_recv_Bps": 2e7},
            "Input-bound (reading): 100% of the step time is waiting for data (100 of 100 ms a step, 200 steps); "
            "this training kept 1.5 of 16 cores busy; tasks were stalled on disk I/O 88% of the time; 20.0 MB a "
            "second came over the network; without waiting, steps would be at most a hundred or more times as fast.",
        ),
        (
            ready(batches(BURSTS, 120), [100, 100, 100, 100, 0]),
            IDLE,
            "Input-bound (too small a buffer): 40% of the step time is waiting for data (80 of 200 ms a step, 200 "
            "steps); this training kept 1.5 of 16 cores busy; most steps find their batch ready, but the other steps "
            "wait long; without waiting, steps would be at most 1.67 times as fast.",
        ),
        (
            batches(41, 59),
            {**IDLE, "proc_busiest_thread_pct": 97.0},
            "Input-bound (a serial stage): 41% of the step time is waiting for data (41 of 100 ms a step, 200 steps); "
            "this training kept 1.5 of 16 cores busy; its busiest thread was busy 97% of the time; without waiting, "
            "steps would be at most 1.69 times as fast.",
        ),
        (
            batches(1, 59, host=40),
            {},
            "Host-bound: 40% of the step time is the training loop itself (100 ms a step, 200 steps).",
        ),
        (
            batches(1, 84, host=15),
            {},
            "Moderately host-bound: 15% of the step time is the training loop itself (100 ms a step, 200 steps).",
        ),
    ],
)  # fmt: skip
def test_the_sentence_describes_the_verdict(of: dict[str, Any], means: dict[str, float], sentence: str) -> None:
    assert verdict(of, **means).sentence == sentence


def test_samples_during_validation_and_first_steps_are_ignored() -> None:
    of = batches(41, 59)
    of["epoch"][101:] = 2
    of["time"][101:] += 50  # a validation of 50 s, then a first step of the epoch
    at = samples(sys_cpu_pct=10.0)
    at["time"] = np.linspace(1000.05, of["time"][-1], 700)
    at["sys/cores"] = np.full(700, 16.0)
    at["sys/cpu_pct"] = np.where((at["time"] > of["time"][100]) & (at["time"] <= of["time"][101]), 100.0, 10.0)
    judged = diagnose(of, at)
    assert judged.load.busy == pytest.approx(10.0)
    assert judged.limit is Limit.READING


@pytest.mark.parametrize("steps_per_epoch", [1, 3])
def test_epochs_of_few_steps_get_a_verdict_without_the_samples_between_them(steps_per_epoch: int) -> None:
    of = batches(41, 59)
    of["epoch"] = np.arange(STEPS + 1) // steps_per_epoch
    of["time"] = 1000 + PERIOD_S * np.arange(STEPS + 1) + of["epoch"]  # before each epoch, a validation of a second
    first_of_epoch = np.flatnonzero(np.diff(of["epoch"])) + 1
    in_steps, in_validations = of["time"][1:] - PERIOD_S / 2, of["time"][first_of_epoch] - 0.5
    busy = np.repeat([98.0, 5.0], [len(in_steps), len(in_validations)])
    at = {"time": np.append(in_steps, in_validations), "sys/cpu_pct": busy, "sys/cores": np.full(len(busy), 16.0)}
    judged = diagnose(of, at)
    assert judged.limit is Limit.DECODING, judged.sentence
    assert "41 of 100 ms a step, 200 steps" in judged.sentence
    assert judged.load.busy == pytest.approx(98.0)


def test_the_first_steps_of_long_epochs_stay_apart() -> None:
    of = batches(41, 59)
    of["epoch"] = np.arange(STEPS + 1) // 5
    assert "160 steps" in diagnose(of, samples(sys_cpu_pct=98.0)).sentence


def test_slices_tell_how_much_the_rate_varies() -> None:
    """Steps of 20 ms, then of 40 ms, of ten examples each. The first step is in no slice."""
    of = batches([10.0] * 20 + [30.0] * 20, 10.0, steps=40)
    of["input/examples"] = np.full(41, 10.0)
    assert verdict(of, proc_cpu_pct=100.0).slices_us == pytest.approx([2000.0] * 4 + [4000.0] * 4)
    few = {name: column[:13] for name, column in of.items()}
    assert verdict(few, proc_cpu_pct=100.0).slices_us == pytest.approx([2000.0] * 2)


def test_the_verdict_names_the_server_that_waits_most() -> None:
    of = {0: batches(1, 99), 1: batches(41, 59)}
    assert slowest_server(of) == 1
    judged = diagnose_server(1, of, samples(sys_cpu_pct=95.0))
    assert judged.limit is Limit.DECODING
    assert judged.sentence.startswith("Server 1 waits most. Input-bound (decoding): 41%")
    alone = samples(sys_cpu_pct=50.0)
    assert diagnose_server(0, {0: of[0]}, alone) == diagnose(of[0], alone)


def test_diagnose_run_reads_the_records_of_all_servers(tmp_path: Path) -> None:
    for server, of in {"": batches(1, 99), "servers/1": batches(41, 59)}.items():
        sink = RecordSink(tmp_path / server / "record")
        names = [name for name in of if name != "time"]
        for row in range(STEPS + 1):
            sink.write(Row("batches", of["time"][row], row, {name: of[name][row] for name in names}))
            sink.write(Row("samples", of["time"][row], row, {"sys/cpu_pct": 12.0}))
        sink.close()
    assert diagnose_run(tmp_path).sentence.startswith("Server 1 waits most. Input-bound (reading): 41%")


def test_diagnose_run_may_begin_with_a_later_epoch(tmp_path: Path) -> None:
    """The first epoch waited for 90% of its time, and the second one for 10%."""
    first, second = batches(90, 10), batches(10, 90)
    sink = RecordSink(tmp_path / "record")
    for epoch, of in enumerate((first, second), 1):
        for row in range(STEPS + 1):
            time, step = of["time"][row] + 1000 * epoch, row + (STEPS + 1) * epoch
            values = {name: of[name][row] for name in of if name not in ("time", "step")} | {"epoch": epoch}
            sink.write(Row("batches", time, step, values))
            sink.write(Row("samples", time, step, {"sys/cpu_pct": 12.0}))
    sink.close()
    assert diagnose_run(tmp_path, first_epoch=2).wait_fraction == pytest.approx(0.1)
    assert diagnose_run(tmp_path).wait_fraction == pytest.approx(0.5)
    assert diagnose_run(tmp_path, first_epoch=3).limits == (Limit.UNKNOWN,)


def test_missing_values_are_not_in_the_mean_of_samples() -> None:
    at = samples(sys_cpu_pct=90.0)
    at["sys/cpu_pct"][::2] = np.nan
    assert diagnose(batches(41, 59), at).load.busy == 90.0


def test_a_network_that_brings_next_to_nothing_is_not_named():
    assert [*about_reading(Load(received_Bps=5e4))] == ["0.1 MB a second came over the network"]
    assert [*about_reading(Load(received_Bps=4e4))] == []


def test_a_part_of_a_gpu_is_a_gpu_whose_use_is_unknown() -> None:
    """NVML reports only the memory of a part of a divided GPU (MIG)."""
    loads = {"sys_cpu_pct": 20.0, "proc_cpu_pct": 150.0, "gpu_0/mem_total_bytes": 2e10}
    found = verdict(batches(1, 90), **loads)
    assert found.load.has_gpu
    assert "the use of the GPU is not known" in found.sentence
    assert "there is no GPU" not in found.sentence
