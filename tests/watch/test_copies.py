"""A training in a bucket: what is drawn of it is fetched, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.storage import BucketPath
from pipeline.watch import copies
from pipeline.watch.copies import Copies
from pipeline.watch.data import data, span_of
from tests.fake_gcs import FakeGcs
from tests.report.rich import rich_run
from tests.watch.test_tables import written
from tests.watch.test_view import describe

PLACE = BucketPath("bucket", "w/runs/run/digest")


def test_a_local_one_is_its_own(tmp_path: Path) -> None:
    assert Copies().at_hand(tmp_path) == tmp_path


def test_all_that_is_drawn_comes_and_no_record(gcs: FakeGcs, tmp_path: Path) -> None:
    run = rich_run(tmp_path / "run")
    describe(run, epochs=6)
    text = (run / "run.json").read_text().replace('"batch_size"', '"num_training_servers": 3, "batch_size"')
    (run / "run.json").write_text(text)
    gcs.put_folder("bucket", PLACE.key + "/", run)
    ours = Copies()
    folder = ours.at_hand(PLACE)
    assert data(folder, is_over=False)["columns"].keys() == data(run, is_over=False)["columns"].keys()
    assert not list(folder.rglob("record"))


def test_it_is_asked_for_again_after_some_seconds(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    gcs.put("bucket", f"{PLACE.key}/run.json", b"{}")
    ours = Copies()
    ours.at_hand(PLACE)
    requests = gcs.requests.total()
    gcs.put("bucket", f"{PLACE.key}/result.json", b"{}")
    assert not (ours.at_hand(PLACE) / "result.json").exists()
    assert gcs.requests.total() == requests
    monkeypatch.setattr(copies, "AGAIN_S", 0.0)
    assert (ours.at_hand(PLACE) / "result.json").exists()


def test_for_a_closer_look_a_few_segments_come(gcs: FakeGcs, tmp_path: Path) -> None:
    here = written(tmp_path / "run", seconds=1000)
    (here / "run.json").write_text("{}")
    gcs.put_folder("bucket", PLACE.key + "/", here)
    ours = Copies()
    folder = ours.at_hand(PLACE)
    span = span_of(folder, 500_000, 510_000)
    ours.bring(PLACE, span)
    assert len(list((folder / "record").iterdir())) < 30 < len(list((here / "record").iterdir()))
    for kind in ("samples", "batches"):
        seen = [
            each for each in data(folder, False, span=span)["columns"][kind]["time"] if each and 5e5 <= each <= 5.1e5
        ]
        assert len(seen) == 51


def test_copies_that_nobody_looks_at_are_removed(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MOST", 2)
    ours = Copies()
    places = [BucketPath("bucket", f"w/runs/run/{name}") for name in "abc"]
    for place in places:
        gcs.put("bucket", f"{place.key}/run.json", b"{}")
    folders = [ours.at_hand(place) for place in places]
    assert [folder.exists() for folder in folders] == [False, True, True]
    assert ours.at_hand(places[0]).exists()
