"""The real Airflow with a tiny DAG in the shape of image_training."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pipeline.config.allowed import ALL
from scripts.airflow.processes import alive, find
from scripts.airflow.record import read_record
from tests.listening import addresses
from tests.scripts.commands import Commands, read_until
from tests.waiting import until

pytestmark = pytest.mark.long

TOY = """
import time
from airflow.sdk import dag, task, task_group

@dag(schedule=None, params={"source_uri": "", "sleep": 0, "wrong": False})
def toy():
    @task
    def extract(params=None):
        if params["wrong"]:
            raise ValueError("epochs must be positive, got -1")
        return [0, 1, 2]

    @task_group
    def upload(parts):
        @task
        def copy(part):
            return part

        @task
        def commit(copied):
            return {"dataset": "/data/version"}

        return commit(copy.expand(part=parts))

    @task(pool="gpu")
    def train(dataset, params=None):
        time.sleep(params["sleep"])
        return {"model": "/run/model.keras", "comet": "/run/c.zip", "epochs": 9,
            "metrics": {"best_epoch": 7}, "headline": "accuracy 91.4%", "verdict": "fine"}

    @task
    def report(trained):
        return {"report": "/run/report.html"}

    report(train(upload(extract())))

toy()
"""

BEST = "accuracy 91.4%; best epoch: 7 of 9"
RESULTS = ["/data/version", "/run/model.keras", "/run/c.zip (not sent", "/run/report.html", BEST, "fine"]


class Toy(Commands):
    """Commands with their own DAGs folder, Airflow and workspace."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {})
        self.dags = folder / "dags"
        self.dags.mkdir()
        (self.dags / "toy.py").write_text(TOY)
        for setting in ALL:
            self._environ.pop(setting, None)
        (self.workspace / "samples").mkdir(parents=True)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command in its own process group, as a terminal does."""
        return super().start(*arguments, "--dag", "toy", "--dags", str(self.dags))

    @contextmanager
    def setting(self, **variables: str) -> Iterator[None]:
        """Set variables for the commands of the block."""
        before = self._environ
        self._environ = {**before, **variables}
        yield
        self._environ = before

    def processes(self) -> list[psutil.Process]:
        """Return the four processes of Airflow and all of their descendants."""
        record = read_record(self.home)
        roots = [process for noted in record.processes.values() if (process := find(noted))] if record else []
        return [process for root in roots for process in (root, *root.children(recursive=True))]


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    toy = Toy(tmp_path)
    yield toy
    toy.command("down")


def test_run_prints_the_results_and_leaves_no_process(toy: Toy) -> None:
    with toy.start("run") as process:
        output = read_until(process, "Airflow is ready")
        started = toy.processes()
        assert addresses(started) == {"127.0.0.1"}
        assert toy.command("run")[0] == 2
        output += process.communicate()[0]
    assert process.returncode == 0, output
    assert "3 of 3 tasks done" in output
    for result in RESULTS:
        assert result in output
    assert "allow everything" not in output
    assert [child for child in started if alive(child)] == []


@pytest.mark.parametrize(("when", "signum"), [("Starting", signal.SIGTERM), ("train ", signal.SIGINT)])
def test_signals_leave_no_process(toy: Toy, when: str, signum: signal.Signals) -> None:
    with toy.start("run", "--params", json.dumps({"sleep": 100})) as process:
        read_until(process, when)
        until(lambda: len(toy.processes()) >= 4 or process.poll() is not None)
        started = toy.processes()
        assert process.poll() is None
        os.killpg(process.pid, signum)
        read_until(process, "Stopping")
        os.killpg(process.pid, signal.SIGINT)
        process.communicate()
    assert process.returncode == 128 + signum
    assert [child for child in started if alive(child)] == []
    assert not (toy.home / "running.json").exists()


def test_import_error_of_the_dag_is_shown_and_leaves_no_process(toy: Toy) -> None:
    (toy.dags / "toy.py").write_text("from airflow.sdk import dag\nraise RuntimeError('a typo in the DAG')\n")
    with toy.start("run") as process:
        until(lambda: len(toy.processes()) >= 4 or process.poll() is not None)
        started = toy.processes()
        output = process.communicate()[0]
    assert process.returncode == 1
    assert "RuntimeError: a typo in the DAG" in output
    assert len(started) >= 4
    assert [child for child in started if alive(child)] == []


def test_up_serves_runs_until_down_and_failed_tasks_and_dead_processes_are_named(toy: Toy) -> None:
    code, first = toy.command("up")
    assert code == 0, first
    assert "TENFOLD_ALLOWED_PUBLISH and TENFOLD_ALLOWED_MODELS allow everything: a run can access everything" in first
    assert "until you stop it with `make down`" in first
    code, again = toy.command("up")
    message, address = again.splitlines()
    assert (code, address) == (0, first.splitlines()[-1])
    assert message.startswith("Airflow is already running, with the settings from its start")
    code, output = toy.command("run")
    assert code == 0, output
    assert "Using the Airflow at" in output
    settings = toy.home / "settings.toml"
    settings.write_text("epochs = 7")
    with toy.setting(TENFOLD_SETTINGS=str(settings)):
        for command in ("run", "up"):
            code, output = toy.command(command)
            assert (code, f"TENFOLD_SETTINGS is {settings}, but not set for Airflow" in output) == (2, True)
    code, output = toy.command("run", "--params", json.dumps({"wrong": True}))
    assert code == 1
    assert "run: extract failed: ValueError: epochs must be positive, got -1" in output
    assert Path(output.rpartition("Full log: ")[2].strip()).is_file()
    assert toy.command("status")[0] == 0
    record = read_record(toy.home)
    assert record is not None
    started = toy.processes()
    os.kill(record.processes["scheduler"].pid, signal.SIGKILL)
    code, output = toy.command("status")
    assert (code, "scheduler      dead, see" in output) == (1, True)
    assert toy.command("down")[0] == 0
    assert [child for child in started if alive(child)] == []
    assert toy.command("status") == (1, "Airflow is not running. `make up` starts it\n")
