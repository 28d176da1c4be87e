"""All that only a machine with a GPU can show, in at most ten minutes.

    make bench-gpu PYTHON=/path/to/python
    python -m benchmarks.gpu [--only SECTION] [--json FILE]

PYTHON is any Python with TensorFlow and the other packages that `benchmarks/on_gpu/data.py` lists. The command installs
nothing, starts no Airflow and needs no network. It uses the first of the visible GPUs. Each section has a process and a
time limit of its own. If one fails, its error is reported, and the others go on. FILE is written after each section.

Without a GPU, all sections run on the CPU with tiny sizes. That shows that they run, and no more.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.rounds import OPEN, ROOT

HOME = ROOT / ".bench"
LOGS = HOME / "logs"
TOTAL_S = 590.0
"""Limit of all sections together. Their own limits add up to a little more, because no machine needs all of them."""
SLOWER = 4
"""Without a GPU, all limits but the first are this many times as long, because the machine may be slow."""
MASK = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Section:
    """A section on one model: its title, its function in `benchmarks.on_gpu`, and its limit in seconds."""

    title: str
    function: str
    model: str
    """The model of the section, a field of `Sizes`."""
    limit_s: float


MACHINE_S, DATASETS_S = 80.0, 70.0
"""Limits of the two sections that all others need."""
SECTIONS = {
    "resnet": Section("steps of", "steps", "resnet", 180),
    "vit": Section("steps of", "steps", "vit", 130),
    "training": Section("training of", "training", "resnet", 90),
    "two": Section("two trainings of", "two_trainings", "resnet", 110),
}


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    resnet: str = "ResNet50"
    vit: str = "benchmarks.on_gpu.models:small_vit"
    image_size: int = 224
    prepared: int = 256
    """Shorter side of the stored pixels."""
    batch_size: int = 128
    drawn: int = 1024
    copies: int = 8
    seconds: float = 1.5
    """Seconds of each measurement of a step."""
    epochs: int = 4
    trained_s: float = 10.0
    """Fewest epochs of a training, and fewest seconds of its steps after the first one."""


TINY = Sizes(
    resnet="small_cnn",
    vit="benchmarks.on_gpu.models:tiny_vit",
    image_size=32,
    prepared=40,
    batch_size=4,
    drawn=48,
    copies=3,
    seconds=0.1,
    trained_s=4.0,
)
"""Sizes for a machine without a GPU."""


@dataclass
class Result:
    """The result of a section."""

    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0


def main() -> int:
    """Measure, print one table and the JSON, and return 1 if a section failed."""
    options = parse(sys.argv[1:])
    use_one_gpu()
    HOME.mkdir(exist_ok=True)
    results: list[Result] = []
    folder = Path(tempfile.mkdtemp(prefix="gpu-", dir=HOME))
    try:
        for result in measured(options.only, folder, time.monotonic()):
            results.append(result)
            options.json.write_text(json.dumps([asdict(each) for each in results], indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join([*table(results), "", json.dumps([asdict(each) for each in results])]))
    return int(any(result.error or any("error" in row["numbers"] for row in result.rows) for result in results))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="What only a GPU can show.")
    parser.add_argument("--only", default="", choices=SECTIONS, help="of the sections")
    parser.add_argument("--json", type=Path, default=HOME / "gpu.json", help="file for every figure")
    return parser.parse_args(arguments)


def use_one_gpu() -> None:
    """Show only the first GPU to all sections, by the number that nvidia-smi uses, too."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ[MASK] = os.environ.get(MASK, "0").split(",")[0].strip()


def measured(only: str, folder: Path, begin: float) -> Iterator[Result]:
    """Yield the result of each section as soon as it is known. `begin` is in monotonic seconds."""
    machine = run("machine", "machine", {}, MACHINE_S)
    yield machine
    gpu = number(machine, "gpu")
    if gpu is None:  # TensorFlow cannot be loaded.
        return
    sizes, slower = (Sizes(), 1) if gpu else (TINY, SLOWER)
    job = {"folder": str(folder), "logs": str(LOGS), "gpu": os.environ[MASK] if gpu else ""}
    data = run("datasets", "datasets", job | asdict(sizes), DATASETS_S * slower)
    yield data
    datasets = {row["numbers"]["kind"]: row["numbers"]["dataset"] for row in data.rows if "kind" in row["numbers"]}
    for name, section in SECTIONS.items():
        if only not in ("", name) or "pixels" not in datasets:
            continue
        limit_s = max(0.0, min(section.limit_s * slower, begin + TOTAL_S * slower - time.monotonic()))
        yield run(
            f"{section.title} {getattr(sizes, section.model).rpartition(':')[2]}",
            section.function,
            job | of_model(sizes, section, datasets) | {"name": name, "limit_s": limit_s},
            limit_s,
        )


def of_model(sizes: Sizes, section: Section, datasets: Mapping[str, str]) -> dict[str, Any]:
    """Return what the job of a section says about its model."""
    settings = {
        "model": getattr(sizes, section.model),
        "image_size": sizes.image_size,
        "batch_size": sizes.batch_size,
        "source_uri": datasets["pixels"],
    }
    return {
        "settings": settings,
        "datasets": datasets,
        **{name: getattr(sizes, name) for name in ("seconds", "epochs", "trained_s")},
    }


def number(result: Result, name: str) -> Any:
    """Return the number of this name; None if no row has it."""
    return next((row["numbers"][name] for row in result.rows if name in row["numbers"]), None)


def run(title: str, function: str, job: Mapping[str, Any], limit_s: float) -> Result:
    """Run a section in a process of its own for at most `limit_s`, and return its result."""
    say(f"{title}: at most {limit_s:.0f} s")
    result, begin = Result(title), time.monotonic()
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"gpu-{job.get('name', function)}.log"
    command = [sys.executable, "-m", "benchmarks.on_gpu.section", function, json.dumps(job)]
    # In a process group of its own, so that the processes that it starts can be killed with it.
    environment, pipe = {**OPEN, **os.environ}, subprocess.PIPE
    with (
        open(log, "wb") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=pipe, stderr=errors, start_new_session=True
        ) as process,
    ):
        timer = threading.Timer(limit_s, os.killpg, [process.pid, signal.SIGKILL])
        timer.start()
        try:
            lines = [json.loads(line) for line in process.stdout or () if line.endswith(b"\n")]
        except BaseException:  # Ctrl-C does not reach another process group.
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            timer.cancel()
    result.seconds = time.monotonic() - begin
    result.rows = [line for line in lines if "error" not in line]
    result.error = next((line["error"] for line in lines if "error" in line), "")
    if process.returncode and not result.error:
        is_over = result.seconds >= limit_s
        ended = f"stopped at its limit of {limit_s:g} s" if is_over else f"ended with exit code {process.returncode}"
        result.error = f"{ended}; the last line of {log} is {last_line(log)!r}"
    for row in result.rows:
        say(f"  {row['what']}: {row['result']}")
    if result.error:
        say(f"  failed: {result.error}")
    return result


def last_line(log: Path) -> str:
    """Return the last line of a log; empty if it has none."""
    return next(reversed(log.read_text(errors="replace").splitlines()), "")


def table(results: Sequence[Result]) -> list[str]:
    """Return the table of all results, as lines of Markdown."""
    lines = ["| section | what | result |", "|---|---|---|"]
    for result in results:
        cells = [(row["what"], row["result"]) for row in result.rows]
        cells += [("failed", result.error)] if result.error else []
        lines += [f"| {result.title} | {what} | {text} |" for what, text in cells]
    return lines


def say(text: str) -> None:
    """Print progress, for a person."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
