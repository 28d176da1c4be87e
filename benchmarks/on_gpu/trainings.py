"""Trainings as `tenfold train` starts them: one beside nvidia-smi, and two that ask for the same GPU."""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from benchmarks.on_gpu import Report, Row
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import Preempted, TrainingError
from pipeline.monitor import read
from pipeline.monitor.verdict import diagnose_run, numbers
from pipeline.runs.launch import TrainingProcess, prepare_run
from pipeline.runs.run import Run
from pipeline.tuning.advice import with_advice

if TYPE_CHECKING:
    import pandas

LOOK_S = 0.5
END_S = 20.0
"""How long before the limit of a section its trainings are stopped, in seconds."""
QUERIED = {
    "utilization.gpu": ("utilization, %", "util_pct", 1.0),
    "memory.used": ("memory, GB", "mem_used_bytes", 1e9),
    "power.draw": ("power, W", "power_w", 1.0),
}
"""What nvidia-smi reports: its name here, the monitor's metric, and the unit of that metric."""
MIB_PER_GB = 2**20 / 1e9


@dataclass(frozen=True)
class Trained:
    """A training process: its run, its log, and its end."""

    run: Run
    log: Path
    process: TrainingProcess
    end: Future[Any]

    def rows(self, kind: str) -> "pandas.DataFrame":
        """Return the rows of its record; none before the first one."""
        return read(self.run.folder / "record", kind)

    def failure(self) -> str:
        """Return why it failed, in words, and where its log is; empty if it has not failed."""
        error = self.end.exception() if self.end.done() else None
        return "" if error is None or isinstance(error, Preempted) else f"{error}; see {self.log}"


def training(job: dict[str, Any], report: Report) -> None:
    """Train for some epochs, each with a validation, and report what the record says.

    The job has the `settings`, the `datasets` by name, the fewest `epochs`, the fewest seconds `trained_s` of
    steps after the first one, the `gpu` for nvidia-smi, and the `limit_s` of this section.
    """
    deadline = time.monotonic() + job["limit_s"] - END_S
    with _nvidia_smi(job["gpu"], Path(job["folder"]) / "nvidia-smi.csv") as smi, _trainings(job, [0]) as [trained]:

        def is_enough() -> bool:
            steps_ms = trained.rows("batches").get("step/time_ms")
            if steps_ms is None or len(trained.rows("epochs")) < job["epochs"]:
                return False
            return bool(steps_ms.iloc[1:].sum() >= 1000 * job["trained_s"])

        _wait(lambda: is_enough() or trained.end.done(), deadline)
    if failure := trained.failure():
        raise TrainingError(failure)
    epochs, samples = trained.rows("epochs"), trained.rows("samples")
    if len(epochs) < job["epochs"]:
        report(Row("epochs", f"only {len(epochs)} of {job['epochs']} before the training had to be stopped"))
    verdict = diagnose_run(trained.run.folder)
    found = numbers(verdict)
    if found["step_ms"]:
        text = f"{found['step_ms']:.2f} ms, {found['wait_ms']:.2f} ms of it waiting for data"
        report(Row("a step", f"{text}; {found['examples_per_s']:,.0f} images/s", found))
    report(memory_row(epochs, samples, job["epochs"]))
    report(beside_row(smi, samples, epochs))
    advised = with_advice(verdict, trained.run.settings, load(Path(job["datasets"]["pixels"])).settings)
    report(Row("verdict", advised, {"limits": [limit.value for limit in verdict.limits]}))


def two_trainings(job: dict[str, Any], report: Report) -> None:
    """Start two trainings that ask for the same GPU, and report what becomes of them."""
    deadline = time.monotonic() + job["limit_s"] - END_S
    half = time.monotonic() + (job["limit_s"] - END_S) / 2
    with _trainings(job, [0, 1]) as both:

        def are_settled() -> bool:
            return all(len(each.rows("epochs")) or each.end.done() for each in both)

        # A training that waits for the GPU gets it when the other one ends.
        _wait(are_settled, half)
        first = [each for each in both if len(each.rows("batches"))]
        waiting = [each for each in both if each not in first and not each.end.done()]
        if len(first) == 1 and waiting:
            first[0].process.stop()
            _wait(are_settled, deadline)
    for number, each in enumerate(both, 1):
        text = _course(each, is_late=each in waiting)
        report(
            Row(f"training {number} of two on one {'GPU' if job['gpu'] else 'CPU'}", text, {"failure": each.failure()})
        )


def _course(trained: Trained, is_late: bool) -> str:
    """Return what became of a training, in words."""
    batches = trained.rows("batches")
    if failure := trained.failure():
        return f"failed: {failure}"
    if not len(batches):
        lines = trained.log.read_text(errors="replace").splitlines()
        return f"took no step in this time. The last line of its log: {lines[-1] if lines else 'none'}"
    took = batches["time"].iloc[-1] - batches["time"].iloc[0]
    text = f"took {len(batches)} steps"
    if took > 0:
        text += f", {batches['input/examples'].iloc[1:].sum() / took:,.0f} images/s"
    return (
        f"waited until the other one ended, then {text}" if is_late else f"{text}, and did not wait for the other one"
    )


@contextmanager
def _trainings(job: dict[str, Any], seeds: list[int]) -> Iterator[list[Trained]]:
    """Start a training for each seed. At the end, all of them are stopped, and have ended."""
    open_unless_set()
    started: list[Trained] = []
    with ThreadPoolExecutor(len(seeds)) as pool:
        try:
            for seed in seeds:
                # More epochs than there is time for, because the end of a training would export its model.
                values = {**job["settings"], "seed": seed, "epochs": 10_000, "promote": "never", "cache": "off"}
                workspace = str(Path(job["folder"]) / "workspace")
                settings = settings_from({**values, "workspace": workspace, "dataset": job["datasets"]["pixels"]})
                run = prepare_run(settings, Path(job["datasets"]["pixels"]), f"{job['name']}-{seed}")
                log = Path(job["logs"]) / f"gpu-{job['name']}-{seed}.log"
                with open(log, "wb") as file:
                    process = TrainingProcess(run, output=file.fileno())
                started.append(Trained(run, log, process, pool.submit(process.wait)))
            yield started
        finally:
            for each in started:
                each.process.request_stop()
            for each in started:
                each.process.stop()


def _wait(is_done: Callable[[], object], deadline: float) -> None:
    while not is_done() and time.monotonic() < deadline:
        time.sleep(LOOK_S)


# --- what the record says ---------------------------------------------------------------------------------------------


def memory_row(epochs: "pandas.DataFrame", samples: "pandas.DataFrame", shown: int) -> Row:
    """Return the memory of the process and of the GPU after each validation, in MB. The words show the first ones."""
    after: dict[str, list[float]] = {}
    for name, column in {"process": "proc/rss_bytes", "GPU": "gpu/0/mem_used_bytes"}.items():
        if column in samples:
            known = samples[["time", column]].dropna()
            before = (known.loc[known["time"] <= end, column] for end in epochs["time"])
            after[name] = [float(values.iloc[-1]) / 1e6 for values in before if len(values)]
    text = "; ".join(
        f"{name} {', '.join(f'{value:,.0f}' for value in of[:shown])} MB, at the end {of[-1]:,.0f}"
        for name, of in after.items()
        if of
    )
    return Row(f"memory after each of {shown} validations", text, {"validations": len(epochs), "after_mb": after})


def beside_row(smi: "Path | str", samples: "pandas.DataFrame", epochs: "pandas.DataFrame") -> Row:
    """Compare the monitor with nvidia-smi, by the means from the end of the first epoch to the last one."""
    what = "monitor beside nvidia-smi"
    if isinstance(smi, str):
        return Row(what, f"not compared: {smi}")
    begin, end = float(epochs["time"].min()), float(epochs["time"].max())
    theirs = smi_means(smi.read_text(), begin, end)
    ours = samples[samples["time"].between(begin, end)]
    seen = {}
    for name, (title, metric, unit) in QUERIED.items():
        column = f"gpu/0/{metric}"
        if name in theirs and column in ours and len(known := ours[column].dropna()):
            seen[title] = (float(known.mean()) / unit, theirs[name] * (MIB_PER_GB if name == "memory.used" else 1))
    text = "; ".join(f"{title}: {own:,.1f} beside {other:,.1f}" for title, (own, other) in seen.items())
    return Row(what, text or "not compared: one of the two gave no value", {"means": seen})


def smi_means(csv: str, begin: float, end: float) -> Mapping[str, float]:
    """Return the means of the values that nvidia-smi gave from `begin` to `end` (Unix seconds), by the names it has.

    A line holds a local time and the values of QUERIED. A value that the GPU lacks is text, such as "[N/A]".
    """
    values: dict[str, list[float]] = {}
    for line in csv[: csv.rfind("\n") + 1].splitlines():  # The last line may have been cut.
        stamp, *cells = line.split(", ")
        if begin <= datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp() <= end:
            for name, cell in zip(QUERIED, cells, strict=True):
                with suppress(ValueError):
                    values.setdefault(name, []).append(float(cell))
    return {name: mean(each) for name, each in values.items()}


@contextmanager
def _nvidia_smi(gpu: str, output: Path) -> Iterator["Path | str"]:
    """Let nvidia-smi sample the GPU in the block. Yields its file, or why there is none."""
    if not gpu:
        yield "no GPU"
        return
    query = ["-i", gpu, f"--query-gpu=timestamp,{','.join(QUERIED)}", "--format=csv,noheader,nounits", "-lms", "200"]
    with open(output, "wb") as file:
        try:
            process = subprocess.Popen(["nvidia-smi", *query], stdout=file, stderr=subprocess.DEVNULL)
        except FileNotFoundError:
            yield "nvidia-smi is not in the PATH"
            return
        try:
            yield output
        finally:
            process.terminate()
            process.wait()
