"""Plant a slow server among two training servers, ten times, and see whether it is named, with its slow stage.

    make bench-slow-server
    python -m benchmarks.slow_server [--only NAME] [--again] [--table] [--quick]

Two real training servers on this machine share a dataset of photographs. In each run, one of them is slowed down: its
cores by a CPU quota, its disk by a limit of the bytes per second, or its input by Python code that resizes. In two more
runs, no server is slow, and none may be named. A run ends once both servers have measured their stages and taken their
first steps. What is compared is what tab and report say. The result of each run is stored in
`.bench/slow_server/results.jsonl` at once, so a stopped benchmark goes on with the next run. A run that other programs
disturbed does not count, and only results of this code and this machine do (`benchmarks.harness.origin`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import verdicts
from benchmarks.advice import add_line, lines_of
from benchmarks.harness.machine import HOME, logs, say
from benchmarks.harness.origin import PREDICTING, UNKNOWN, Origin, origin_of, parsed
from benchmarks.harness.rounds import ENVIRONMENT, ROOT
from benchmarks.known_limits.datasets import DATA as ALL_DATA
from benchmarks.known_limits.jobs import COMMON, Job
from benchmarks.known_limits.surroundings import NotPossible
from benchmarks.verdicts import (
    DISK_BPS,
    DISTURBED_CORES,
    SURROUNDINGS,
    Place,
    Surroundings,
    cpu_quota,
    dataset_of,
    slow_disk,
)
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.monitor.load import load_of
from pipeline.monitor.record import read, record_folders
from pipeline.report.input_stages import input_stages
from pipeline.report.slow_stage import slow_stage
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Run
from pipeline.tuning.stages import stages_of_servers

FOLDER = HOME / "slow_server"
DATA = "small shards"
SERVERS = 2
QUOTA_CORES = 0.4
MODULE, SLOW_MODULE = "pipeline.training", "benchmarks.known_limits.slow_resizing"
SETTINGS = {
    **COMMON,
    "num_training_servers": SERVERS,
    "simulated_step_ms": 5,
    "epochs": 4000,  # Stages are measured only if that is little beside the training. The run ends earlier.
    "server_wait_minutes": 5,
}
TIMEOUT_S, POLL_S, STEPS = 600.0, 0.5, 20


@dataclass(frozen=True)
class Planted:
    """A run, and which server is slow in it, by what."""

    name: str
    server: int | None = None
    around: str = ""
    """Name of the surroundings of the slow server, or of both without a slow one."""
    stage: str = ""
    """The stage that is slow, by its name."""
    module: str = MODULE
    """The program of the slow server."""


@dataclass(frozen=True)
class Named:
    """The server that was named in a run, and its stage."""

    run: str
    server: int | None = None
    stage: str = ""
    sentence: str = ""
    took_s: float = 0.0
    reason: str = ""
    """Why the run says nothing."""
    other_cores: float = 0.0
    """Cores that programs beside the servers kept busy."""
    origin: Origin = UNKNOWN

    @property
    def is_sound(self) -> bool:
        """Whether it counts."""
        return not self.reason and self.other_cores <= DISTURBED_CORES


def _planted(number: int) -> Planted:
    server = number % SERVERS
    means = (
        ("CPU quota", "quota", "decode", MODULE),
        ("slow disk", "slow disk", "read", MODULE),
        ("Python code that resizes", "", "resize", SLOW_MODULE),
    )
    what, around, stage, module = means[number % len(means)]
    return Planted(f"{number + 1}: server {server}, {what}", server, around, stage, module)


RUNS = (*map(_planted, range(10)), *(Planted(f"{number}: equal servers") for number in (11, 12)))
AROUND: Surroundings = {
    **SURROUNDINGS,
    "quota": partial(cpu_quota, QUOTA_CORES),
    "slow disk": partial(slow_disk, DISK_BPS),
}


def main() -> int:
    """Make the missing runs, and print all as Markdown. Return 1 unless all are sound and correct."""
    options = parse(sys.argv[1:])
    for folder in FOLDER, verdicts.FOLDER:
        folder.mkdir(parents=True, exist_ok=True)
    if options.again:
        results_file().unlink(missing_ok=True)
    open_unless_set()
    runs = [run for run in RUNS if options.only in run.name][: 1 if options.quick else None]
    for planted in [] if options.table else runs:
        before = load_results([planted]).get(planted.name)
        if before and before.is_sound:
            continue
        found = trained(planted)
        add_line(results_file(), found)
        others = "" if found.reason or found.is_sound else f"; disturbed by others on {found.other_cores:.1f} cores"
        say(f"{planted.name}: {found.reason or found.sentence}{others} ({found.took_s:.0f} s)")
    results = load_results(runs)
    places = dict.fromkeys(each.origin.line for each in results.values())
    print("\n".join([*places, "", *report(runs, results)]), flush=True)
    return int(not all_correct(runs, results))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_server", description=summary)
    parser.add_argument("--only", default="", metavar="NAME", help="make only runs with this in their name")
    parser.add_argument("--again", action="store_true", help="delete the stored results first")
    parser.add_argument("--table", action="store_true", help="print the stored results")
    parser.add_argument("--quick", action="store_true", help="make one run, to see that it works")
    return parser.parse_args(arguments)


def results_file() -> Path:
    """Return the file of the results: a line of JSON for each. The last result of a run counts."""
    return FOLDER / "results.jsonl"


def load_results(runs: Sequence[Planted]) -> dict[str, Named]:
    """Return the results of runs so far, by their names. Those of other code or machines do not count."""
    origins = {run.name: run_origin(run) for run in runs}
    found = [parsed(Named, line) for line in lines_of(results_file())]
    return {each.run: each for each in found if each.run in origins and each.origin.is_like(origins[each.run])}


def run_origin(planted: Planted) -> Origin:
    """Return the origin of a run that is made now."""
    data, around = ALL_DATA[DATA], AROUND[planted.around]
    known = {**vars(planted), "settings": SETTINGS, "numbers": getattr(around, "args", ()), "data": vars(data)}
    code = (ROOT / f"{planted.module.replace('.', '/')}.py") if planted.module != MODULE else None
    described = json.dumps(known, sort_keys=True, default=lambda value: value.__name__)
    return origin_of(described, code.read_text() if code else "", without=PREDICTING)


# --- runs -------------------------------------------------------------------------------------------------------------


def trained(planted: Planted) -> Named:
    """Start both servers, and return which one is named once both take steps."""
    begin, origin = time.perf_counter(), run_origin(planted)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER)))
        job = Job(planted.name, frozenset(), DATA)
        try:
            place = stack.enter_context(AROUND[planted.around](job, folder))
            training = stack.enter_context(servers(planted, place, folder))
        except NotPossible as error:
            return Named(planted.name, reason=str(error), origin=origin)
        stages = stages_of_servers(training)
        if len(stages) < SERVERS:
            reason = f"only {len(stages)} of {SERVERS} servers measured their stages"
            return Named(planted.name, reason=reason, origin=origin)
        slow, shown = slow_stage(stages), input_stages(training)
        return Named(
            run=planted.name,
            server=slow.server if slow else None,
            stage=slow.stage if slow else "",
            sentence=shown.sentence if shown else "",
            took_s=time.perf_counter() - begin,
            other_cores=other_cores(training),
            origin=origin,
        )


def other_cores(training: Path) -> float:
    """Return the cores that programs beside the servers kept busy, in the time in which all servers ran."""
    samples = [read(folder, "samples") for folder in record_folders(training).values()]
    begin = max(float(each["time"].min()) for each in samples)
    loads = [load_of(each[each["time"] >= begin]) for each in samples]
    busy = max((load.own_cores or 0.0) + (load.other_cores or 0.0) for load in loads)
    return max(0.0, busy - sum(load.own_cores or 0.0 for load in loads))


@contextmanager
def servers(planted: Planted, place: Place, folder: Path) -> Iterator[Path]:
    """Yield the folder of a training whose servers all take steps. Raises NotPossible."""
    values = {"workspace": str(folder), "local_folder": str(folder / "local"), **SETTINGS}
    settings, dataset = settings_from(values), Path(place.dataset or dataset_of(Job(planted.name, frozenset(), DATA)))
    runs = [prepare_run(settings, dataset, "run", index) for index in range(SERVERS)]
    with open(logs() / "slow_server.log", "ab") as log:
        log.write(f"\n=== {planted.name}\n".encode())
        log.flush()
        processes = [
            subprocess.Popen(_command(planted, place, run), cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log)
            for run in runs
        ]
        try:
            _await_steps(runs, processes)
            yield runs[0].folder
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def _command(planted: Planted, place: Place, run: Run) -> list[str]:
    is_slow = run.index == planted.server
    prefix, module = (place.prefix, planted.module) if is_slow else ((), MODULE)
    return [*prefix, sys.executable, "-m", module, str(run.folder), str(os.getpid())]


def _await_steps(runs: Sequence[Run], processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not all(len(read(run.folder / "record", "batches")) >= STEPS for run in runs):
        if time.monotonic() > end or any(process.poll() is not None for process in processes):
            raise NotPossible(
                f"a server ended, or took no steps in {TIMEOUT_S:.0f} s; see {logs() / 'slow_server.log'}"
            )
        time.sleep(POLL_S)


# --- table ------------------------------------------------------------------------------------------------------------


def report(runs: Sequence[Planted], results: Mapping[str, Named]) -> Iterator[str]:
    """Yield a line for each run, and how often the slow server is named, as lines of Markdown."""
    yield "| run | slow stage | named | |"
    yield "|---|---|---|---|"
    rows = [(run, results[run.name]) for run in runs if run.name in results]
    for run, found in rows:
        server = "none" if found.server is None else f"server {found.server}, {found.stage}"
        mark = "correct" if _is_correct(run, found) else "WRONG"
        mark = mark if found.is_sound else "" if found.reason else "disturbed"
        yield f"| {run.name} | {run.stage or 'none'} | {found.reason or server} | {mark} |"
    sound = [(run, found) for run, found in rows if found.is_sound]
    for title, is_planted in ("a slow server", True), ("equal servers", False):
        correct = [_is_correct(run, found) for run, found in sound if bool(run.stage) is is_planted]
        yield ""
        yield f"{sum(correct)} of {len(correct)} runs with {title} are correct."


def all_correct(runs: Sequence[Planted], results: Mapping[str, Named]) -> bool:
    """Return whether there is a sound result of each run, and it is correct."""
    named = [(run, results.get(run.name)) for run in runs]
    return bool(runs) and all(found and found.is_sound and _is_correct(run, found) for run, found in named)


def _is_correct(run: Planted, found: Named) -> bool:
    return (found.server, found.stage) == (run.server, run.stage)


if __name__ == "__main__":
    sys.exit(main())
