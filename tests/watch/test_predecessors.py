"""A training that has just ended is compared with those before it in the workspace."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.runs.files import RUN_FORMAT
from pipeline.storage import BucketPath
from pipeline.watch import predecessors
from pipeline.watch.predecessors import warning_of
from standins.fake_gcs import FakeGcs


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


def test_a_bucket_is_searched_too(tmp_path: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    """The newest runs are those with the latest times in their names."""
    monkeypatch.setattr(predecessors, "MAX_RUNS", 7)
    for number in [20, *range(7)]:  # Run 20 was copied before the others, so it ended first.
        folder = training(tmp_path, number, speed=400.0 if number == 6 else 800.0)
        key = f"w/runs/manual__2026-11-{number + 1:02}T08:00:00+00:00/{folder.name}/"
        gcs.put_folder("bucket", key, folder)
    for number in range(5):  # These have no time in their names.
        gcs.put_folder("bucket", f"w/runs/old {number}/0123abcd/", training(tmp_path, 30 + number, speed=1.0))
    assert warning_of(BucketPath("bucket", key.rstrip("/"))) == (
        "It takes 400 examples a second; the 6 trainings before took 800."
    )


def test_a_training_as_fast_as_those_before_it_is_not_worse(tmp_path: Path):
    folders = [training(tmp_path, number, speed=800.0 + number) for number in range(8)]
    assert {warning_of(folder) for folder in folders} == {""}
