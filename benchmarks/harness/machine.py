"""Where it is measured: the machine, the folder for what is drawn and written, and the other packages beside it."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.rounds import ROOT

HOME = ROOT / ".bench"
PEERS_PYTHON = HOME / "peers" / "bin" / "python"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_peers() -> bool:
    """Whether the other packages are installed."""
    return PEERS_PYTHON.exists()


def machine_line(*packages: str) -> str:
    """Where and when it was measured, with which of these packages in our own environment."""
    return f"{datetime.now(UTC).date().isoformat()}, {machine_words(*packages)}."


def machine_words(*packages: str) -> str:
    """Return the processor, its cores, and the versions of Python and these packages."""
    ours = "".join(f", {name} {version(name)}" for name in packages)
    return f"{cpu_model()}, {CORES} cores, Python {platform.python_version()}{ours}"


class OtherLoad:
    """The CPU time that other programs use while a benchmark runs, as a context manager. It needs /proc."""

    cores: float = 0.0
    """CPU seconds of others in a second."""

    def __enter__(self) -> "OtherLoad":
        self._load = os.getloadavg()[0]
        self._begin, self._times = time.monotonic(), (busy_seconds(), own_seconds())
        return self

    def __exit__(self, *_: object) -> None:
        busy, own = busy_seconds() - self._times[0], own_seconds() - self._times[1]
        self.cores = other_cores(busy, own, time.monotonic() - self._begin)

    def sentence(self) -> str:
        """Return the load in a sentence for the report."""
        return f"Other programs used {self.cores:.2f} of {CORES} cores. The load average before was {self._load:.2f}."


def other_cores(busy_s: float, own_s: float, elapsed_s: float) -> float:
    """Return how many cores others used. Clocks of processes and of the machine differ a little: never below 0."""
    return max(0.0, busy_s - own_s) / elapsed_s if elapsed_s > 0 else 0.0


def busy_seconds() -> float:
    """Return the CPU time of all programs since the machine started, without what a hypervisor took."""
    spent = psutil.cpu_times()
    return float(spent.user + spent.system + sum(getattr(spent, name, 0.0) for name in ("nice", "irq", "softirq")))


def own_seconds() -> float:
    """Return the CPU seconds of this process and its child processes, including those that have ended."""
    spent = os.times()
    total = spent.user + spent.system + spent.children_user + spent.children_system
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def cpu_model() -> str:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def measure_sections(
    machine: Sequence[str], sections: Mapping[str, Callable[[Namespace], Any]], options: Namespace
) -> None:
    """Say where it is measured, run the sections one after another, and write all figures where `--json` wants them."""
    print(*machine, sep="\n", flush=True)
    try:
        results = {name: measure(options) for name, measure in sections.items()}
    finally:
        shutil.rmtree(HOME / "work", ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": list(machine)} | results, indent=1))


def versions_in(python: Path, *packages: str) -> str:
    """Versions of the other packages, in the environment of `python`."""
    if not python.exists():
        return "The other packages are not installed: `make bench-env`."
    code = "import sys, importlib.metadata as m; print(*(f'{p} {m.version(p)}' for p in sys.argv[1:]), sep=', ')"
    return subprocess.check_output([python, "-c", code, *packages], text=True).strip() + "."


def job_file(job: dict[str, Any]) -> Path:
    """Return a file that holds the job of a worker."""
    path = new_folder("job") / "job.json"
    path.parent.mkdir()
    path.write_text(json.dumps(job))
    return path


def new_folder(name: str) -> Path:
    """Return a folder that is not there yet, in a place that is removed at the end."""
    (HOME / "work").mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=HOME / "work")) / name


def logs() -> Path:
    """The log of the workers."""
    folder = HOME / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(text: str) -> None:
    """Progress, for a person."""
    print(text, file=sys.stderr, flush=True)
