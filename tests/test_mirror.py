"""A run in a bucket: what is brought there, in which order, and what an outage or another worker does to it."""

import os
from pathlib import Path

import pytest

from pipeline import mirror
from pipeline.errors import AccessError, StorageError, TrainingError
from pipeline.mirror import Mirror, claim, mirrored
from pipeline.storage import BucketPath
from pipeline.storage import gcs as google
from tests.fake_gcs import FakeGcs
from tests.waiting import until

PLACE = BucketPath("bucket", "w/runs/run/digest")


def there(gcs: FakeGcs) -> dict[str, bytes]:
    """What the bucket has of the run, but for whose it is."""
    names = [name.removeprefix("w/runs/run/digest/") for name in gcs.names("bucket")]
    return {name: gcs.content("bucket", f"{PLACE.key}/{name}") for name in names if name != mirror.OWNER}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def folder(gcs: FakeGcs, tmp_path: Path) -> Path:
    """A run on this worker."""
    claim(tmp_path / "here", PLACE)
    return tmp_path / "here"


def test_what_is_new_or_changed_is_brought_and_nothing_else(gcs: FakeGcs, folder: Path):
    ours = Mirror(folder, PLACE)
    write(folder, {"run.json": "r", "record/samples-00000.csv": "a\n", "comet/1/x.zip": "z"})
    ours.sync()
    assert there(gcs) == {"run.json": b"r", "record/samples-00000.csv": b"a\n", "comet/1/x.zip": b"z"}
    before = gcs.requests.total()
    ours.sync()
    assert gcs.requests.total() == before
    write(folder, {"record/samples-00000.csv": "a\nb\n"})
    uploads = gcs.requests["insert"]
    ours.sync()
    assert there(gcs)["record/samples-00000.csv"] == b"a\nb\n"
    assert gcs.requests["insert"] == uploads + 1


def test_locks_and_what_is_still_written_stay_here(gcs: FakeGcs, folder: Path):
    names = ("lock", "failure.json", ".best.json.host.1.00000000.tmp", ".m.host.1.00000000.tmp.keras")
    write(folder, dict.fromkeys((*names, "checkpoints/checkpoint-1_temp/part-0", "run.json"), "x"))
    Mirror(folder, PLACE).sync()
    assert list(there(gcs)) == ["run.json"]


def test_what_names_others_is_brought_after_them(gcs: FakeGcs, folder: Path):
    """A kill in the middle must not leave an index in the bucket whose checkpoint is missing."""
    names = ["result.json", "best.json", "checkpoints/checkpoint", "checkpoints/checkpoint-7.index", "model.keras"]
    write(folder, dict.fromkeys(names, "x"))
    fault = gcs.fail("status", on="insert", matches="checkpoint-7", code=403)
    with pytest.raises(AccessError):
        Mirror(folder, PLACE).sync()
    assert fault.fired
    assert set(there(gcs)) <= {"model.keras"}
    Mirror(folder, PLACE).sync()
    order = sorted(names, key=lambda name: gcs.generation("bucket", f"{PLACE.key}/{name}"))
    assert order[2:] == ["checkpoints/checkpoint", "best.json", "result.json"]


def test_an_index_is_brought_as_it_was_before_the_files_were_listed(
    gcs: FakeGcs, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """The training goes on meanwhile: the next checkpoint's files are not there yet, and the index names them."""
    write(folder, {"checkpoints/checkpoint": "1", "checkpoints/checkpoint-1.index": "x"})
    files_of = mirror._files

    def files_then_a_checkpoint(folder: Path) -> dict:
        found = files_of(folder)
        write(folder, {"checkpoints/checkpoint-2.index": "x", "checkpoints/checkpoint": "2"})
        return found

    ours = Mirror(folder, PLACE)
    ours.sync()
    write(folder, {"checkpoints/checkpoint-1.index": "xx"})
    monkeypatch.setattr(mirror, "_files", files_then_a_checkpoint)
    ours.sync()
    assert there(gcs)["checkpoints/checkpoint"] == b"1"
    monkeypatch.setattr(mirror, "_files", files_of)
    ours.sync()
    assert there(gcs)["checkpoints/checkpoint"] == b"2"
    assert "checkpoints/checkpoint-2.index" in there(gcs)


def test_checkpoints_and_models_that_were_replaced_go_but_a_report_stays(gcs: FakeGcs, folder: Path):
    ours = Mirror(folder, PLACE)
    write(folder, {"checkpoints/checkpoint-1.index": "x", "model-00001.keras": "x"})
    ours.sync()
    gcs.put("bucket", f"{PLACE.key}/report.html", b"drawn elsewhere")
    (folder / "checkpoints/checkpoint-1.index").unlink()
    (folder / "model-00001.keras").rename(folder / "model.keras")
    Mirror(folder, PLACE).sync()  # a retry on the same worker
    assert sorted(there(gcs)) == ["model.keras", "report.html"]


def test_it_keeps_up_and_brings_the_rest_at_the_end(gcs: FakeGcs, folder: Path):
    with mirrored(folder, PLACE, every_s=0.01):
        write(folder, {"run.json": "r"})
        until(lambda: "run.json" in there(gcs))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mirror, "_files", lambda _: {})
            write(folder, {"result.json": "done"})
    assert there(gcs) == {"run.json": b"r", "result.json": b"done"}


def test_an_outage_meanwhile_costs_warnings_only(gcs: FakeGcs, folder: Path, caplog: pytest.LogCaptureFixture):
    fault = gcs.fail("status", on="insert|list|get", code=403, times=None)
    with mirrored(folder, PLACE, every_s=0.01):
        write(folder, {"run.json": "r"})
        until(lambda: fault.fired and "not mirrored for now" in caplog.text)
        fault.release()
    assert there(gcs) == {"run.json": b"r"}


def test_an_outage_at_the_end_is_an_error(gcs: FakeGcs, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(google, "DEADLINE_S", 0.5)
    fault = gcs.fail("status", on="insert", matches="result", times=None)
    with pytest.raises(StorageError, match="did not answer within"), mirrored(folder, PLACE):
        write(folder, {"result.json": "done"})
    assert fault.fired
    assert there(gcs) == {}
    fault.release()
    Mirror(folder, PLACE).sync()  # as the retry does, before it says that the run is done
    assert there(gcs) == {"result.json": b"done"}


def test_the_error_of_a_training_is_not_hidden_by_one_of_the_mirror(gcs: FakeGcs, folder: Path):
    fault = gcs.fail("status", code=403, times=None)
    write(folder, {"run.json": "r"})
    with pytest.raises(TrainingError, match="NaN"), mirrored(folder, PLACE):
        raise TrainingError("NaN")
    assert fault.fired


def test_another_worker_goes_on_from_what_the_first_left(gcs: FakeGcs, folder: Path, tmp_path: Path):
    write(folder, {"run.json": "r", "checkpoints/checkpoint": "1", "checkpoints/checkpoint-1.index": "x"})
    Mirror(folder, PLACE).sync()
    other = tmp_path / "other"
    claim(other, PLACE)
    assert (other / "checkpoints/checkpoint-1.index").read_text() == "x"

    write(other, {"checkpoints/checkpoint": "2", "checkpoints/checkpoint-2.index": "x"})
    (other / "checkpoints/checkpoint-1.index").unlink()
    Mirror(other, PLACE).sync()
    write(folder, {"result.json": "of a line of steps that was left"})
    claim(folder, PLACE)  # and back
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "checkpoint",
        "checkpoint-2.index",
        "mirror.json",
        "run.json",
    ]
    assert (folder / "checkpoints/checkpoint").read_text() == "2"


def test_a_retry_on_the_same_worker_keeps_what_the_bucket_has_not_yet(gcs: FakeGcs, folder: Path):
    write(folder, {"checkpoints/checkpoint": "1"})
    claim(folder, PLACE)
    assert (folder / "checkpoints/checkpoint").read_text() == "1"


def test_a_worker_whose_run_was_taken_over_writes_no_more(gcs: FakeGcs, folder: Path, tmp_path: Path):
    ours = Mirror(folder, PLACE)
    write(folder, {"run.json": "r"})
    ours.sync()
    claim(tmp_path / "other", PLACE)
    write(folder, {"run.json": "late"})
    with pytest.raises(TrainingError, match="another worker"):
        ours.sync()
    assert there(gcs) == {"run.json": b"r"}


def test_a_file_that_grows_between_two_looks_is_brought_again(gcs: FakeGcs, folder: Path):
    ours = Mirror(folder, PLACE)
    write(folder, {"record/batches-00000.csv": "a\n"})
    ours.sync()
    stat = (folder / "record/batches-00000.csv").stat()
    write(folder, {"record/batches-00000.csv": "b\n"})
    os.utime(folder / "record/batches-00000.csv", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    ours.sync()
    assert there(gcs) == {"record/batches-00000.csv": b"b\n"}


def test_with_a_local_workspace_nothing_is_done(tmp_path: Path):
    with mirrored(tmp_path / "run", tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []
