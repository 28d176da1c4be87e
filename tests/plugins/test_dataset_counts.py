"""The numbers of examples in the trend of a dataset name."""

import json
import threading
from pathlib import Path

import pytest

from pipeline.storage import place_of
from pipeline.watch.questions import Questions
from plugins.training_monitor.dataset_counts import Counts, counts_in_time, counts_of
from standins.fake_gcs import FakeGcs
from tests.waiting import until


def test_counts_are_those_of_the_dataset(tmp_path: Path):
    (tmp_path / "good").mkdir()
    (tmp_path / "damaged").mkdir()
    content = {"splits": {"train": {"examples": 40}, "validation": {"examples": 10}}, "rejected": {"count": 3}}
    content |= {"quality": {"unit": "image"}}
    (tmp_path / "good" / "dataset.json").write_text(json.dumps(content))
    (tmp_path / "damaged" / "dataset.json").write_text('{"splits": []}')
    places = [tmp_path / "good", tmp_path / "damaged", tmp_path / "gone", None]
    found = counts_of(places)
    assert found == [Counts(50, 3, unit="image"), None, None, None]
    assert found[0]
    assert found[0].words == "The dataset has 50 of the 53 images of the source; 3 were rejected."
    assert Counts(1500, 1, unit="row").words == "The dataset has 1,500 of the 1,501 rows of the source; 1 was rejected."
    assert Counts(1, 0, unit="image").words == "The dataset has 1 of the 1 image of the source."


def test_a_silent_bucket_leaves_out_only_its_own_counts(
    gcs: FakeGcs, airflow_database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    content = {"splits": {"train": {"examples": 40}}, "rejected": {"count": 3}}
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    monkeypatch.setattr("pipeline.watch.questions.PATIENCE_S", 0.2)
    stall = gcs.fail("stall", matches="silent", times=None)
    try:
        assert counts_in_time([place_of("gs://bucket/silent"), tmp_path, None], Questions()) == [
            None,
            Counts(40, 3),
            None,
        ]
    finally:
        stall.release()
        until(lambda: not any(thread.name.startswith("question") for thread in threading.enumerate()))


def test_promises_are_those_of_trainings_that_the_user_may_see(airflow_database: None, tmp_path: Path):
    from plugins.training_monitor.trends import _promises

    def line(run: str, measured: object) -> str:
        promise = {"training": f"runs/{run}/1", "machine": "m", "change": "cache=memory", "epoch": 2}
        return json.dumps({**promise, "promised": [2.0, 1.9, 2.1], "measured": measured}) + "\n"

    lines = line("own", 2.0), line("own", 1.0), line("others", 4.0), line("own", 0)
    (tmp_path / "promises.jsonl").write_text("".join(lines))
    own = tmp_path / "runs" / "own" / "1"
    assert _promises([own, None], [own], Questions()).startswith("The advice promised how much faster 2 changes would")
    assert _promises([own], [tmp_path / "runs" / "others" / "1"], Questions()).startswith(
        "The advice promised how much faster 1 change would"
    )
