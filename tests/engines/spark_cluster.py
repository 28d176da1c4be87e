"""A standalone Spark cluster on loopback, with two workers."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.engines.environment import python_of
from tests.waiting import until

WORKERS = 2
ON_LOOPBACK = ("--host", "127.0.0.1", "--webui-port", "0")


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """Give the address of a master. The cluster ends with the block."""
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
        yield address
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


def executors() -> list[psutil.Process]:
    """Return the Python workers of all executors."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "pyspark.daemon" in " ".join(process.info["cmdline"] or ())
    ]
