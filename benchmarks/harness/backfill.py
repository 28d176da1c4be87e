"""Runs a backfill in an embedded Airflow, with the code of the checkout in PYTHONPATH, and says what it took.

    PYTHONPATH=CHECKOUT python -P benchmarks/harness/backfill.py SOURCE FOLDER FIRST LAST

The interface of `scripts.airflow` is all that the checkout must have. FOLDER is for the files of Airflow. `retrain` is
left out, since its training would take most of the time. Prints a JSON object.
"""

import json
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from scripts.airflow.backfill import BackfillRuns
from scripts.airflow.client import Client
from scripts.airflow.commands import own_airflow
from scripts.airflow.embedded import Embedded
from scripts.airflow.follow import follow
from scripts.airflow.progress import Lines, time_of
from scripts.airflow.record import exclusive_home
from scripts.airflow.request import read_backfill
from scripts.airflow.settings import ROOT, Layout
from scripts.airflow.signals import Signals

DAG = "image_dataset"


def main(source: str, folder: str, first: str, last: str) -> None:
    """Run the backfill, and print what it took."""
    place = Path(folder)
    shutil.copytree(ROOT / "dags", place / "dags", ignore=shutil.ignore_patterns("retrain.py", "__pycache__"))
    layout = Layout(home=place / "home", workspace=place / "workspace", dags=place / "dags")
    request = read_backfill(DAG, first, last, "", {"source_uri": source}, datetime.now(UTC))
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # Standard output is for the result alone.
        signals = stack.enter_context(Signals())
        stack.enter_context(exclusive_home(layout.home))
        airflow, client = stack.enter_context(own_airflow(layout, DAG, signals))
        rows, before = rows_in(layout.database), cpu_seconds(airflow)
        runs = follow(airflow, BackfillRuns(client, request), Lines(sys.stderr), signals)
        cpu = {name: spent - before[name] for name, spent in cpu_seconds(airflow).items()}
        added = rows_in(layout.database) - rows
        result = {"cpu_s": sum(cpu.values()), "cpu_of": cpu, "rows": added, **measured(client, runs)}
    print(json.dumps(result))


def measured(client: Client, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return seconds from the start of the first run to the end of the last, and the tasks of all.

    `run_s` adds up the seconds of all runs, and `tasks_s` those of the last attempts of all tasks that had a process.
    """
    if unfinished := [run["dag_run_id"] for run in runs if run["state"] != "success"]:
        raise SystemExit(f"failed: {', '.join(unfinished)}")
    begin, end = (sorted(filter(None, (time_of(run[name]) for run in runs))) for name in ("start_date", "end_date"))
    instances = [instance for run in runs for instance in client.task_instances(run["dag_run_id"])]
    with_process = [instance for instance in instances if instance["pid"]]
    return {
        "dates": len(runs),
        "s": (end[-1] - begin[0]).total_seconds(),
        "run_s": sum(map(seconds_of, runs)),
        "tasks_s": sum(map(seconds_of, with_process)),
        "tasks": len(instances),
        "processes": sum(instance["try_number"] for instance in with_process),
    }


def seconds_of(work: Mapping[str, Any]) -> float:
    """Return the seconds from the start of a run or a task to its end."""
    begin, end = time_of(work["start_date"]), time_of(work["end_date"])
    assert begin
    assert end
    return (end - begin).total_seconds()


def cpu_seconds(airflow: Embedded) -> dict[str, float]:
    """Return the CPU seconds of each of Airflow's processes, with those of child processes that have ended.

    The child processes of the scheduler run the tasks.
    """
    found = {}
    for name, identity in airflow.record.processes.items():
        found[name], found[f"processes of {name}"] = cpu_of(psutil.Process(identity.pid))
    return found


def cpu_of(process: psutil.Process) -> tuple[float, float]:
    """Return the CPU seconds of a process, and those of all processes below it, including those that have ended."""
    own = process.cpu_times()
    below = own.children_user + own.children_system
    for each in process.children(recursive=True):
        with suppress(psutil.Error):  # It has ended meanwhile.
            times = each.cpu_times()
            below += times.user + times.system + times.children_user + times.children_system
    return own.user + own.system, below


def rows_in(database: Path) -> Counter[str]:
    """Return the number of rows of each table."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return Counter({name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names})


if __name__ == "__main__":
    main(*sys.argv[1:])
