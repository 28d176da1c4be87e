"""The environment of the processes that this project starts."""

import subprocess
import sys
from pathlib import Path

import pytest

import pipeline
from pipeline.system.process import environment_of_tensorflow


def test_a_process_finds_this_project_wherever_it_is_started(tmp_path: Path):
    script = "import pipeline; print(pipeline.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment_of_tensorflow(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == Path(pipeline.__file__)


def test_gpus_have_threads_of_their_own_unless_the_user_decides_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TF_GPU_THREAD_MODE", raising=False)
    assert environment_of_tensorflow()["TF_GPU_THREAD_MODE"] == "gpu_private"
    monkeypatch.setenv("TF_GPU_THREAD_MODE", "global")
    assert environment_of_tensorflow()["TF_GPU_THREAD_MODE"] == "global"
