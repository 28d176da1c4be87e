"""An Airflow as an operator uses it, by the commands of `scripts.airflow`, and what it costs."""

import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
from scripts.airflow.embedded import components

COMPONENTS = tuple(components(0))
EVERY_S = 2.0
"""Seconds between two looks at the processes."""
ALONE = ("scheduler", "dag-processor")
"""The child processes of these components are short: tasks and parses. Those of the others stay, or are their tasks."""


class Operator(ABC):
    """A person who uses an Airflow in a folder of its own. As a context manager, Airflow ends with the block.

    `settings` are those of the file in TENFOLD_SETTINGS. The output of all commands is in `log`.
    """

    set_up: str
    """What the Airflow consists of, in a sentence."""
    at_once: int
    """Dates of a backfill that run at a time."""
    components: tuple[str, ...] = COMPONENTS
    """Names of the processes that stay."""
    victim: str
    """What `kill_work` kills: a task, for one."""
    place: str
    """Column of `task_instance` that says where a task runs. Its value is the argument of `kill_work`."""

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
        }

    def __enter__(self) -> "Operator":
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command."""
        with open(self._log, "ab") as log:
            log.write(f"$ {' '.join(arguments)}\n".encode())
            log.flush()
            command = [sys.executable, "-m", "scripts.airflow", *arguments]
            return subprocess.Popen(command, cwd=ROOT, env=self.environ, stdout=log, stderr=subprocess.STDOUT)

    def last_output(self) -> list[str]:
        """Return the lines of the last command."""
        return self._log.read_text().rpartition("$ ")[2].splitlines()

    @abstractmethod
    def up(self) -> None:
        """Start Airflow with the variables in `environ`."""

    @abstractmethod
    def down(self) -> None:
        """Stop Airflow."""

    @abstractmethod
    def kill_scheduler(self, command: "subprocess.Popen[bytes]") -> dict[str, float]:
        """Kill the scheduler, and do what a person then does. Return what that took.

        `command` is a backfill. If it has ended after this, it must be given again.
        """

    @abstractmethod
    def kill_work(self, place: Any) -> bool:
        """Kill what runs a task. Return whether it was there."""

    @abstractmethod
    def ask(self, query: str, *values: str) -> list[Any]:
        """Return rows of Airflow's database, with times as text."""

    @abstractmethod
    def rows(self) -> Counter[str]:
        """Return the number of rows of each table of the database."""

    @abstractmethod
    def database_mb(self) -> float:
        """Return the size of the database."""

    @abstractmethod
    def processes(self) -> dict[str, psutil.Process]:
        """Return Airflow's processes that live, by their names."""

    @abstractmethod
    def login(self) -> tuple[str, str]:
        """Return the address of the API server, and the password of its user."""

    @contextmanager
    def http(self) -> Iterator[httpx.Client]:
        """Requests with a log-in."""
        url, password = self.login()
        with httpx.Client(base_url=url, auth=Login(url, password), timeout=300, trust_env=False) as http:
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
    members = [process, *([] if name in ALONE else process.children(recursive=True))]
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
