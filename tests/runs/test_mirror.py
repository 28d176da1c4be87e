"""A run in a bucket: what is brought there, in which order, and what an outage or another worker does to it."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import storage
from pipeline.errors import AccessError, StorageError, TrainingError
from pipeline.monitor import Row, read
from pipeline.monitor.record import RecordSink
from pipeline.report import REPORT_FILES
from pipeline.runs import mirror
from pipeline.runs.mirror import Mirror, claim, fetch, mirrored
from pipeline.runs.recorded_run import load_recorded_run
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


def test_what_is_still_being_written_is_not_brought(gcs: FakeGcs, folder: Path):
    write(folder, {"comet/try-1/.open/tmp1/messages.json": "{}", ".run.json.host.1.tmp": "r", "run.json": "r"})
    Mirror(folder, PLACE).sync()
    assert there(gcs) == {"run.json": b"r"}


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
    write(folder, dict.fromkeys((*names, "checkpoints/.checkpoint-1.npz.host.1.00000000.tmp", "run.json"), "x"))
    Mirror(folder, PLACE).sync()
    assert list(there(gcs)) == ["run.json"]


def test_what_names_others_is_brought_after_them(gcs: FakeGcs, folder: Path):
    """A kill in the middle must not leave a model unnamed, nor a checkpoint that is beyond the record or the best."""
    names = ["checkpoints/checkpoint-7.npz", "result.json", "best.json", "record/batches-00000.csv", "model.keras"]
    write(folder, dict.fromkeys(names, "x"))
    fault = gcs.fail("status", on="insert", matches="model", code=403)
    with pytest.raises(AccessError):
        Mirror(folder, PLACE).sync()
    assert fault.fired
    assert set(there(gcs)) <= {"record/batches-00000.csv"}
    Mirror(folder, PLACE).sync()
    order = sorted(names, key=lambda name: gcs.generation("bucket", f"{PLACE.key}/{name}"))
    assert order[2:] == ["best.json", "result.json", "checkpoints/checkpoint-7.npz"]


def test_what_is_written_last_is_brought_as_it_was_before_the_others_were_looked_at(
    gcs: FakeGcs, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """The training goes on meanwhile: a model, then the file that names it, then a checkpoint behind both."""
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


def test_the_newest_checkpoint_is_brought_first_and_one_that_is_gone_by_then_is_none_to_wait_for(
    gcs: FakeGcs, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    write(folder, dict.fromkeys((f"checkpoints/checkpoint-{number}.npz" for number in (1, 2)), "x"))
    upload = mirror._upload

    def upload_slowly(path: Path, place: BucketPath) -> None:
        upload(path, place)
        (folder / "checkpoints/checkpoint-1.npz").unlink(missing_ok=True)

    monkeypatch.setattr(mirror, "_upload", upload_slowly)
    Mirror(folder, PLACE).sync()
    assert list(there(gcs)) == ["checkpoints/checkpoint-2.npz"]


def test_no_checkpoint_is_brought_once_another_worker_took_over(
    gcs: FakeGcs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    names = [f"checkpoints/checkpoint-{number}.npz" for number in (1, 2)]
    write(folder, dict.fromkeys(names, "late"))
    upload = mirror._upload

    def taken_over_meanwhile(path: Path, place: BucketPath) -> None:
        monkeypatch.setattr(mirror, "_upload", upload)
        upload(path, place)
        claim(tmp_path / "other", PLACE)
        write(tmp_path / "other", dict.fromkeys(names, "theirs"))
        Mirror(tmp_path / "other", PLACE).sync()

    monkeypatch.setattr(mirror, "_upload", taken_over_meanwhile)
    with pytest.raises(TrainingError, match="another worker"):
        Mirror(folder, PLACE).sync()
    assert there(gcs) == dict.fromkeys(names, b"theirs")


def test_checkpoints_and_models_that_were_replaced_go_but_a_report_stays(gcs: FakeGcs, folder: Path):
    ours = Mirror(folder, PLACE)
    write(folder, {"checkpoints/checkpoint-1.npz": "x", "model-00001.keras": "x"})
    ours.sync()
    gcs.put("bucket", f"{PLACE.key}/report.html", b"drawn elsewhere")
    (folder / "checkpoints/checkpoint-1.npz").unlink()
    (folder / "model-00001.keras").rename(folder / "model.keras")
    Mirror(folder, PLACE).sync()  # a retry on the same worker
    assert sorted(there(gcs)) == ["model.keras", "report.html"]


def test_it_keeps_up_and_brings_the_rest_at_the_end(gcs: FakeGcs, folder: Path):
    with mirrored(folder, PLACE, every_s=0.01):
        write(folder, {"run.json": "r"})
        until(lambda: "run.json" in there(gcs))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mirror, "_files", lambda *_: {})
            write(folder, {"result.json": "done"})
    assert there(gcs) == {"run.json": b"r", "result.json": b"done"}


def test_an_outage_meanwhile_costs_warnings_only(gcs: FakeGcs, folder: Path, caplog: pytest.LogCaptureFixture):
    fault = gcs.fail("status", on="insert|list|get", code=403, times=None)
    with mirrored(folder, PLACE, every_s=0.01):
        write(folder, {"run.json": "r"})
        until(lambda: fault.fired and "cannot be copied to the bucket for now" in caplog.text)
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
    write(folder, {"run.json": "r", "checkpoints/checkpoint-1.npz": "x"})
    Mirror(folder, PLACE).sync()
    other = tmp_path / "other"
    claim(other, PLACE)
    assert (other / "checkpoints/checkpoint-1.npz").read_text() == "x"

    write(other, {"checkpoints/checkpoint-2.npz": "2"})
    (other / "checkpoints/checkpoint-1.npz").unlink()
    Mirror(other, PLACE).sync()
    write(folder, {"result.json": "of a line of steps that was left"})
    claim(folder, PLACE)  # and back
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "checkpoint-2.npz",
        "mirror.json",
        "run.json",
    ]
    assert (folder / "checkpoints/checkpoint-2.npz").read_text() == "2"


def test_a_retry_on_the_same_worker_keeps_what_the_bucket_has_not_yet(gcs: FakeGcs, folder: Path):
    write(folder, {"checkpoints/checkpoint-1.npz": "x"})
    claim(folder, PLACE)
    assert (folder / "checkpoints/checkpoint-1.npz").read_text() == "x"


def test_a_worker_whose_run_was_taken_over_writes_no_more(gcs: FakeGcs, folder: Path, tmp_path: Path):
    ours = Mirror(folder, PLACE)
    write(folder, {"run.json": "r"})
    ours.sync()
    claim(tmp_path / "other", PLACE)
    write(folder, {"run.json": "late"})
    with pytest.raises(TrainingError, match="another worker"):
        ours.sync()
    assert there(gcs) == {"run.json": b"r"}


@pytest.mark.parametrize("name", ["run.json", "best.json", "result.json"])
def test_a_worker_that_is_late_replaces_nothing_of_the_one_that_took_over(
    gcs: FakeGcs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """Between the last look at whose run it is and the write, another worker takes over and writes."""
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


def test_a_file_that_grows_between_two_looks_is_brought_again(gcs: FakeGcs, folder: Path):
    ours = Mirror(folder, PLACE)
    write(folder, {"record/batches-00000.csv": "a\n"})
    ours.sync()
    stat = (folder / "record/batches-00000.csv").stat()
    write(folder, {"record/batches-00000.csv": "b\n"})
    os.utime(folder / "record/batches-00000.csv", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    ours.sync()
    assert there(gcs) == {"record/batches-00000.csv": b"b\n"}


def record_of(folder: Path, steps: range, segment_bytes: int = 75) -> RecordSink:
    """One that goes on, a full segment every five steps."""
    sink = RecordSink(folder / "record", segment_bytes)
    for step in steps:
        sink.write(Row("samples", 1000.0 + step, step, {"x": 0.5}))
    return sink


def test_a_closed_segment_is_brought_once_and_only_the_open_one_again(gcs: FakeGcs, folder: Path):
    ours = Mirror(folder, PLACE)
    sink = record_of(folder, range(12))
    ours.sync()
    assert list(there(gcs)) == [f"record/samples-0000{n}" for n in ("0.csv.gz", "1.csv.gz", "2.csv")]
    sink.write(Row("samples", 1012.0, 12, {"x": 0.5}))
    uploads = gcs.requests["insert"]
    ours.sync()
    assert gcs.requests["insert"] == uploads + 1
    assert there(gcs)["record/samples-00002.csv"].endswith(b"\n1012.000,12,0.5\n")
    sink.close()
    ours.sync()
    assert gcs.requests["insert"] == uploads + 2
    assert list(there(gcs)) == [f"record/samples-0000{n}.csv.gz" for n in range(3)]


def test_a_plain_segment_stays_until_its_compressed_form_is_there(gcs: FakeGcs, folder: Path):
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
    assert list(there(gcs)) == ["record/samples-00000.csv.gz"]


def test_another_worker_has_each_row_once_wherever_the_first_was_killed(gcs: FakeGcs, folder: Path, tmp_path: Path):
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
    assert list(there(gcs)) == ["record/samples-00000.csv", "record/samples-00000.csv.gz"]  # the first one is shorter

    other = tmp_path / "other"
    claim(other, PLACE)
    record_of(other, range(5, 7)).close()
    assert read(other / "record", "samples")["step"].tolist() == [*range(7)]
    Mirror(other, PLACE).sync()
    assert list(there(gcs)) == ["record/samples-00000.csv.gz", "record/samples-00001.csv.gz"]


def test_what_is_closed_while_it_is_fetched_is_fetched_as_it_is_then(
    gcs: FakeGcs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ours, sink = Mirror(folder, PLACE), record_of(folder, range(3))
    ours.sync()
    download = mirror._download

    def download_late(place: BucketPath, path: Path) -> None:
        sink.close()
        ours.sync()
        download(place, path)

    monkeypatch.setattr(mirror, "_download", download_late)
    fetch(tmp_path / "there", PLACE, ("record/",))
    assert read(tmp_path / "there/record", "samples")["step"].tolist() == [0, 1, 2]


def test_what_is_replaced_again_and_again_is_no_endless_wait(
    gcs: FakeGcs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(folder, {"record/samples-00000.csv": "a\n"})
    Mirror(folder, PLACE).sync()

    def gone(place: BucketPath, path: Path) -> None:
        raise FileNotFoundError(place)

    monkeypatch.setattr(mirror, "_download", gone)
    with pytest.raises(FileNotFoundError):
        fetch(tmp_path / "there", PLACE, ("record/",))


def test_the_records_of_all_servers_are_fetched_where_they_are_asked_for(gcs: FakeGcs, folder: Path, tmp_path: Path):
    """The mirror of server 0 leaves those of the others alone: each brings its own."""
    for index, name in enumerate(("", "servers/1", "servers/2")):
        own = folder / name
        claim(own, PLACE / name)
        record_of(own, range(index, 8)).close()
        Mirror(own, PLACE / name).sync()
    Mirror(folder, PLACE).sync()
    fetch(tmp_path / "there", PLACE, REPORT_FILES)
    told = load_recorded_run(tmp_path / "there")
    assert {index: table["step"].tolist() for index, table in told.servers.items()} == {
        index: [*range(index, 8)] for index in range(3)
    }
    assert told.samples is told.servers[0]
    before = gcs.requests.total()
    fetch(tmp_path / "there", PLACE, REPORT_FILES)  # the same is there
    assert gcs.requests.total() == before + 1


def test_with_a_local_workspace_nothing_is_done(tmp_path: Path):
    with mirrored(tmp_path / "run", tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../out.txt", "record/../../out.txt", "/out.txt", "record//out.txt", "./out.txt"])
@pytest.mark.parametrize("fetching", [claim, lambda folder, place: fetch(folder, place, ("",))])
def test_an_object_whose_name_leads_elsewhere_becomes_no_file(
    gcs: FakeGcs, tmp_path: Path, name: str, fetching: Callable[[Path, BucketPath], None]
):
    gcs.put("bucket", f"{PLACE.key}/{name}", b"hostile")
    folder = tmp_path / "w" / "there"
    with pytest.raises(AccessError, match=rf"the object '{re.escape(name)}' cannot become a file below .*: remove"):
        fetching(folder, PLACE)
    assert not list(tmp_path.rglob("out.txt"))


def test_a_worker_owns_a_run_only_if_what_it_fetched_is_on_its_disk(
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


def test_an_empty_object_that_a_console_made_for_a_folder_stops_nothing(gcs: FakeGcs, tmp_path: Path):
    for name in ("", "record/", "run.json"):
        gcs.put("bucket", f"{PLACE.key}/{name}", b"")
    fetch(tmp_path, PLACE, ("",))
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
