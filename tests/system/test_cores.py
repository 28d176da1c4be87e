"""The number of cores changes the speed of the work and never its result."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeImages
from tests.simulated_cores import SimulatedCores

CORES_OF_RUNS = (1, 9, 256)
"""tests/input/test_cores.py tests other numbers, because a run takes half a minute."""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("cores", [1, 2, 9, 64, 256])
def test_simulated_cores_affect_every_way_to_count_cores(cores: int, tmp_path: Path):
    code = (
        "import os, multiprocessing; print(len(os.sched_getaffinity(0)), os.cpu_count(), multiprocessing.cpu_count())"
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.check_output(command, env=SimulatedCores(tmp_path).environment(cores), text=True)
    assert printed.split() == [str(cores)] * 3


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_is_the_same_on_any_number_of_cores(make_images: MakeImages, tmp_path: Path):
    """The commands build, train, monitor and shuffle-quality run in separate processes."""
    source = make_images({"cats": 40, "dogs": 40, "eels": 40})  # more than are written in one process
    simulated = SimulatedCores(tmp_path)
    results = {cores: _results(source, tmp_path / str(cores), simulated.environment(cores)) for cores in CORES_OF_RUNS}
    for cores, result in results.items():
        assert result == results[1], f"{cores} cores"


def _results(source: Path, workspace: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    settings = {"source_uri": source, "workspace": workspace, "image_size": 32, "epochs": 2, "batch_size": 8}
    built = _printed(environment, "build", **settings)
    trained = _printed(environment, "train", **settings, dataset=built["dataset"])
    folder = Path(built["dataset"])
    shuffled = _printed(environment, "shuffle-quality", built.pop("dataset"), batch_size=8)
    to = str(workspace / "monitor")
    monitored = [sys.executable, "-m", "pipeline.monitor", "--seconds", "2", "--to", to, "--json"]
    monitor = subprocess.run(monitored, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert monitor.returncode == 0, monitor.stderr
    return {
        "built": built,
        "shards": {path.name: path.read_bytes() for path in sorted(folder.glob("*.tfrecord"))},
        "shuffled": {name: value for name, value in shuffled.items() if name != "dataset"},
        "trained": Path(trained["model"]).exists(),
    }


def _printed(environment: Mapping[str, str], command: str, *arguments: str, **settings: object) -> Any:
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    whole = [sys.executable, "-m", "pipeline", command, *arguments, *given, "--json"]
    ended = subprocess.run(whole, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])
