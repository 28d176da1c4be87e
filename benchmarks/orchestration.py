"""What orchestration costs: the import of the DAGs, and what a run takes beside the work itself.

    make bench-orchestration
    python -m benchmarks.orchestration [--rounds N] [--imports] [--dates N [--beside CHECKOUT]] [--json FILE]

Each round starts the embedded Airflow in a new home, as `make run` does, lets the whole chain `image_training` run on
40 small images, once as the first run of that Airflow and once more, and stops it. In turn with it, `python -m pipeline
run` does the same work in a process of its own. Every run has a new workspace.

With `--dates`, each round starts the embedded Airflow in a new home and backfills `image_dataset` for N dates with 20
small images each, without `retrain`. `--beside` does the same in turn with the code of another checkout, such as the
one before a change.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, astuple, dataclass, field
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.machine import HOME, OtherLoad, logs, machine_line, new_folder, say
from benchmarks.harness.rounds import ENVIRONMENT, ROOT, turned
from pipeline.config.allowed import open_unless_set
from pipeline.sources.samples import draw_samples
from scripts.airflow.client import Client, new_run_id
from scripts.airflow.commands import own_airflow
from scripts.airflow.errors import Failed
from scripts.airflow.follow import SingleRun, follow
from scripts.airflow.progress import Lines, time_of
from scripts.airflow.record import exclusive_home
from scripts.airflow.results import failure_of
from scripts.airflow.settings import Layout
from scripts.airflow.signals import Signals

DAG = "image_training"
IMAGES = 40
IMAGES_OF_DATE = 20
FIRST_DATE = date(2025, 1, 1)
OURS = "this checkout"
IMPORT_ROUNDS = 5
WANTED_IMPORT_S = 0.1
WANTED_OUTSIDE_S = 25.0
RUNS = ("first run", "later run")


@dataclass
class Stage:
    """Where the time of one task went, or of all that it was mapped to, in seconds; they follow one another."""

    task: str
    noticed: float
    """From the end of what came before until the scheduler had it scheduled."""
    queued: float
    """Until its process began."""
    started: float
    """Until its own code began: imports, the parse of its DAG, its arguments."""
    ran: float


@dataclass
class Measured:
    """What the rounds took, in seconds."""

    start: list[float] = field(default_factory=list)
    """The start of Airflow, which no run counts."""
    work: list[float] = field(default_factory=list)
    runs: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in RUNS})
    stages: dict[str, list[list[Stage]]] = field(default_factory=lambda: {name: [] for name in RUNS})

    def outside(self, name: str) -> float:
        """Return what a run took beside the work, by the medians."""
        return median(self.runs[name]) - median(self.work)


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    open_unless_set()
    try:
        if options.dates:
            results: dict[str, Any] = {"dates": dates_results(options)}
        else:
            results = {"imports": import_results()}
            results |= {} if options.imports else {"chain": chain_results(options.rounds)}
    finally:
        shutil.rmtree(HOME / "work", ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration", description="What orchestration costs.")
    parser.add_argument("--rounds", type=int, default=3, help="of the whole chain, of a minute and a half each")
    parser.add_argument("--imports", action="store_true", help="measure nothing but the import of the DAGs")
    parser.add_argument("--dates", type=int, help="measure only a backfill, with this number of dates")
    parser.add_argument("--beside", type=Path, help="folder of another checkout that backfills in turn with this one")
    parser.add_argument("--json", type=Path, help="file for every figure")
    return parser.parse_args(arguments)


def import_results() -> list[dict[str, Any]]:
    """Import all of dags/ in new processes, and print what it took."""
    names = sorted(f"dags.{path.stem}" for path in (ROOT / "dags").glob("*.py"))
    found = [imported(names) for _ in range(IMPORT_ROUNDS)]

    def of(name: str) -> float:
        return float(median(each[name] for each in found))

    heavy = sorted(set(heavy_modules()) & {module for each in found for module in each["modules"]})
    lines = [
        f"| imported, medians of {IMPORT_ROUNDS} processes | s | of them on a core | wanted |",
        "|---|---|---|---|",
        f"| Airflow itself, and a DAG of two tasks | {of('airflow_s'):.2f} | {of('airflow_cpu_s'):.2f} | |",
        f"| then all of `dags/` | {of('ours_s'):.3f} | {of('ours_cpu_s'):.3f} | < {WANTED_IMPORT_S} |",
        f"| heavy modules that came in | {', '.join(heavy) or 'none'} | | none |",
    ]
    print("\n".join([machine_line("apache-airflow"), "", *lines, ""]), flush=True)
    return found


def imported(names: Sequence[str]) -> dict[str, Any]:
    """Return what `benchmarks.harness.dag_import` says of one import of the modules."""
    command = [sys.executable, "-m", "benchmarks.harness.dag_import", *names]
    with open(logs() / "dag_import.log", "ab") as log:
        done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=log, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def heavy_modules() -> list[str]:
    """Return what the linter bans from the top of DAGs."""
    rules = tomllib.loads((ROOT / "dags" / "ruff.toml").read_text())
    banned: list[str] = rules["lint"]["flake8-tidy-imports"]["banned-module-level-imports"]
    return banned


def chain_results(rounds: int) -> dict[str, Any]:
    """Run the chain with and without Airflow in turn, and print what Airflow took."""
    source, measured = new_folder("source"), Measured()
    draw_samples(source, IMAGES)
    work_alone(source)  # what is read from disk for the first time must not count for the first contender
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        steps: list[Callable[[], None]] = [
            lambda: measured.work.append(work_alone(source)),
            lambda: measure_airflow(source, measured),
        ]
        for step in steps[:: -1 if number % 2 else 1]:
            step()
    print("\n".join([*outside_table(measured), *(line for name in RUNS for line in stage_table(name, measured))]))
    return asdict(measured)


def settings_of(source: Path) -> dict[str, Any]:
    """Return the settings of both runs."""
    return {"source_uri": str(source), "workspace": str(new_folder("workspace")), "epochs": 1}


def work_alone(source: Path) -> float:
    """Return seconds of the whole chain without Airflow."""
    set_options = [word for name, value in settings_of(source).items() for word in ("--set", f"{name}={value}")]
    with open(logs() / "pipeline_run.log", "ab") as log:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "pipeline", "run", *set_options]
        subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log, check=True)
        return time.perf_counter() - begin


def measure_airflow(source: Path, measured: Measured) -> None:
    """Runs of the chain in an Airflow of their own."""
    layout = Layout(home=new_folder("airflow"), workspace=new_folder("workspace"), dags=ROOT / "dags")
    begin = time.perf_counter()
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        stack.enter_context(redirect_stdout(sys.stderr))  # standard output is for the tables alone
        stack.enter_context(exclusive_home(layout.home))
        airflow, client = stack.enter_context(own_airflow(layout, DAG, signals))
        measured.start.append(time.perf_counter() - begin)
        for name in RUNS:
            job = SingleRun(client, settings_of(source), new_run_id(), {})
            follow(airflow, job, Lines(sys.stderr), signals)
            keep(client, job.run_id, name, measured)


def keep(client: Client, run_id: str, name: str, measured: Measured) -> None:
    """Keep what Airflow says of a run."""
    run = client.run(run_id)
    if run["state"] != "success":
        raise Failed(failure_of(client, run_id))
    begin, end = moment(run["start_date"]), moment(run["end_date"])
    measured.runs[name].append((end - begin).total_seconds())
    measured.stages[name].append(stages_of(client, run_id, begin))


def stages_of(client: Client, run_id: str, begin: datetime) -> list[Stage]:
    """Return the stages of a run in order; each begins where the one before ended, since the chain has no branches."""
    stages: dict[str, list[dict[str, Any]]] = {}
    began = [instance for instance in client.task_instances(run_id) if instance["start_date"]]  # the rest is skipped
    for instance in sorted(began, key=lambda each: each["start_date"]):
        stages.setdefault(instance["task_id"], []).append(instance)
    found = []
    for name, instances in stages.items():
        end = max(moment(each["end_date"]) for each in instances)
        last = max(instances, key=lambda each: each["end_date"])
        scheduled, started = moment(last["scheduled_when"]), moment(last["start_date"])
        ready = code_began(client.log(run_id, last), started)
        points = (begin, scheduled, started, ready, end)
        found.append(Stage(name, *(seconds(one, other) for one, other in pairwise(points))))
        begin = end
    return found


def code_began(log: Sequence[Any], otherwise: datetime) -> datetime:
    """When a task's own code began: Airflow's log folds away what comes before."""
    ends = (entry for entry in log if isinstance(entry, dict) and entry["event"] == "::endgroup::")
    found = next((entry["timestamp"] for entry in ends if entry.get("timestamp")), None)
    return moment(found) if found else otherwise


def dates_results(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Backfill the dates with the code of each checkout in turn, and print what a date took."""
    checkouts = {OURS: ROOT} | ({options.beside.name: options.beside.resolve()} if options.beside else {})
    source, days = new_folder("source"), [FIRST_DATE + timedelta(days=number) for number in range(options.dates)]
    source.mkdir()
    for number, day in enumerate(days):
        draw_samples(source / day.isoformat(), IMAGES_OF_DATE, seed=number)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    with OtherLoad() as load:
        for number in range(options.rounds):
            for name in turned(list(checkouts), number):
                found[name].append(backfilled(checkouts[name], source, days))
                say(f"round {number + 1} of {options.rounds}: {name} {found[name][-1]}")
    print("\n".join([machine_line("apache-airflow"), load.sentence(), "", *dates_table(found)]), flush=True)
    return found


def backfilled(checkout: Path, source: Path, days: Sequence[date]) -> dict[str, Any]:
    """Return what `benchmarks.harness.backfill` says of a backfill with the code of a checkout."""
    folder = new_folder("backfill")
    script = str(ROOT / "benchmarks" / "harness" / "backfill.py")
    arguments = [f"{source}/{{date}}", str(folder), days[0].isoformat(), days[-1].isoformat()]
    with open(logs() / "backfill.log", "ab") as log:
        done = subprocess.run(
            [sys.executable, "-P", script, *arguments],
            cwd=checkout,
            env=ENVIRONMENT | {"PYTHONPATH": str(checkout)},
            stdout=subprocess.PIPE,
            stderr=log,
            check=True,
        )
    shutil.rmtree(folder)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def dates_table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return what a date took with each checkout, by the medians, and in relation to the last checkout."""
    lines = [
        f"| for each date of {IMAGES_OF_DATE} images | s | to the last row | CPU s | to the last row | s of its run "
        "| s of its tasks, added up | tasks | processes | rows in the database |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    last = list(found.values())[-1]
    for name, rounds in found.items():
        cells = []
        for figure in ("s", "cpu_s"):
            shares = [each[figure] / other[figure] for each, other in zip(rounds, last, strict=True)]
            cells += [f"{median(each[figure] / each['dates'] for each in rounds):.2f}", f"{median(shares):.2f}"]
        for figure, digits in (("run_s", 2), ("tasks_s", 2), ("tasks", 1), ("processes", 1)):
            cells.append(f"{median(each[figure] / each['dates'] for each in rounds):.{digits}f}")
        cells.append(f"{median(sum(each['rows'].values()) / each['dates'] for each in rounds):.0f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def moment(text: str) -> datetime:
    """Return a time that is known to be there."""
    found = time_of(text)
    assert found is not None
    return found


def seconds(one: datetime, other: datetime) -> float:
    """From one to the other."""
    return (other - one).total_seconds()


def outside_table(measured: Measured) -> list[str]:
    """Return what Airflow took of each kind of run."""
    lines = [
        f"{IMAGES} images, one epoch, LocalExecutor and SQLite; medians of {len(measured.work)} rounds. The start of "
        f"Airflow, {median(measured.start):.0f} s, is in neither run.",
        "",
        "| | the whole run, s | the work itself, s | outside of it, s | wanted |",
        "|---|---|---|---|---|",
    ]
    for name in RUNS:
        whole, work = median(measured.runs[name]), median(measured.work)
        lines.append(f"| {name} | {whole:.1f} | {work:.1f} | {measured.outside(name):.1f} | < {WANTED_OUTSIDE_S:.0f} |")
    return lines


def stage_table(name: str, measured: Measured) -> list[str]:
    """Where the time of one kind of run went, task by task."""
    rounds = measured.stages[name]
    lines = ["", f"| {name}: median s | noticed | queued | its process starts | runs |", "|---|---|---|---|---|"]
    rows = [median_stage(stages) for stages in zip(*rounds, strict=True)]
    sums = ["together", *(sum(row[column] for row in rows) for column in range(1, 5))]
    return lines + [f"| {row[0]} | {' | '.join(f'{value:.1f}' for value in row[1:])} |" for row in [*rows, sums]]


def median_stage(stages: Sequence[Stage]) -> list[Any]:
    """Return one task in all rounds, as a row."""
    names, *times = zip(*map(astuple, stages), strict=True)
    return [names[0], *map(median, times)]


if __name__ == "__main__":
    main()
