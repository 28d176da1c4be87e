"""A real Airflow on PostgreSQL, with Celery workers as processes of this machine."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from scripts.airflow.client import Client, Login
from scripts.airflow.embedded import SCHEDULER, Embedded, components, prepare
from scripts.airflow.processes import find
from scripts.airflow.ready import check_time, wait_until_ready
from scripts.airflow.settings import DATABASE, ROOT, Layout
from scripts.airflow.signals import Signals
from standins.cluster import worker_name
from standins.cluster.servers import REDIS

CPU, GPU = "default", "gpu"
CPU_WORKERS = ("cpu-1", "cpu-2")
GPU_WORKER = "gpu-1"
WORKERS: Mapping[str, tuple[str, int]] = {**dict.fromkeys(CPU_WORKERS, (CPU, 2)), GPU_WORKER: (GPU, 1)}
"""Queue of each worker, and its tasks at a time: as many as in Compose."""
OF_A_TEAM = ("AIRFLOW__CELERY", "AIRFLOW__SCHEDULER", "AIRFLOW__WORKERS", "AIRFLOW__CORE__EXECUTOR")
"""Beginnings of the settings that are those of Compose. The others are about addresses and folders."""


def celery(database: str, key_prefix: str) -> dict[str, str]:
    """Return the settings of an Airflow whose tasks run on Celery workers."""
    return {
        **_of_compose(),
        "AIRFLOW__CORE__PARALLELISM": "32",  # The default of Airflow, which Compose keeps.
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": f"{worker_name.__name__}.worker_name",
        DATABASE: database,
        "AIRFLOW__CELERY__BROKER_URL": REDIS,
        "AIRFLOW__CELERY__RESULT_BACKEND": REDIS,
        "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__GLOBAL_KEYPREFIX": key_prefix,
        "AIRFLOW__CELERY_RESULT_BACKEND_TRANSPORT_OPTIONS__GLOBAL_KEYPREFIX": key_prefix,
        "TENFOLD_GPU_QUEUE": GPU,
    }


def _of_compose() -> dict[str, str]:
    environment: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["x-environment"]
    return {name: value for name, value in environment.items() if name.startswith(OF_A_TEAM)}


class Cluster:
    """An Airflow and its workers."""

    def __init__(self, airflow: Embedded) -> None:
        self.airflow = airflow
        self._since = datetime.now(UTC)

    @property
    def workspace(self) -> Path:
        """The default workspace."""
        return self.airflow.layout.workspace

    def start(self) -> None:
        """Start Airflow and three workers."""
        signals = Signals()
        with closing(Client(self.airflow.url, self.airflow.password, "")) as client:
            self.airflow.start(signals, client.ready)
        for name in WORKERS:
            self.airflow.log(name).unlink(missing_ok=True)  # It would say that an earlier worker is ready.
            self.add_worker(name, *WORKERS[name])
        begin = time.monotonic()
        for name in WORKERS:
            while f"celery@{name} ready" not in self.airflow.log(name).read_text():
                self.airflow.check()
                check_time(begin, f"its worker is not ready: see {self.airflow.log(name)}")
                signals.pause(0.5)

    def add_worker(self, name: str, queue: str, tasks_at_once: int) -> None:
        """Start a worker of one queue. It takes waiting tasks as soon as it is ready."""
        options = ["--queues", queue, "--concurrency", str(tasks_at_once), "--celery-hostname", name]
        # Without the log server, which would listen on all interfaces.
        command = ["celery", "worker", *options, "--skip-serve-logs"]
        self.airflow.add(name, command, {worker_name.VARIABLE: name})

    def kill(self, name: str) -> None:
        """Kill a worker, or the scheduler, and all its child processes, as when its machine dies."""
        for process in self.processes(name):
            process.kill()

    def restart(self, name: str) -> None:
        """Start a killed worker or scheduler again, as Docker does by itself."""
        if name == SCHEDULER:
            self.airflow.add(name, components(self.airflow.record.port)[name])
        else:
            self.add_worker(name, *WORKERS[name])

    def roots(self) -> dict[str, psutil.Process]:
        """Return the commands of Airflow that live, by their names."""
        noted = self.airflow.record.processes
        return {name: root for name in noted if (root := find(noted[name]))}

    def processes(self, *names: str) -> list[psutil.Process]:
        """Return the processes of the given commands of Airflow, or of all, with their child processes."""
        roots = self.roots()
        chosen = [roots[name] for name in names or roots if name in roots]
        return [process for root in chosen for process in (root, *root.children(recursive=True))]

    @contextmanager
    def client(self, dag_id: str) -> Iterator[Client]:
        """Yield a client of a DAG that is parsed and not paused."""
        with closing(Client(self.airflow.url, self.airflow.password, dag_id)) as client:
            wait_until_ready(self.airflow, client, self._since, Signals())
            yield client

    @contextmanager
    def http(self) -> Iterator[httpx.Client]:
        """Yield an HTTP client of the API server with a login."""
        login = Login(self.airflow.url, self.airflow.password)
        with httpx.Client(base_url=self.airflow.url, auth=login, timeout=60, trust_env=False) as http:
            yield http


@contextmanager
def started(layout: Layout, settings: Mapping[str, str]) -> Iterator[Cluster]:
    """Yield a cluster. It ends with the block, including all its processes."""
    layout.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    airflow = prepare(layout, background=False, settings=settings)
    try:
        cluster = Cluster(airflow)
        cluster.start()
        yield cluster
    finally:
        airflow.stop()
