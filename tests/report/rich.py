"""A run with data for every figure: several servers, throttled GPUs, a container and checkpoints."""

from pathlib import Path

import numpy as np

from pipeline.evaluation.metrics import save
from pipeline.monitor.overview import OverviewSink
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from tests.report.evaluated import ROWS, evaluated, predictions
from tests.report.test_report import describe

GPUS = 2
SERVERS = 3


def rich_run(
    folder: Path,
    seed: int = 1,
    compute_ms: float = 60.0,
    epochs: int = 6,
    steps: int = 60,
    servers: int = SERVERS,
    gpus: int = GPUS,
    begin: float = 1e9,
) -> Path:
    """Write the run into a new folder, and return it. A step takes about `compute_ms` and 20 ms of data wait.

    `begin` is the time of its start (Unix s).
    """
    describe(folder)
    save(folder, predictions(20 * ROWS), evaluated(folder, ["circle", "square"], 20 * ROWS))
    random = np.random.default_rng(seed)
    sinks = [Records(folder), *(Records(folder / "servers" / str(index)) for index in range(1, servers))]
    now, step = begin, 0
    for epoch in range(1, epochs + 1):
        began = now
        for batch in range(steps):
            step += 1
            times = {
                "input/wait_ms": random.gamma(4, 5),
                "step/compute_ms": compute_ms + random.normal(),
                "step/host_ms": 4.0,
                "step/checkpoint_ms": 500.0 * (batch == steps // 2),
            }
            now += sum(times.values()) / 1000
            whole = {"step/time_ms": sum(times.values()), "input/examples": 32, "epoch": epoch, "first": step == 1}
            sinks[0].write(Row("batches", now, step, times | whole))
            for index, sink in enumerate(sinks):
                sink.write(Row("samples", now, step, sample(random, busy=90 - 20 * index, gpus=gpus)))
        values = {"loss": 1 / epoch, "accuracy": 0.1 * epoch, "val_loss": 1.2 / epoch, "val_accuracy": 0.09 * epoch}
        times = {"epoch/time_s": now - began, "epoch/validation_s": 0.5 + 0.1 * random.random()}
        times["epoch/callbacks_s"] = 0.25
        now += times["epoch/validation_s"] + times["epoch/callbacks_s"]
        sinks[0].write(Row("epochs", now, epoch, values | times))
    for sink in sinks:
        sink.close()
    return folder


class Records:
    """The record of a training server and its overview, as the monitor writes them."""

    def __init__(self, folder: Path) -> None:
        self._sinks = RecordSink(folder / "record"), OverviewSink(folder / "overview")

    def write(self, row: Row) -> None:
        for sink in self._sinks:
            sink.write(row)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


def sample(random: np.random.Generator, busy: float, gpus: int = GPUS) -> dict[str, float]:
    """Return a sample with every metric."""
    found = {
        "sys/cpu_pct": 50.0 + 5 * random.normal(),
        "proc/cpu_pct": 120.0,
        "proc/children_cpu_pct": 40.0,
        "sys/cpu_max_core_pct": 95.0,
        "sys/mem_pct": 30.0,
        "cgroup/cpu_pct": 80.0,
        "cgroup/cpu_throttled_pct": 10.0,
        "cgroup/mem_pct": 60.0,
        "pressure/cpu_some_pct": 20.0,
        "pressure/io_some_pct": 5.0,
        "pressure/memory_some_pct": 0.0,
        "sys/disk_read_Bps": 2e8 * random.random(),
        "sys/disk_write_Bps": 1e6,
        "sys/net_recv_Bps": 3e8 * random.random(),
        "sys/net_sent_Bps": 1e5,
        "monitor/tick_late_ms": 1.0,
        "monitor/dropped": 0.0,
    }
    for gpu in range(gpus):
        of_gpu = {"util_pct": busy, "mem_used_bytes": 6e10, "mem_total_bytes": 8e10, "power_w": 600.0}
        of_gpu |= {"power_limit_w": 700.0, "throttled_power": float(gpu > 0), "throttled_thermal": 0.0}
        found |= {f"gpu/{gpu}/{name}": value for name, value in of_gpu.items()}
    return found
