"""A training in a bucket: only the files that are drawn are fetched."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import StorageError
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.storage import BucketPath
from pipeline.watch import copies, questions, tables
from pipeline.watch.copies import Copies
from pipeline.watch.page_data import page_data, span_of
from pipeline.watch.questions import Questions
from standins.fake_gcs import FakeGcs, Fault
from tests.report.rich import rich_run
from tests.waiting import until
from tests.watch.test_tables import BEGIN, written
from tests.watch.test_view import describe

PLACE = BucketPath("bucket", "w/runs/run/digest")
FOREVER_S = 1e6
"""Longer than any test may take."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of a busy machine must not count as silence."""
    monkeypatch.setattr(questions, "PATIENCE_S", FOREVER_S)


def test_a_local_training_is_not_copied(tmp_path: Path) -> None:
    assert Copies(Questions()).local_folder(tmp_path) == tmp_path


def test_a_copy_has_all_drawn_files_but_no_record(gcs: FakeGcs, tmp_path: Path) -> None:
    run = rich_run(tmp_path / "run")
    describe(run, epochs=6)
    text = (run / "run.json").read_text().replace('"batch_size"', '"num_training_servers": 3, "batch_size"')
    (run / "run.json").write_text(text)
    gcs.put_folder("bucket", PLACE.key + "/", run)
    ours = Copies(Questions())
    folder = ours.local_folder(PLACE)
    assert page_data(folder, is_over=False)["columns"].keys() == page_data(run, is_over=False)["columns"].keys()
    assert not list(folder.rglob("record"))


def test_a_copy_is_refreshed_after_some_seconds(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    gcs.put("bucket", f"{PLACE.key}/run.json", b"{}")
    ours = Copies(Questions())
    ours.local_folder(PLACE)
    requests = gcs.requests.total()
    gcs.put("bucket", f"{PLACE.key}/result.json", b"{}")
    assert not (ours.local_folder(PLACE) / "result.json").exists()
    assert gcs.requests.total() == requests
    monkeypatch.setattr(copies, "REFRESH_S", 0.0)
    assert (ours.local_folder(PLACE) / "result.json").exists()


def test_zooming_in_fetches_only_a_few_segments(gcs: FakeGcs, tmp_path: Path) -> None:
    here = written(tmp_path / "run", seconds=1000)
    (here / "run.json").write_text("{}")
    gcs.put_folder("bucket", PLACE.key + "/", here)
    ours = Copies(Questions())
    folder = ours.local_folder(PLACE)
    span = ours.fetch_span(PLACE, span_of(folder, 500_000, 510_000))
    assert len(list((folder / "record").iterdir())) < 30 < len(list((here / "record").iterdir()))
    for kind in ("samples", "batches"):
        seen = [
            each
            for each in page_data(folder, False, span=span)["columns"][kind]["time"]
            if each and 5e5 <= each <= 5.1e5
        ]
        assert len(seen) == 51


def test_a_segment_that_is_closed_after_the_listing_is_fetched(
    gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = written(tmp_path / "run", seconds=20, segment_bytes=10**6)
    sink = RecordSink(here / "record")
    for second in range(20, 40):
        sink.write(Row("samples", BEGIN + second, second, {"sys/cpu_pct": float(second)}))
    (here / "run.json").write_text("{}")
    gcs.put_folder("bucket", PLACE.key + "/", here)
    ours, name = Copies(Questions()), f"{PLACE.key}/record/samples-00001"
    folder, fetch = ours.local_folder(PLACE), copies.fetch

    def fetch_after_the_end(*of: Any) -> None:
        if f"{name}.csv" in gcs.names("bucket"):
            sink.close()
            gcs.put_folder("bucket", PLACE.key + "/", here)
            gcs.delete("bucket", f"{name}.csv")
        fetch(*of)

    monkeypatch.setattr(copies, "fetch", fetch_after_the_end)
    span = ours.fetch_span(PLACE, span_of(folder, 25_000, 30_000))
    seconds = [second for second in page_data(folder, False, span=span)["columns"]["samples"]["time"] if second]
    assert max(seconds) >= 29_000


def test_the_oldest_copies_are_removed(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MAX_COPIES", 2)
    ours = Copies(Questions())
    places = [BucketPath("bucket", f"w/runs/run/{name}") for name in "abc"]
    for place in places:
        gcs.put("bucket", f"{place.key}/run.json", b"{}")
    folders = [ours.local_folder(place) for place in places]
    assert [folder.exists() for folder in folders] == [False, True, True]
    assert ours.local_folder(places[0]).exists()


@pytest.mark.parametrize("place", ["a bucket", "a folder"])
def test_a_long_span_is_read_from_the_overview(
    gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The segments of a week take gigabytes. These are small, but there are more than MAX_SEGMENTS."""
    here = written(tmp_path / "run", seconds=1000)
    (here / "run.json").write_text("{}")
    gcs.put_folder("bucket", PLACE.key + "/", here)
    read: list[Path] = []
    segment = tables.read_segment
    monkeypatch.setattr(tables, "read_segment", lambda path, *rest: read.append(path) or segment(path, *rest))
    ours, training = Copies(Questions()), here if place == "a folder" else PLACE
    folder = ours.local_folder(training)
    span = ours.fetch_span(training, span_of(folder, 100_000, 900_000))
    whole = page_data(folder, False)["columns"]
    closer = page_data(folder, False, span=span)["columns"]
    segments = [path for path in (here / "record").iterdir() if path.name.startswith(("samples", "batches"))]
    assert len(segments) > copies.MAX_SEGMENTS
    assert sum(path.parent.name == "record" for path in read) < 10
    assert len(list((folder / "record").iterdir())) < 30 or place == "a folder"
    for kind in ("samples", "batches"):
        # The overview covers the whole span.
        assert len(closer[kind]["time"]) >= len(whole[kind]["time"])
        assert max(b - a for a, b in zip(closer[kind]["time"], closer[kind]["time"][1:], strict=False)) < 10_000


@pytest.fixture
def stalled(gcs: FakeGcs) -> Iterator[Fault]:
    """A bucket that accepts requests but never answers. The other bucket answers."""
    gcs.create_bucket("silent")
    for number in range(9):
        gcs.put("silent", f"runs/{number}/run.json", b"{}")
    gcs.put("bucket", f"{PLACE.key}/run.json", b"{}")
    stall = Fault("stall", matches="runs/[0-9]", times=None)
    gcs.faults.add(stall)
    yield stall
    stall.release()
    until(lambda: not any(thread.name.startswith("question") for thread in threading.enumerate()))


def silent(number: int) -> BucketPath:
    return BucketPath("silent", f"runs/{number}")


def test_a_silent_bucket_is_an_error_within_seconds(stalled: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket never answers. Later calls do not wait, because the patience with the same question has ended."""
    ours = Copies(Questions())
    for now_s, patience_s in ((0.0, 0.5), (FOREVER_S, FOREVER_S), (FOREVER_S, FOREVER_S)):
        monkeypatch.setattr(questions, "time", SimpleNamespace(monotonic=lambda now_s=now_s: now_s))
        monkeypatch.setattr(questions, "PATIENCE_S", patience_s)
        with pytest.raises(StorageError, match="gs://silent has not answered within"):
            ours.local_folder(silent(0))
    until(lambda: stalled.fired)
    assert stalled.fired == 1


def test_a_silent_bucket_does_not_block_other_buckets(stalled: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "PATIENCE_S", 0.5)
    ours = Copies(Questions())
    for number in range(9):
        with pytest.raises(StorageError, match="gs://silent has not answered within"):
            ours.local_folder(silent(number))
    assert stalled.fired <= questions.MAX_PER_BUCKET
    monkeypatch.setattr(questions, "PATIENCE_S", FOREVER_S)
    assert (ours.local_folder(PLACE) / "run.json").exists()


@pytest.mark.long
def test_four_silent_buckets_do_not_block_a_fifth(
    stalled: Fault, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "PATIENCE_S", 0.2)
    ours = Copies(Questions())
    for bucket in ("silent", *(f"silent-{number}" for number in range(3))):
        if bucket != "silent":
            gcs.create_bucket(bucket)
        for number in range(questions.MAX_PER_BUCKET):
            with pytest.raises(StorageError, match=f"gs://{bucket} has not answered within"):
                ours.local_folder(BucketPath(bucket, f"runs/{number}"))
    monkeypatch.setattr(questions, "PATIENCE_S", FOREVER_S)
    assert (ours.local_folder(PLACE) / "run.json").exists()
    monkeypatch.setattr(questions, "PATIENCE_S", 0.2)
    monkeypatch.setattr(questions, "MAX_AT_ONCE", questions.AT_ONCE)
    with pytest.raises(StorageError, match="gs://bucket was not read, because 16 other requests"):
        ours.local_folder(BucketPath("bucket", "w/runs/run/another"))


def test_an_old_copy_is_used_for_a_while_if_its_bucket_is_silent(
    stalled: Fault, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"REFRESH_S": 0.0, "MAX_AGE_S": FOREVER_S}.items():
        monkeypatch.setattr(copies, name, value)
    ours = Copies(Questions())
    folder = ours.local_folder(PLACE)
    monkeypatch.setattr(questions, "PATIENCE_S", 0.2)
    stall = gcs.fail("stall", matches=PLACE.key, times=None)
    try:
        assert ours.local_folder(PLACE) == folder
        monkeypatch.setattr(copies, "MAX_AGE_S", 0.0)
        with pytest.raises(StorageError, match="has not answered within"):
            ours.local_folder(PLACE)
    finally:
        stall.release()


def test_a_copy_removed_from_the_disk_is_fetched_again(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MAX_COPIES", 1)
    ours = Copies(Questions())
    places = [BucketPath("bucket", f"w/runs/run/{name}") for name in "abc"]
    for place in places:
        gcs.put("bucket", f"{place.key}/run.json", b"{}")
        folder = ours.local_folder(place)
        assert (folder / "run.json").exists()
        shutil.rmtree(folder.parent)


def test_a_late_answer_is_used_by_the_next_call(stalled: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "PATIENCE_S", 0.2)
    ours = Copies(Questions())
    with pytest.raises(StorageError):
        ours.local_folder(silent(0))
    stalled.release()
    monkeypatch.setattr(questions, "PATIENCE_S", FOREVER_S)
    assert (ours.local_folder(silent(0)) / "run.json").exists()
