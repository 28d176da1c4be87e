"""The folders that a comparison reads: they have limits, and wait for no bucket."""

import os
from pathlib import Path

import pytest

from pipeline.errors import DatasetError, SizeError, StorageError
from pipeline.storage import BucketPath
from pipeline.watch import questions, records
from pipeline.watch.copies import Copies
from pipeline.watch.questions import Questions
from pipeline.watch.records import RecordFolders, Room
from standins.fake_gcs import FakeGcs
from tests.waiting import until

PLACE = BucketPath("bucket", "w/runs/run/digest")
FOREVER_S = 1e6
"""Longer than any test may take."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of a busy machine must not count as silence."""
    monkeypatch.setattr(questions, "PATIENCE_S", FOREVER_S)


def trained(gcs: FakeGcs, place: BucketPath) -> BucketPath:
    gcs.put("bucket", f"{place.key}/run.json", b"{}")
    gcs.put("bucket", f"{place.key}/record/epochs-00001.csv", b"0" * 1000)
    return place


@pytest.mark.parametrize("name", ["evaluation.json", "predictions.npz", "record/steps-00001.csv"])
def test_a_pipe_in_a_run_is_refused(tmp_path: Path, name: str) -> None:
    """Opening a pipe would wait until somebody writes into it."""
    (tmp_path / "record").mkdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(DatasetError, match=f"{name} is no regular file"):
        RecordFolders().local_folder(tmp_path, Room())


def test_a_slow_record_does_not_hold_up_the_live_page(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(gcs, PLACE)
    asked = Questions()
    live, compared = Copies(asked), RecordFolders()
    stall = gcs.fail("stall", matches="record", times=None)
    try:
        monkeypatch.setattr(questions, "PATIENCE_S", 0.2)
        with pytest.raises(StorageError, match=r"digest is still being copied\. Reload the page in a minute"):
            compared.local_folder(PLACE, Room())
        monkeypatch.setattr(questions, "PATIENCE_S", FOREVER_S)
        assert (live.local_folder(PLACE) / "run.json").exists()
    finally:
        stall.release()
    until(lambda: (compared.local_folder(PLACE, Room()) / "record/epochs-00001.csv").exists())


def test_a_record_over_the_limit_of_all_runs_is_not_fetched(gcs: FakeGcs) -> None:
    folders = RecordFolders()
    with pytest.raises(SizeError, match="compare fewer runs"):
        folders.local_folder(trained(gcs, PLACE), Room(1001))
    assert not [*folders._folder.rglob("*.*")]
    assert records.size_of(folders.local_folder(PLACE, Room(1002))) == 1002


def test_copies_that_need_too_much_space_are_removed(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_TOTAL_BYTES", 2500)
    places = [trained(gcs, BucketPath("bucket", f"w/runs/run/{name}")) for name in "abc"]
    compared = RecordFolders()
    folders = [compared.local_folder(place, Room()) for place in places]
    assert [folder.exists() for folder in folders] == [False, True, True]
    monkeypatch.setattr(records, "MAX_IDLE_S", -1.0)
    compared.local_folder(places[0], Room())
    assert [folder.exists() for folder in folders] == [True, False, False]
