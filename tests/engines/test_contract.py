"""What every engine does: call a task for each place, retry what may work later, and raise errors unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines import ENGINES
from pipeline.engines.task import MAX_RETRIES
from tests.engines.cases import COUNT
from tests.engines.environment import python_of

PLACES = 12
HERE = "airflow"
"""This engine needs no package, and its tests take seconds."""


def engines(but: str = "") -> list[Any]:
    return [pytest.param(name, marks=[] if name == HERE else [pytest.mark.long]) for name in ENGINES if name != but]


class Call:
    """The result of an engine, and the files that its calls wrote."""

    def __init__(self, engine: str, function: str, folder: Path, sources: str = "*") -> None:
        command = [python_of(engine), "-m", "tests.engines.call", engine, function, str(folder), str(PLACES), sources]
        # The allowlists of this process must not reach the engine by another way.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TENFOLD_ALLOWED")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr
        self.stderr = done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        self.count, self.kind, self.message = result["count"], result["kind"], result["message"]
        self.written = {path.name: path.read_text() for path in folder.glob("*.txt")}

    def is_complete(self) -> bool:
        return not self.kind and self.count == COUNT * PLACES and len(self.written) == PLACES


@pytest.mark.parametrize("engine", engines())
def test_an_engine_calls_the_task_for_each_place_and_counts(engine: str, tmp_path: Path):
    assert Call(engine, "write", tmp_path).is_complete()


@pytest.mark.parametrize("engine", engines())
def test_an_error_that_no_retry_repairs_is_raised_unchanged(engine: str, tmp_path: Path):
    call = Call(engine, "refuse_the_first", tmp_path)
    assert call.kind == "SourceError"
    assert call.message == "00000.txt changed after it was listed: run again"


@pytest.mark.parametrize("engine", engines())
def test_a_call_that_failed_is_repeated(engine: str, tmp_path: Path):
    assert Call(engine, "fail_once", tmp_path).is_complete()


@pytest.mark.parametrize("engine", engines())
def test_an_error_is_raised_after_the_last_retry_and_all_other_calls_have_ended(engine: str, tmp_path: Path):
    call = Call(engine, "fail_always", tmp_path)
    assert call.kind in ("StorageError", "EngineError")
    assert "the bucket did not answer" in call.message
    assert len((tmp_path / "00001.txt.calls").read_text()) >= MAX_RETRIES + 1
    if engine == HERE:
        assert len(call.written) == PLACES - 1


# A worker of Beam that is killed ends its pipeline: see test_kills.py.
@pytest.mark.parametrize("engine", engines(but="beam"))
def test_a_killed_call_is_repeated(engine: str, tmp_path: Path):
    assert Call(engine, "be_killed_once", tmp_path).is_complete()


@pytest.mark.parametrize("engine", engines())
def test_the_allowlists_of_the_caller_hold_in_the_processes_of_an_engine(engine: str, tmp_path: Path):
    assert set(Call(engine, "tell_sources", tmp_path, "/data,/more").written.values()) == {"/data,/more"}


def test_an_engine_without_its_package_names_it(tmp_path: Path):
    for engine in ("spark", "beam"):
        package = {"spark": "pyspark", "beam": "apache_beam"}[engine]
        hidden = f"import sys; sys.modules[{package!r}] = None\n"
        script = f"{hidden}from pipeline.engines import engine_named\nengine_named({engine!r})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert f"engine={engine} needs the package {package}, which is not installed" in done.stderr
