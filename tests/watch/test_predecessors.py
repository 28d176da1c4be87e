"""A training that has just ended is compared with those before it in the workspace."""

import json
import os
from pathlib import Path
from typing import Any

from pipeline.runs.files import RUN_FORMAT
from pipeline.watch.predecessors import warning_of


def training(workspace: Path, number: int, speed: float, dataset: str = "flowers", **settings: Any) -> Path:
    """Write the files of a complete training, which ended after those with a lower number."""
    folder = workspace / "runs" / f"run {number}" / "0123abcd"
    folder.mkdir(parents=True)
    about = {"format": RUN_FORMAT, "settings": {"dataset_name": dataset, "epochs": 3, **settings}}
    (folder / "run.json").write_text(json.dumps(about))
    numbers = {"wait_ms": 1.0, "step_ms": 10.0, "wait_fraction": 0.1, "examples_per_s": speed}
    (folder / "result.json").write_text(json.dumps({"metrics": {}, **numbers}))
    for path in (folder / "result.json", folder, folder.parent):
        os.utime(path, (1e9 + number, 1e9 + number))
    return folder


def test_a_slower_training_is_worse_than_those_before_it(tmp_path: Path):
    for number in range(6):
        training(tmp_path, number, speed=800.0)
    training(tmp_path, 6, speed=10.0, dataset="birds")
    training(tmp_path, 7, speed=20.0, image_size=512)
    slow = training(tmp_path, 8, speed=400.0)
    training(tmp_path, 9, speed=300.0)  # it ended later
    assert warning_of(slow) == "It takes 400 examples a second; the 6 trainings before took 800."


def test_a_training_as_fast_as_those_before_it_is_not_worse(tmp_path: Path):
    folders = [training(tmp_path, number, speed=800.0 + number) for number in range(8)]
    assert {warning_of(folder) for folder in folders} == {""}
