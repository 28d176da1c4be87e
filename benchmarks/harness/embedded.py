"""An embedded Airflow as an operator uses it, by the commands of `scripts.airflow`, and what it costs."""

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import httpx
import psutil

from benchmarks.harness.backfill import cpu_of
from benchmarks.harness.rounds import ENVIRONMENT, ROOT
from scripts.airflow.client import Login
from scripts.airflow.embedded import free_port
from scripts.airflow.keys import load_keys
from scripts.airflow.processes import find
from scripts.airflow.record import read_record
from scripts.airflow.settings import url_of

EVERY_S = 2.0
"""Seconds between two looks at the processes."""
WITH_CHILDREN = ("api-server", "triggerer")
"""Their child processes stay as long as they do. Those of the other components are tasks and parses."""


class Operator:
    """Commands of `make up`, `down` and `backfill` for an Airflow in a folder of its own.

    `settings` are those of the file in TENFOLD_SETTINGS. The output of all commands is in `log`.
    """

    def __init__(self, folder: Path, settings: str, log: Path) -> None:
        self.home, self.workspace, self._log = folder / "home", folder / "workspace", log
        self.settings = folder / "settings.toml"
        (self.workspace / "samples").mkdir(parents=True)  # `up` draws no sample images if the folder exists.
        self.settings.write_text(settings)
        self.environ = {
            **ENVIRONMENT,
            "TENFOLD_HOME": str(self.home),
            "TENFOLD_WORKSPACE": str(self.workspace),
            "TENFOLD_SETTINGS": str(self.settings),
            "TENFOLD_PORT": str(free_port(0)),
        }

    @property
    def database(self) -> Path:
        """Airflow's database."""
        return self.home / "airflow.db"

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command."""
        with open(self._log, "ab") as log:
            log.write(f"$ {' '.join(arguments)}\n".encode())
            log.flush()
            command = [sys.executable, "-m", "scripts.airflow", *arguments]
            return subprocess.Popen(command, cwd=ROOT, env=self.environ, stdout=log, stderr=subprocess.STDOUT)

    def command(self, *arguments: str) -> None:
        """Run a command that must succeed."""
        if self.start(*arguments).wait():
            raise SystemExit(f"{' '.join(arguments)} failed: see {self._log}")

    def last_output(self) -> list[str]:
        """Return the lines of the last command."""
        return self._log.read_text().rpartition("$ ")[2].splitlines()

    def ask(self, query: str, *values: str) -> list[Any]:
        """Return rows of Airflow's database."""
        with closing(sqlite3.connect(f"{self.database.as_uri()}?mode=ro", uri=True, timeout=60)) as connection:
            return connection.execute(query, values).fetchall()

    def processes(self) -> dict[str, psutil.Process]:
        """Return Airflow's processes that live, by their names."""
        try:
            record = read_record(self.home)
        except json.JSONDecodeError:  # It is being written.
            return {}
        identities = record.processes.items() if record else ()
        return {name: process for name, identity in identities if (process := find(identity))}

    @contextmanager
    def http(self) -> Iterator[httpx.Client]:
        """Requests with a log-in."""
        record = read_record(self.home)
        assert record is not None
        url = url_of(record.port)
        login = Login(url, load_keys(self.home / "keys.json").password)
        with httpx.Client(base_url=url, auth=login, timeout=300, trust_env=False) as http:
            http.get("/api/v2/dags", params={"limit": 1}).raise_for_status()
            yield http


@dataclass
class Costs:
    """What the processes of an Airflow used, over all its starts. As a context manager, a thread looks at them."""

    operator: Operator
    peak_mb: dict[str, float] = field(default_factory=dict)
    """Of each component: of the process alone, or with its child processes if they stay."""
    _cpu_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "Costs":
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes so far, those of tasks included."""
        self.look()
        return sum(self._cpu_s.values())

    def look(self) -> None:
        """Look at all processes now."""
        with self._lock:
            for name, process in self.operator.processes().items():
                with suppress(psutil.Error):  # It has ended meanwhile.
                    self._cpu_s[name, process.pid] = sum(cpu_of(process))
                    self.peak_mb[name] = max(self.peak_mb.get(name, 0), memory_mb(name, process))

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.look()


def memory_mb(name: str, process: psutil.Process) -> float:
    """Return the memory that a component holds now."""
    members = [process, *(process.children(recursive=True) if name in WITH_CHILDREN else [])]
    return sum(float(each.memory_info().rss) for each in members) / 1e6


def size_mb(*places: Path) -> float:
    """Return the bytes of files, and of all files in folders."""
    files = (file for place in places for file in ([place] if place.is_file() else place.rglob("*")))
    return sum(file.lstat().st_size for file in files if file.is_file()) / 1e6


def grid_queries(dag_id: str, runs: int) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Return the first requests of Airflow's grid for the newest `runs` of a DAG: 10 by default, 100 at most."""
    newest = {"limit": runs, "order_by": "-run_after"}
    return [(f"/ui/grid/{what}/{dag_id}", newest) for what in ("structure", "runs")]


def grid_s(http: httpx.Client, dag_id: str, runs: int) -> float:
    """Return the seconds until the grid has all that it draws, as one request after another."""
    begin = perf_counter()
    for path, query in grid_queries(dag_id, runs):
        answer = http.get(path, params=query).raise_for_status()
    run_ids = [run["run_id"] for run in answer.json()]
    http.get(f"/ui/grid/ti_summaries/{dag_id}", params={"run_ids": run_ids}).raise_for_status()
    return perf_counter() - begin


def list_s(http: httpx.Client) -> float:
    """Return the seconds until the page of all trainings has its rows."""
    begin = perf_counter()
    http.get("/tenfold/trainings").raise_for_status()
    http.get("/tenfold/trainings.json", params={"limit": 100, "sort": "started", "up": "false"}).raise_for_status()
    return perf_counter() - begin


def pages_s(operator: Operator, dag_id: str, looks: int = 5) -> dict[str, list[float]]:
    """Return the median and the longest seconds of each page."""
    with operator.http() as http:
        found = {
            f"grid of {dag_id} with the newest {runs} runs": [grid_s(http, dag_id, runs) for _ in range(looks)]
            for runs in (10, 100)
        }
        found["list of trainings"] = [list_s(http) for _ in range(looks)]
    return {name: [median(seconds), max(seconds)] for name, seconds in found.items()}
