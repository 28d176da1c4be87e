"""The mirror of a run in a bucket: which files are uploaded, in which order, also after an outage or a takeover."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import storage
from pipeline.errors import AccessError, RunTakenOver, StorageError, TenfoldError, TrainingError
from pipeline.monitor import Row, read
from pipeline.monitor.record import RecordSink
from pipeline.report import REPORT_FILES
from pipeline.runs import mirror
from pipeline.runs.mirror import Mirror, claim, fetch, mirrored
from pipeline.runs.recorded_run import load_recorded_run
from pipeline.storage import BucketPath
from pipeline.storage import gcs as google
from standins.fake_gcs import FakeGcs
from tests.waiting import until

PLACE = BucketPath("bucket", "w/runs/run/digest")


def there(gcs: FakeGcs) -> dict[str, bytes]:
    """Return the files of the run in the bucket, without the owner file."""
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


def test_files_in_progress_are_not_uploaded(gcs: FakeGcs, folder: Path):
    write(folder, {"comet/try-1/.open/tmp1/messages.json": "{}", ".run.json.host.1.tmp": "r", "run.json": "r"})
    Mirror(folder, PLACE).sync()
    assert there(gcs) == {"run.json": b"r"}


def test_only_new_and_changed_files_are_uploaded(gcs: FakeGcs, folder: Path):
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


def test_locks_failures_and_temporary_files_are_not_uploaded(gcs: FakeGcs, folder: Path):
    names = ("lock", "failure.json", ".best.json.host.1.00000000.tmp", ".m.host.1.00000000.tmp.keras")
    write(folder, dict.fromkeys((*names, "checkpoints/.checkpoint-1.npz.host.1.00000000.tmp", "run.json"), "x"))
    Mirror(folder, PLACE).sync()
    assert list(there(gcs)) == ["run.json"]


def test_files_that_refer_to_others_are_uploaded_after_them(gcs: FakeGcs, folder: Path):
    """After a kill, the bucket must not have a checkpoint newer than the record, the models and best.json."""
    names = ["checkpoints/checkpoint-7.npz", "result.json", "best.json", "record/batches-00000.csv", "model.keras"]
    write(folder, dict.fromkeys(names, "x"))
    fault = gcs.fail("status", on="insert", matches="model", code=403)
    with pytest.raises(AccessError):
        Mirror(folder, PLACE).sync()
    assert fault.fired
    assert set(there(gcs)) <= {"record/batches-00000.csv"}
    Mirror(folder, PLACE).sync()
    order = sorted(names, key=lambda name: gcs.generation("bucket", f"{PLACE.key}/{name}"))
    assert order[2:] == ["best.json", "checkpoints/checkpoint-7.npz", "result.json"]


def test_a_result_is_uploaded_only_with_the_last_checkpoint(
    gcs: FakeGcs, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another training continues from that checkpoint. This one ends during the sync."""
    files_of = mirror._files

    def files_then_the_end(looked_at: Path, before: str = "") -> dict:
        found = files_of(looked_at, before)
        write(folder, {"checkpoints/checkpoint-1.npz": "x", "result.json": "x"})
        return found

    ours = Mirror(folder, PLACE)
    ours.sync()
    monkeypatch.setattr(mirror, "_files", files_then_the_end)
    ours.sync()
    assert "result.json" not in there(gcs)
    fault = gcs.fail("status", on="insert", matches="checkpoint", code=403)
    with pytest.raises(AccessError):
        ours.sync()
    assert fault.fired
    assert "result.json" not in there(gcs)
    ours.sync()
    assert {"checkpoints/checkpoint-1.npz", "result.json"} <= there(gcs).keys()


def test_a_checkpoint_written_during_a_sync_is_uploaded_by_the_next_sync(
    gcs: FakeGcs, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """During the sync, the training writes a model, then the file that names it, then a checkpoint."""
    write(folder, {"model-1.keras": "x", "best.json": "1", "checkpoints/checkpoint-1.npz": "x"})
    files_of = mirror._files

    def files_then_an_epoch(looked_at: Path, before: str = "") -> dict:
        found = files_of(looked_at, before)
        write(folder, {"model-2.keras": "x", "best.json": "2", "checkpoints/checkpoint-2.npz": "x"})
        return found

    ours = Mirror(folder, PLACE)
    ours.sync()
    monkeypatch.setattr(mirror, "_files", files_then_an_epoch)
    ours.sync()
    assert {"model-2.keras": b"x", "best.json": b"2"}.items() <= there(gcs).items()
    assert "checkpoints/checkpoint-2.npz" not in there(gcs)
    monkeypatch.setattr(mirror, "_files", files_of)
    ours.sync()
    assert "checkpoints/checkpoint-2.npz" in there(gcs)


def test_the_newest_checkpoint_is_uploaded_first_and_a_removed_one_is_skipped(
    gcs: FakeGcs, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    write(folder, dict.fromkeys((f"checkpoints/checkpoint-{number}.npz" for number in (1, 2)), "x"))
    upload = mirror._copy

    def upload_slowly(path: Path, place: BucketPath) -> None:
        upload(path, place)
        (folder / "checkpoints/checkpoint-1.npz").unlink(missing_ok=True)

    monkeypatch.setattr(mirror, "_copy", upload_slowly)
    Mirror(folder, PLACE).sync()
    assert list(there(gcs)) == ["checkpoints/checkpoint-2.npz"]


class Epochs:
    """A training with four models and three checkpoints. It ends epochs while a file is copied to the bucket."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._copy = folder, mirror._copy
        self.done, self.per_copy = 0, 0
        monkeypatch.setattr(mirror, "_copy", self._copy_slowly)

    def end(self, epochs: int) -> None:
        for _ in range(epochs):
            self.done += 1
            names = (f"model-{self.done:05d}.keras", "best.json", f"checkpoints/checkpoint-{self.done:05d}.npz")
            write(self._folder, dict.fromkeys(names, f"{self.done}"))
            for old in (f"model-{self.done - 4:05d}.keras", f"checkpoints/checkpoint-{self.done - 3:05d}.npz"):
                (self._folder / old).unlink(missing_ok=True)

    def _copy_slowly(self, path: Path, place: BucketPath) -> None:
        self._copy(path, place)
        if path.suffix in (".keras", ".npz"):
            self.end(self.per_copy)


def test_a_model_that_is_removed_during_the_uploads_does_not_hold_back_the_checkpoints(
    gcs: FakeGcs, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    training = Epochs(folder, monkeypatch)
    training.end(4)
    training.per_copy = 1
    ours = Mirror(folder, PLACE)
    ours.sync()
    found = there(gcs)
    checkpoint = max(int(name[-9:-4]) for name in found if name.endswith(".npz"))
    assert checkpoint >= 4
    assert {f"model-{checkpoint:05d}.keras", f"model-{int(found['best.json']):05d}.keras"} <= found.keys()


def test_the_bucket_gets_checkpoints_although_an_upload_takes_longer_than_an_epoch(
    gcs: FakeGcs, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    training = Epochs(folder, monkeypatch)
    training.end(4)
    training.per_copy = 2
    Mirror(folder, PLACE).sync()
    found = there(gcs)
    assert any(name.endswith(".npz") for name in found)
    assert f"model-{int(found['best.json']):05d}.keras" in found


def test_no_checkpoint_is_uploaded_after_another_worker_took_over(
    gcs: FakeGcs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    names = [f"checkpoints/checkpoint-{number}.npz" for number in (1, 2)]
    write(folder, dict.fromkeys(names, "late"))
    upload = mirror._copy

    def taken_over_meanwhile(path: Path, place: BucketPath) -> None:
        monkeypatch.setattr(mirror, "_copy", upload)
        upload(path, place)
        claim(tmp_path / "other", PLACE)
        write(tmp_path / "other", dict.fromkeys(names, "theirs"))
        Mirror(tmp_path / "other", PLACE).sync()

    monkeypatch.setattr(mirror, "_copy", taken_over_meanwhile)
    with pytest.raises(TrainingError, match="another worker"):
        Mirror(folder, PLACE).sync()
    assert there(gcs) == dict.fromkeys(names, b"theirs")


def test_only_replaced_checkpoints_and_models_are_deleted(gcs: FakeGcs, folder: Path):
    ours = Mirror(folder, PLACE)
    write(folder, {"checkpoints/checkpoint-1.npz": "x", "model-00001.keras": "x"})
    ours.sync()
    gcs.put("bucket", f"{PLACE.key}/report.html", b"drawn elsewhere")
    (folder / "checkpoints/checkpoint-1.npz").unlink()
    (folder / "model-00001.keras").rename(folder / "model.keras")
    Mirror(folder, PLACE).sync()  # as in a retry on the same worker
    assert sorted(there(gcs)) == ["model.keras", "report.html"]


def test_files_are_uploaded_during_the_training_and_at_its_end(gcs: FakeGcs, folder: Path):
    with mirrored(folder, PLACE, pytest.fail, every_s=0.01):
        write(folder, {"run.json": "r"})
        until(lambda: "run.json" in there(gcs))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mirror, "_files", lambda *_: {})
            write(folder, {"result.json": "done"})
    assert there(gcs) == {"run.json": b"r", "result.json": b"done"}


def test_an_outage_during_the_training_is_only_a_warning(gcs: FakeGcs, folder: Path, caplog: pytest.LogCaptureFixture):
    fault = gcs.fail("status", on="insert|list|get", code=403, times=None)
    with mirrored(folder, PLACE, pytest.fail, every_s=0.01):
        write(folder, {"run.json": "r"})
        until(lambda: fault.fired and "cannot be copied to the bucket for now" in caplog.text)
        fault.release()
    assert there(gcs) == {"run.json": b"r"}


def test_an_outage_at_the_end_is_an_error(gcs: FakeGcs, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(google, "DEADLINE_S", 0.5)
    fault = gcs.fail("status", on="insert", matches="result", times=None)
    with pytest.raises(StorageError, match="did not answer within"), mirrored(folder, PLACE, pytest.fail):
        write(folder, {"result.json": "done"})
    assert fault.fired
    assert there(gcs) == {}
    fault.release()
    Mirror(folder, PLACE).sync()  # as a retry does before it reports that the run is complete
    assert there(gcs) == {"result.json": b"done"}


def test_an_error_of_the_mirror_does_not_hide_the_error_of_the_training(gcs: FakeGcs, folder: Path):
    fault = gcs.fail("status", code=403, times=None)
    write(folder, {"run.json": "r"})
    with pytest.raises(TrainingError, match="NaN"), mirrored(folder, PLACE, pytest.fail):
        raise TrainingError("NaN")
    assert fault.fired


def test_another_worker_continues_from_the_uploaded_files(gcs: FakeGcs, folder: Path, tmp_path: Path):
    write(folder, {"run.json": "r", "checkpoints/checkpoint-1.npz": "x"})
    Mirror(folder, PLACE).sync()
    other = tmp_path / "other"
    claim(other, PLACE)
    assert (other / "checkpoints/checkpoint-1.npz").read_text() == "x"

    write(other, {"checkpoints/checkpoint-2.npz": "2"})
    (other / "checkpoints/checkpoint-1.npz").unlink()
    Mirror(other, PLACE).sync()
    write(folder, {"result.json": "of a line of steps that was left"})
    claim(folder, PLACE)  # and back to the first worker
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "checkpoint-2.npz",
        "mirror.json",
        "run.json",
    ]
    assert (folder / "checkpoints/checkpoint-2.npz").read_text() == "2"


def test_a_retry_on_the_same_worker_keeps_files_that_are_not_uploaded(gcs: FakeGcs, folder: Path):
    write(folder, {"checkpoints/checkpoint-1.npz": "x"})
    claim(folder, PLACE)
    assert (folder / "checkpoints/checkpoint-1.npz").read_text() == "x"


def test_a_worker_stops_uploading_after_another_worker_took_over(gcs: FakeGcs, folder: Path, tmp_path: Path):
    ours = Mirror(folder, PLACE)
    write(folder, {"run.json": "r"})
    ours.sync()
    claim(tmp_path / "other", PLACE)
    write(folder, {"run.json": "late"})
    with pytest.raises(TrainingError, match="another worker"):
        ours.sync()
    assert there(gcs) == {"run.json": b"r"}


def test_a_training_ends_after_another_worker_took_its_run_over(gcs: FakeGcs, folder: Path, tmp_path: Path):
    left: list[TenfoldError] = []

    def train() -> None:
        with mirrored(folder, PLACE, left.append, every_s=0.01):
            claim(tmp_path / "other", PLACE)
            write(folder, {"run.json": "late"})
            until(lambda: left)

    with pytest.raises(RunTakenOver):
        train()
    assert [type(error) for error in left] == [RunTakenOver]


@pytest.mark.parametrize("name", ["run.json", "best.json", "result.json"])
def test_a_late_upload_does_not_replace_files_of_the_new_owner(
    gcs: FakeGcs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """Another worker takes over and writes between the last check of the owner and the upload."""
    ours = Mirror(folder, PLACE)
    write(folder, {name: "late"})
    swap = storage.swap

    def take_over_first(*arguments: object) -> None:
        monkeypatch.setattr(storage, "swap", swap)
        claim(tmp_path / "other", PLACE)
        write(tmp_path / "other", {name: "theirs"})
        Mirror(tmp_path / "other", PLACE).sync()
        swap(*arguments)

    monkeypatch.setattr(storage, "swap", take_over_first)
    with pytest.raises(TrainingError, match="another worker"):
        ours.sync()
    assert there(gcs)[name] == b"theirs"


def test_a_file_changed_without_a_new_size_is_uploaded_again(gcs: FakeGcs, folder: Path):
    ours = Mirror(folder, PLACE)
    write(folder, {"record/batches-00000.csv": "a\n"})
    ours.sync()
    stat = (folder / "record/batches-00000.csv").stat()
    write(folder, {"record/batches-00000.csv": "b\n"})
    os.utime(folder / "record/batches-00000.csv", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    ours.sync()
    assert there(gcs) == {"record/batches-00000.csv": b"b\n"}


def record_of(folder: Path, steps: range, segment_bytes: int = 75) -> RecordSink:
    """Write an open record with a full segment every five steps."""
    sink = RecordSink(folder / "record", segment_bytes)
    for step in steps:
        sink.write(Row("samples", 1000.0 + step, step, {"x": 0.5}))
    return sink


def test_only_the_open_segment_is_uploaded_again(gcs: FakeGcs, folder: Path):
    ours = Mirror(folder, PLACE)
    sink = record_of(folder, range(12))
    ours.sync()
    assert list(there(gcs)) == [f"record/samples-0000{n}" for n in ("0.parquet", "1.parquet", "2.csv")]
    sink.write(Row("samples", 1012.0, 12, {"x": 0.5}))
    uploads = gcs.requests["insert"]
    ours.sync()
    assert gcs.requests["insert"] == uploads + 1
    assert there(gcs)["record/samples-00002.csv"].endswith(b"\n1012.000,12,0.5\n")
    sink.close()
    ours.sync()
    assert gcs.requests["insert"] == uploads + 2
    assert list(there(gcs)) == [f"record/samples-0000{n}.parquet" for n in range(3)]


def test_a_plain_segment_stays_in_the_bucket_until_its_compressed_file_is_uploaded(gcs: FakeGcs, folder: Path):
    ours = Mirror(folder, PLACE)
    sink = record_of(folder, range(3))
    ours.sync()
    sink.close()
    fault = gcs.fail("status", on="insert", code=403)
    with pytest.raises(AccessError):
        ours.sync()
    assert fault.fired
    assert list(there(gcs)) == ["record/samples-00000.csv"]
    Mirror(folder, PLACE).sync()  # a retry on the same worker
    assert list(there(gcs)) == ["record/samples-00000.parquet"]


def test_another_worker_reads_each_row_once_after_a_kill(gcs: FakeGcs, folder: Path, tmp_path: Path):
    ours = Mirror(folder, PLACE)
    sink = record_of(folder, range(3))
    ours.sync()
    for step in (3, 4):
        sink.write(Row("samples", 1000.0 + step, step, {"x": 0.5}))
    sink.close()
    fault = gcs.fail("status", on="delete", code=403, times=None)
    with pytest.raises(AccessError):
        ours.sync()
    assert fault.fired
    fault.release()
    assert list(there(gcs)) == ["record/samples-00000.csv", "record/samples-00000.parquet"]  # the plain one is older

    other = tmp_path / "other"
    claim(other, PLACE)
    record_of(other, range(5, 7)).close()
    assert read(other / "record", "samples")["step"].tolist() == [*range(7)]
    Mirror(other, PLACE).sync()
    assert list(there(gcs)) == ["record/samples-00000.parquet", "record/samples-00001.parquet"]


def test_a_segment_closed_during_a_fetch_is_fetched_compressed(
    gcs: FakeGcs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ours, sink = Mirror(folder, PLACE), record_of(folder, range(3))
    ours.sync()
    download = mirror._copy

    def download_late(place: BucketPath, path: Path) -> None:
        monkeypatch.setattr(mirror, "_copy", download)
        sink.close()
        ours.sync()
        download(place, path)

    monkeypatch.setattr(mirror, "_copy", download_late)
    fetch(tmp_path / "there", PLACE, ("record/",))
    assert read(tmp_path / "there/record", "samples")["step"].tolist() == [0, 1, 2]


def test_a_fetch_gives_up_on_objects_that_keep_disappearing(
    gcs: FakeGcs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(folder, {"record/samples-00000.csv": "a\n"})
    Mirror(folder, PLACE).sync()

    def gone(place: BucketPath, path: Path) -> None:
        raise FileNotFoundError(place)

    monkeypatch.setattr(mirror, "_copy", gone)
    with pytest.raises(FileNotFoundError):
        fetch(tmp_path / "there", PLACE, ("record/",))


def test_the_records_of_all_servers_are_fetched(gcs: FakeGcs, folder: Path, tmp_path: Path):
    """The mirror of server 0 ignores the records of other servers, because each server uploads its own."""
    for index, name in enumerate(("", "servers/1", "servers/2")):
        own = folder / name
        claim(own, PLACE / name)
        record_of(own, range(index, 8)).close()
        Mirror(own, PLACE / name).sync()
    Mirror(folder, PLACE).sync()
    fetch(tmp_path / "there", PLACE, REPORT_FILES)
    recorded = load_recorded_run(tmp_path / "there")
    assert {index: samples.rows["step"].tolist() for index, samples in recorded.servers.items()} == {
        index: [*range(index, 8)] for index in range(3)
    }
    before = gcs.requests.total()
    fetch(tmp_path / "there", PLACE, REPORT_FILES)  # nothing has changed
    assert gcs.requests.total() == before + 1


def test_a_local_workspace_is_not_mirrored(tmp_path: Path):
    with mirrored(tmp_path / "run", tmp_path / "run", pytest.fail):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../out.txt", "record/../../out.txt", "/out.txt", "record//out.txt", "./out.txt"])
@pytest.mark.parametrize("fetching", [claim, lambda folder, place: fetch(folder, place, ("",))])
def test_an_object_with_a_path_outside_the_folder_is_refused(
    gcs: FakeGcs, tmp_path: Path, name: str, fetching: Callable[[Path, BucketPath], None]
):
    gcs.put("bucket", f"{PLACE.key}/{name}", b"hostile")
    folder = tmp_path / "w" / "there"
    with pytest.raises(AccessError, match=rf"the object '{re.escape(name)}' cannot become a file below .*: remove"):
        fetching(folder, PLACE)
    assert not list(tmp_path.rglob("out.txt"))


def test_a_worker_owns_a_run_only_after_fetched_files_are_synced(
    gcs: FakeGcs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    claim(folder, PLACE)
    Mirror(folder, PLACE).sync()
    other = tmp_path / "other"
    other.mkdir()
    seen: list[list[str]] = []
    monkeypatch.setattr(mirror, "sync_tree", lambda at: seen.append(sorted(path.name for path in at.rglob("*"))))
    claim(other, PLACE)
    assert len(seen) == 1
    assert "mirror.json" not in seen[0]
    assert {path.name for path in other.rglob("*")} == {*seen[0], "mirror.json"}


def test_folder_placeholders_of_a_console_are_ignored(gcs: FakeGcs, tmp_path: Path):
    for name in ("", "record/", "run.json"):
        gcs.put("bucket", f"{PLACE.key}/{name}", b"")
    fetch(tmp_path, PLACE, ("",))
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
