"""A command waits for the start of Airflow while its processes work, up to a limit."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.airflow import ready
from scripts.airflow.embedded import Embedded
from scripts.airflow.errors import Failed
from scripts.airflow.processes import identify
from scripts.airflow.ready import ANY_TIME, wait_until_ready
from scripts.airflow.record import Record
from scripts.airflow.remote import Airflow
from scripts.airflow.settings import Layout
from scripts.airflow.signals import Signals
from tests.waiting import until

IDLE = "import time; time.sleep(60)"
BUSY = "while True: pass"
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
Start = Callable[[str], Embedded]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts an Airflow whose only process runs some code and never answers."""
    started: list[Embedded] = []

    def make(code: str) -> Embedded:
        process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        layout = Layout(tmp_path, tmp_path / "workspace", tmp_path / "dags")
        embedded = Embedded(layout, Record(9, True, {"scheduler": identify(process.pid)}))
        embedded._children.append(process)
        started.append(embedded)
        return embedded

    yield make
    for embedded in started:
        embedded.stop()


def wait(airflow: Airflow) -> None:
    """Wait for an Airflow that is never ready, until it is given up."""
    never = SimpleNamespace(ready=lambda: False, dag_id="image_training")
    wait_until_ready(airflow, never, ANY_TIME, Signals())  # type: ignore[arg-type]


def test_idle_processes_end_the_wait(start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ready, "STALL_S", 1.0)
    with pytest.raises(Failed, match=r"almost nothing for 1 s.*image_training.*see the logs in"):
        wait(start(IDLE))


def test_the_error_for_a_remote_airflow_does_not_mention_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ready, "STALL_S", 1.0)
    layout = Layout(tmp_path, tmp_path / "workspace", tmp_path / "dags")
    elsewhere = Airflow(layout, "http://airflow", "password", pages="http://airflow")
    with pytest.raises(Failed, match=r"not ready for 1 s.*http://airflow .*image_training") as caught:
        wait(elsewhere)
    assert "did almost nothing" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("code", [BUSY, IN_A_CHILD])
def test_busy_processes_are_awaited_up_to_a_limit(start: Start, monkeypatch: pytest.MonkeyPatch, code: str):
    """A second passes whenever the processes have worked for a while."""
    airflow = start(code)
    times: list[float] = []

    def monotonic() -> float:
        before = airflow.work_s()
        until(lambda: airflow.work_s() - before >= ready.WORK_S)
        times.append(len(times))
        return times[-1]

    for name, value in {
        "STALL_S": 3.0,
        "WORK_S": 0.05,
        "LIMIT_S": 8.0,
        "time": SimpleNamespace(monotonic=monotonic),
    }.items():
        monkeypatch.setattr(ready, name, value)
    with pytest.raises(Failed, match=r"gave up on Airflow after 8 s: .*image_training"):
        wait(airflow)
    assert times[-1] == 9  # the first second after the limit
