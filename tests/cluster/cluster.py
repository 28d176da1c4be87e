"""A real Airflow on PostgreSQL, with Celery workers as processes of this machine."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil

from scripts.airflow.client import Client, Login
from scripts.airflow.embedded import Embedded, prepare
from scripts.airflow.processes import find
from scripts.airflow.ready import wait_until_ready
from scripts.airflow.settings import DATABASE, Layout
from scripts.airflow.signals import Signals
from tests.cluster.servers import REDIS
from tests.waiting import until

CPU, GPU = "default", "gpu"
CPU_WORKERS = ("cpu-1", "cpu-2")
GPU_WORKER = "gpu-1"

HEARTBEATS = {
    # A dead worker is detected by the missing heartbeats of its tasks. The defaults (300 and 10 s) take five minutes.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
}


def celery(database: str, key_prefix: str) -> dict[str, str]:
    """Return the settings of an Airflow whose tasks run on Celery workers."""
    return {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__CORE__PARALLELISM": "8",
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "tests.cluster.worker.worker_name",
        DATABASE: database,
        "AIRFLOW__CELERY__BROKER_URL": REDIS,
        "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__GLOBAL_KEYPREFIX": key_prefix,
        # Longer than the longest training. Otherwise, the message of a running task would be delivered a second time.
        "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": str(8 * 24 * 3600),
        "TENFOLD_GPU_QUEUE": GPU,
        "TENFOLD_RETRAIN_POLL_SECONDS": "5",
        **HEARTBEATS,
    }


class Cluster:
    """An Airflow and its workers."""

    def __init__(self, airflow: Embedded) -> None:
        self._airflow = airflow
        self._since = datetime.now(UTC)

    @property
    def workspace(self) -> Path:
        """The default workspace."""
        return self._airflow.layout.workspace

    def start(self) -> None:
        """Start Airflow and three workers."""
        self._airflow.start(Signals())
        for name in CPU_WORKERS:
            self.add_worker(name, CPU, 2)
        self.add_worker(GPU_WORKER, GPU, 1)
        for name in (*CPU_WORKERS, GPU_WORKER):
            until(lambda name=name: f"celery@{name} ready" in self._airflow.log(name).read_text(), 480, 0.5)

    def add_worker(self, name: str, queue: str, tasks_at_once: int) -> None:
        """Start a worker of one queue. It takes waiting tasks as soon as it is ready."""
        options = ["--queues", queue, "--concurrency", str(tasks_at_once), "--celery-hostname", name]
        # Without the log server, which would listen on all interfaces.
        command = ["celery", "worker", *options, "--skip-serve-logs"]
        self._airflow.add(name, command, {"TENFOLD_TEST_WORKER": name})

    def kill(self, worker: str) -> None:
        """Kill a worker and all its child processes, as when its machine dies."""
        for process in self.processes(worker):
            process.kill()

    def processes(self, *names: str) -> list[psutil.Process]:
        """Return the processes of the given commands of Airflow, or of all, with their child processes."""
        noted = self._airflow.record.processes
        roots = [root for name in names or noted if (root := find(noted[name]))]
        return [process for root in roots for process in (root, *root.children(recursive=True))]

    @contextmanager
    def client(self, dag_id: str) -> Iterator[Client]:
        """Yield a client of a DAG that is parsed and not paused."""
        with closing(Client(self._airflow.url, self._airflow.password, dag_id)) as client:
            wait_until_ready(self._airflow, client, self._since, Signals())
            yield client

    @contextmanager
    def http(self) -> Iterator[httpx.Client]:
        """Yield an HTTP client of the API server with a login."""
        login = Login(self._airflow.url, self._airflow.password)
        with httpx.Client(base_url=self._airflow.url, auth=login, timeout=60, trust_env=False) as http:
            yield http


@contextmanager
def started(layout: Layout, settings: dict[str, str]) -> Iterator[Cluster]:
    """Yield a cluster. It ends with the block, including all its processes."""
    layout.home.mkdir(mode=0o700)
    airflow = prepare(layout, background=False, settings=settings)
    try:
        cluster = Cluster(airflow)
        cluster.start()
        yield cluster
    finally:
        airflow.stop()
