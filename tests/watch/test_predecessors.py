"""A training that has just ended is compared with those before it in the workspace."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import AccessError
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


def in_bucket(gcs: FakeGcs, run: str, folder: Path) -> BucketPath:
    """Copy a training into a run of a bucket."""
    place = BucketPath("bucket", f"w/runs/{run}/{folder.parent.name.replace(' ', '-')}")
    gcs.put_folder("bucket", f"{place.key}/", folder)
    return place


def test_in_a_bucket_the_latest_runs_are_searched(tmp_path: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    """They are those with the latest times in their names. Run 20 was copied before the others, so it ended first."""
    monkeypatch.setattr(predecessors, "MAX_RUNS", 6)
    for number in (20, *range(7)):
        folder = training(tmp_path, number, speed={0: 1.0, 6: 400.0}.get(number, 800.0))
        place = in_bucket(gcs, f"manual__2026-11-{number + 1:02}T08:00:00+00:00", folder)
    assert warning_of(place) == "It takes 400 examples a second; the 6 trainings before took 800."


def test_in_a_bucket_trainings_in_one_folder_are_searched_first(
    tmp_path: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
):
    """Those of `retrain` share a folder without a time in its name."""
    monkeypatch.setattr(predecessors, "MAX_RUNS", 2)
    monkeypatch.setattr(predecessors, "MAX_LOOKED_UP", 2)
    for number in range(10, 15):
        in_bucket(
            gcs, f"manual__2026-11-{number}T08:00:00+00:00", training(tmp_path, number, speed=1.0, image_size=512)
        )
    for number in range(6):
        place = in_bucket(gcs, "retrain-flowers", training(tmp_path, number, speed=400.0 if number == 5 else 800.0))
    assert warning_of(place) == "It takes 400 examples a second; the 5 trainings before took 800."


def test_a_bucket_that_cannot_be_listed_ends_no_task(
    tmp_path: Path, gcs: FakeGcs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    place = in_bucket(gcs, "retrain-flowers", training(tmp_path, 0, speed=800.0))

    def refuse(place: BucketPath) -> None:
        raise AccessError(f"no permission to list {place}")

    monkeypatch.setattr("pipeline.storage.folders", refuse)
    assert warning_of(place) == ""
    assert f"{place} was not compared with the trainings before it: no permission to list" in caplog.text


def test_a_training_as_fast_as_those_before_it_is_not_worse(tmp_path: Path):
    folders = [training(tmp_path, number, speed=800.0 + number) for number in range(8)]
    assert {warning_of(folder) for folder in folders} == {""}
