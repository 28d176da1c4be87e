"""A standalone Spark cluster on loopback, with two workers."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.engines.environment import python_of
from tests.waiting import until

WORKERS = 2
ON_LOOPBACK = ("--host", "127.0.0.1", "--webui-port", "0")


@dataclass(frozen=True)
class Cluster:
    """The address of a master, and its workers."""

    address: str
    workers: list[psutil.Process]

    def executors(self) -> list[psutil.Process]:
        """Return the processes that work for executors: their JVMs, and their Python workers."""
        with suppress(psutil.NoSuchProcess):  # An executor may end in the meantime.
            return [process for worker in self.workers for process in worker.children(recursive=True)]
        return []


@contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster, which ends with the block."""
    processes = []
    try:
        processes.append(_start(folder / "master", "master.Master", "--port", "0"))
        log = folder / "master" / "log"
        until(lambda: "New state: ALIVE" in log.read_text("utf-8"), 60)
        [address] = re.findall(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)", log.read_text("utf-8"))
        for number in range(WORKERS):
            name = f"worker{number}"
            processes.append(_start(folder / name, "worker.Worker", "--cores", "1", "--memory", "1g", address))
        until(lambda: log.read_text("utf-8").count("Registering worker") == WORKERS, 60)
        yield Cluster(address, [psutil.Process(process.pid) for process in processes[1:]])
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start(folder: Path, kind: str, *options: str) -> "subprocess.Popen[bytes]":
    folder.mkdir(parents=True)
    python = python_of("spark")
    [home] = Path(python).parents[1].glob("lib/python3.*/site-packages/pyspark")
    environment = {"SPARK_HOME": str(home), "SPARK_WORKER_DIR": str(folder), "PYSPARK_PYTHON": python}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *ON_LOOPBACK, *options],
            env={**os.environ, **environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=log,
            stderr=log,
        )
