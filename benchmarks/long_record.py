"""What the end of a long training costs: memory and seconds of its verdict, its report and its page.

    python -m benchmarks.long_record                        # ten days, 8 GPUs, 4 servers
    python -m benchmarks.long_record --days 1 --servers 2

Writes a record as the monitor leaves it: five samples a second of all metrics, and steps of 200 ms. Ten days of four
servers take 6 GB. Then measures each part in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
ROW_S = 0.2
"""Seconds of a step, and between two samples."""
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
    *("monitor/tick_late_ms", "monitor/sample_ms", "cgroup/mem_used_bytes", "cgroup/cpu_used_cores", "sys/load_1min"),
)
_STEADY = {"sys/cores": 64.0, "proc/cores": 64.0, "cgroup/cpu_limit_cores": 64.0, "monitor/dropped": 0.0}
Columns = dict[str, NDArray[Any]]


def main(arguments: list[str] | None = None) -> None:
    """Write the record, measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=10.0)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each server")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="write the record there, and leave it; measure it if it is there")
    options = parser.parse_args(arguments)
    if options.part:
        print(json.dumps(measured(PARTS[options.part], options.folder)))
        return
    with tempfile.TemporaryDirectory(prefix="long-record-") as name:
        folder = options.folder or Path(name)
        if not (folder / "run.json").exists():
            write_training(folder, options.days * DAY_S, options.servers, options.gpus)
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


def write_training(folder: Path, seconds: float, servers: int, gpus: int) -> None:
    """Write `run.json`, and the record and the overview of each server."""
    settings = {"epochs": round(seconds / EPOCH_S), "batch_size": 256, "num_training_servers": servers}
    about = {"format": RUN_FORMAT, "settings": settings, "steps_per_epoch": round(EPOCH_S / ROW_S)}
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(servers):
        of_server = folder / SERVERS / str(index) if index else folder
        noise = np.random.default_rng(index)
        write_segments(of_server / "record", "samples", seconds, partial(samples, gpus=gpus, noise=noise))
        write_segments(of_server / "record", "batches", seconds, partial(batches, noise=noise))
        write_overview(of_server / "overview", seconds, gpus, noise, has_epochs=index == 0)
    write_epochs(RecordSink(folder / "record"), seconds)
    (folder / "run.json").write_text(json.dumps({**about, "host": {"cores": 64}}))


def write_segments(folder: Path, kind: str, seconds: float, columns: Callable[[NDArray[np.int64]], Columns]) -> None:
    """Write the full segments of a kind. `columns` returns the metrics of steps."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = SEGMENT_ROWS[kind]
    for number in range(round(seconds / ROW_S / rows)):
        steps = np.arange(1 + rows * number, 1 + rows * (number + 1))
        table = {"time": BEGIN + ROW_S * steps, "step": steps, **columns(steps)}
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


def batches(steps: NDArray[np.int64], noise: np.random.Generator) -> Columns:
    """Return the times of steps."""
    count = len(steps)
    wait, host = noise.exponential(10, count).round(5), noise.normal(0.6, 0.1, count).round(7)
    compute = noise.normal(189, 5, count).round(4)
    return {
        "input/wait_ms": wait,
        "step/compute_ms": compute,
        "step/host_ms": host,
        "step/checkpoint_ms": np.zeros(count),
        "step/time_ms": (wait + compute + host).round(4),
        "input/examples": np.full(count, 256.0),
        "epoch": 1.0 + (steps - 1) // round(EPOCH_S / ROW_S),
        "input/ready_pct": 12.5 * noise.integers(9, size=count),
        "step/python_calls": np.zeros(count),
        "first": (steps == 1).astype(float),
    }


def write_overview(folder: Path, seconds: float, gpus: int, noise: np.random.Generator, *, has_epochs: bool) -> None:
    """Write the intervals of a training, each a 400th of the training until then."""
    sink, at = RecordSink(folder, 500_000), 0.0
    while at < seconds:
        at += max(2.0, at / 400)
        step = np.array([at / ROW_S], dtype=int)
        for kind, columns in (("samples", samples(step, gpus, noise)), ("batches", batches(step, noise))):
            means = {name: float(value[0]) for name, value in columns.items()}
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
