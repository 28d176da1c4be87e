"""A training is alive if its samples change, whatever the clock of its machine says."""

import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.monitor.overview import OVERVIEW, OverviewSink
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.runs.files import RUN_FORMAT
from pipeline.watch import heartbeats as module
from pipeline.watch.heartbeats import Heartbeats
from pipeline.watch.page_data import page_data
from pipeline.watch.summary import Summaries, Training

SKEWS = (-3600.0, -600.0, -60.0, 0.0, 60.0, 600.0, 3600.0)
"""Seconds by which the clock of the training differs from the clock of the pages."""


class Clock:
    """The two clocks of the API server. Only the tests advance them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.heartbeats = Heartbeats(lambda: self.now, lambda: 1e9 + self.now)

    def silent_s(self, last_sample: float, training: str = "a") -> float:
        """Return how long a training is silent. The time of its newest sample is relative to the start of the clock."""
        return self.heartbeats.silent_s(training, 1e9 + 1000 + last_sample)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    settings = {"epochs": 8, "model": "small_cnn", "dataset_name": "shapes"}
    run_json = {"format": RUN_FORMAT, "settings": settings, "steps_per_epoch": 60}
    (tmp_path / "run.json").write_text(json.dumps(run_json))
    return tmp_path


def sample(folder: Path, at: float, step: int = 30) -> None:
    sink = RecordSink(folder / "record")
    sink.write(Row("samples", at, step, {"sys/cpu_pct": 50.0}))
    sink.write(Row("batches", at, step, {"step/time_ms": 80.0, "input/wait_ms": 8.0, "input/examples": 8}))
    sink.close()


@pytest.mark.parametrize("skew", [skew for skew in SKEWS if skew > -900])
def test_a_skewed_clock_does_not_make_a_training_silent_at_first(folder: Path, skew: float) -> None:
    sample(folder, time.time() + skew)
    assert page_data(folder, is_over=False)["status"]["state"] == "training"
    assert [each.state for each in Summaries().of([Training(folder, is_over=False)])] == ["training"]


@pytest.mark.parametrize("skew", SKEWS)
def test_a_training_without_changes_becomes_silent(folder: Path, skew: float) -> None:
    clock = Clock()

    def look() -> tuple[str, str]:
        found = page_data(folder, is_over=False, heartbeats=clock.heartbeats)["status"]
        return found["state"], found["words"]

    sample(folder, 1e9 + clock.now + skew)
    look()
    for _ in range(3):
        clock.now += 40
        sample(folder, 1e9 + clock.now + skew)
        assert look()[0] == "training"
    clock.now += 44
    assert look()[0] == "training"
    clock.now += 2
    assert look() == ("silent", "no sample for 46 s: Airflow may retry the task soon")
    sample(folder, 1e9 + clock.now + skew)
    assert look()[0] == "training"


def test_an_interval_of_the_overview_is_no_silence_of_a_long_training_in_a_bucket(folder: Path) -> None:
    """After ten hours, the copy of a training in a bucket has a new sample every 90 s."""
    clock = Clock()

    def look() -> str:
        found = page_data(folder, is_over=False, heartbeats=clock.heartbeats, is_copy=True)["status"]
        return str(found["state"])

    start = clock.now - 36_000
    with closing(OverviewSink(folder / OVERVIEW)) as sink:
        for seconds in range(0, 36_000, 30):
            step = {"step/time_ms": 80.0, "input/wait_ms": 8.0, "input/examples": 8}
            sink.write(Row("samples", 1e9 + start + seconds, 1, {"sys/cpu_pct": 50.0}))
            sink.write(Row("batches", 1e9 + start + seconds, 1 + seconds // 100, step))
    assert look() == "training"
    clock.now += 120
    assert look() == "training"
    clock.now += 120
    assert look() == "silent"


def test_an_old_training_is_silent_at_the_first_look() -> None:
    clock = Clock()
    assert (clock.silent_s(-1200), clock.silent_s(-60, "b"), clock.silent_s(1200, "c")) == (1200, 0, 0)
    clock.now += 10
    assert (clock.silent_s(-1200), clock.silent_s(-60, "b"), clock.silent_s(1200, "c")) == (1210, 10, 10)
    assert clock.silent_s(-1195) == 0  # the sample changed, so only its clock is slow


def test_the_least_recently_used_training_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    clock = Clock()
    for training in "abac":
        clock.silent_s(0, training)
    clock.now += 5
    assert [clock.silent_s(0, training) for training in "acb"] == [5, 5, 0]


def test_the_age_of_a_verdict_is_measured_by_the_clock_of_the_training(folder: Path) -> None:
    at = time.time() - 600
    sample(folder, at - 100)
    sample(folder, at)
    (folder / "verdict.json").write_text(json.dumps({"sentence": "So.", "seconds": 60.0, "time": at - 30}))
    assert page_data(folder, is_over=False)["status"]["verdict"] == (
        "From 10 s to 1 min 10 s after the start (ended 30 s ago): So."
    )
