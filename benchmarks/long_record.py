"""What the end of a long training costs: memory and seconds of its verdict, its report and its page.

    python -m benchmarks.long_record                        # ten days, 8 GPUs, 4 servers
    python -m benchmarks.long_record --days 1 --servers 2
    python -m benchmarks.long_record --servers 1 --gpus 1 --step-ms 20    # 43 million steps

Writes a record as the monitor leaves it: five samples a second of most metrics, and steps of 200 ms, all in closed
segments of one process. Ten days of four servers take 6 GB. Then measures each part in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from benchmarks.harness.rounds import ROOT
from benchmarks.harness.worker import peak_mb
from pipeline.monitor.record import RecordSink, write_closed
from pipeline.monitor.row import Row
from pipeline.rendezvous.servers import SERVERS
from pipeline.runs.files import RUN_FORMAT

BEGIN, DAY_S, EPOCH_S = 1.7e9, 86_400.0, 1800.0
SAMPLE_S = 0.2
"""Seconds between two samples."""
SEGMENT_ROWS = {"samples": 2000, "batches": 20_000}
_PERCENT = (
    *(f"sys/{name}" for name in ("cpu_pct", "cpu_max_core_pct", "cpu_iowait_pct", "mem_pct", "disk_busy_pct")),
    *(f"pressure/{name}_pct" for name in ("cpu_some", "io_some", "io_full", "memory_some", "memory_full")),
    *(f"proc/{name}_pct" for name in ("cpu", "children_cpu", "core_wait", "busiest_thread")),
    *(f"cgroup/{name}_pct" for name in ("cpu", "cpu_throttled", "mem")),
)
_AMOUNTS = (
    *(f"sys/{name}" for name in ("disk_read_Bps", "disk_write_Bps", "net_recv_Bps", "net_sent_Bps", "mem_used_bytes")),
    *(f"proc/{name}" for name in ("read_Bps", "rss_bytes", "children_rss_bytes", "major_faults_per_s")),
    *("cgroup/mem_used_bytes", "cgroup/cpu_used_cores", "sys/load_1min"),
)
_STEADY = {
    "sys/cores": 64.0,
    "proc/cores": 64.0,
    "cgroup/cpu_limit_cores": 64.0,
    "monitor/dropped": 0.0,
    "monitor/tick_late_ms": 1.0,
    "monitor/sample_ms": 2.0,
}
Columns = dict[str, NDArray[Any]]
Metrics = Callable[[NDArray[np.int64]], Columns]
"""Returns the metrics of some steps."""


def main(arguments: list[str] | None = None) -> None:
    """Write the record, measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=10.0)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each server")
    parser.add_argument("--step-ms", type=float, default=200.0, help="time of a step")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="write the record there, and leave it; measure it if it is there")
    options = parser.parse_args(arguments)
    if options.part:
        print(json.dumps(measured(PARTS[options.part], options.folder)))
        return
    with tempfile.TemporaryDirectory(prefix="long-record-") as name:
        folder = options.folder or Path(name)
        if not (folder / "run.json").exists():
            write_training(folder, options.days * DAY_S, options.servers, options.gpus, options.step_ms / 1000)
        command = [sys.executable, "-m", "benchmarks.long_record", "--folder", str(folder), "--part"]
        outputs = {part: subprocess.check_output([*command, part], cwd=ROOT) for part in PARTS}
        print(json.dumps({part: json.loads(output) for part, output in outputs.items()}))


def _verdict(training: Path) -> object:
    from pipeline.monitor.verdict import diagnose_run

    return diagnose_run(training).sentence


def _report(training: Path) -> object:
    from pipeline.report import write_report

    return write_report(training).stat().st_size


def _page(training: Path) -> object:
    from pipeline.watch.page_data import page_data

    return page_data(training, is_over=True)["status"]["verdict"]


PARTS: dict[str, Callable[[Path], object]] = {"verdict": _verdict, "report": _report, "page": _page}


def measured(part: Callable[[Path], object], training: Path) -> dict[str, object]:
    """Return the seconds of a part, those of them on a core, and the peak of this process's memory with all imports."""
    begin, cpu = time.perf_counter(), time.process_time()
    result = part(training)
    seconds = {"s": round(time.perf_counter() - begin, 1), "cpu_s": round(time.process_time() - cpu, 1)}
    return {**seconds, "peak_mb": round(peak_mb()), "is": result}


def write_training(folder: Path, seconds: float, servers: int, gpus: int, step_s: float = 0.2) -> None:
    """Write `run.json`, and the record and the overview of each server. A step takes `step_s`."""
    settings = {"epochs": round(seconds / EPOCH_S), "batch_size": 256, "num_training_servers": servers}
    about = {"format": RUN_FORMAT, "settings": settings, "steps_per_epoch": round(EPOCH_S / step_s)}
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(servers):
        of_server = folder / SERVERS / str(index) if index else folder
        noise = np.random.default_rng(index)
        columns = {
            "samples": partial(samples, gpus=gpus, noise=noise),
            "batches": partial(batches, step_s, noise=noise),
        }
        write_segments(of_server / "record", "samples", seconds, SAMPLE_S, columns["samples"])
        write_segments(of_server / "record", "batches", seconds, step_s, columns["batches"])
        write_overview(of_server / "overview", seconds, step_s, columns, has_epochs=index == 0)
    write_epochs(RecordSink(folder / "record"), seconds)
    (folder / "run.json").write_text(json.dumps({**about, "host": {"cores": 64}}))


def write_segments(folder: Path, kind: str, seconds: float, row_s: float, columns: Metrics) -> None:
    """Write the full segments of a kind, with a row every `row_s` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = SEGMENT_ROWS[kind]
    for number in range(round(seconds / row_s / rows)):
        steps = np.arange(1 + rows * number, 1 + rows * (number + 1))
        table = {"time": BEGIN + row_s * steps, "step": steps, **columns(steps)}
        write_closed(folder / f"{kind}-{number:05d}.csv", pyarrow.table(table), synced=False)


def samples(steps: NDArray[np.int64], gpus: int, noise: np.random.Generator) -> Columns:
    """Return the samples of a busy machine, one in each step, with as many digits as a record has."""
    count = len(steps)
    of_gpus: dict[str, Callable[[], NDArray[Any]]] = {
        "util_pct": lambda: noise.integers(80, 101, count).astype(float),
        "mem_used_bytes": lambda: 7e10 + 2.0**21 * noise.integers(100, size=count),
        "mem_total_bytes": lambda: np.full(count, 85_899_345_920.0),
        "power_w": lambda: noise.normal(600, 40, count).round(3),
        "power_limit_w": lambda: np.full(count, 700.0),
        "temperature_c": lambda: noise.integers(60, 75, count).astype(float),
        "sm_clock_mhz": lambda: 15.0 * noise.integers(100, 132, count),
        "mem_clock_mhz": lambda: np.full(count, 2619.0),
        "throttled_power": lambda: noise.integers(2, size=count).astype(float),
        "throttled_thermal": lambda: np.zeros(count),
        "pcie_rx_Bps": lambda: 1000.0 * noise.integers(10_000_000, size=count),
        "pcie_tx_Bps": lambda: 1000.0 * noise.integers(10_000_000, size=count),
    }
    return {
        **{name: np.abs(noise.normal(40, 15, count)).round(5) for name in _PERCENT},
        **{name: noise.lognormal(15, 1, count).round() for name in _AMOUNTS},
        **{name: np.full(count, value) for name, value in _STEADY.items()},
        **{f"gpu/{gpu}/{name}": draw() for gpu in range(gpus) for name, draw in of_gpus.items()},
    }


def batches(step_s: float, steps: NDArray[np.int64], noise: np.random.Generator) -> Columns:
    """Return the times of steps of `step_s` seconds each."""
    count, step_ms = len(steps), 1000 * step_s
    wait, host = noise.exponential(0.05 * step_ms, count).round(5), noise.normal(0.6, 0.1, count).round(7)
    compute = noise.normal(0.94 * step_ms, 0.02 * step_ms, count).round(4)
    return {
        "input/wait_ms": wait,
        "step/compute_ms": compute,
        "step/host_ms": host,
        "step/checkpoint_ms": np.zeros(count),
        "step/time_ms": (wait + compute + host).round(4),
        "input/examples": np.full(count, 256.0),
        "epoch": 1.0 + (steps - 1) // round(EPOCH_S / step_s),
        "input/ready_pct": 12.5 * noise.integers(9, size=count),
        "step/python_calls": np.zeros(count),
        "first": (steps == 1).astype(float),
    }


def write_overview(
    folder: Path, seconds: float, step_s: float, columns_of: Mapping[str, Metrics], *, has_epochs: bool
) -> None:
    """Write the intervals of a training, each a 400th of the training until then."""
    sink, at = RecordSink(folder, 500_000), 0.0
    while at < seconds:
        at += max(2.0, at / 400)
        step = np.array([at / step_s], dtype=int)
        for kind, columns in columns_of.items():
            means = {name: float(value[0]) for name, value in columns(step).items()}
            highest = {f"{name}/max": 1.1 * value for name, value in means.items()}
            sink.write(Row(kind, BEGIN + at, int(step[0]), means | highest))
    if has_epochs:
        write_epochs(sink, seconds)
    sink.close()


def write_epochs(sink: RecordSink, seconds: float) -> None:
    """Write the epochs of a training, and close the record."""
    for epoch in range(1, 1 + round(seconds / EPOCH_S)):
        scores = {"loss": 1 / epoch, "accuracy": 0.5, "val_loss": 1 / epoch, "val_accuracy": 0.5}
        times = {"epoch/time_s": EPOCH_S, "epoch/validation_s": 60.0, "epoch/callbacks_s": 1.0}
        sink.write(Row("epochs", BEGIN + EPOCH_S * epoch, epoch, scores | times))
    sink.close()


if __name__ == "__main__":
    main()
