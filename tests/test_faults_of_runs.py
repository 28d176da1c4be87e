"""Faults of a bucket during whole builds. Each fault is counted, because a fault that never fired proves nothing."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import md5
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pipeline.__main__ import main
from pipeline.config.preflight import preflight
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load, require_shards
from pipeline.dataset.verify import verify
from pipeline.errors import ConflictError, DatasetError, FileSystemError, SourceError, StorageError
from pipeline.plan.plan import load_plan
from pipeline.sharding.publish import copy_range
from pipeline.sharding.write import write_range
from pipeline.snapshot import extract
from pipeline.storage import BucketPath, place_of
from pipeline.storage import gcs as requests_of
from standins.fake_gcs import FakeGcs
from standins.fake_gcs.faults import Fault
from tests import snapshots
from tests.conftest import jpeg
from tests.published import build_in_stages, commit, files_of, no_progress, planned, set_options, write_and_copy
from tests.waiting import until

SOURCE = "gs://bucket/raw"
WORKSPACE = "gs://bucket/work"
IMAGES = [f"raw/{label}/{number:03d}.jpg" for label in ("cats", "dogs", "eels") for number in range(8)]
Change = Callable[[FakeGcs, str], object]


@pytest.fixture(autouse=True)
def images(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 images in three classes. A failed request is retried almost at once."""
    monkeypatch.setattr(requests_of, "FIRST_WAIT_S", 0.01)
    put_images(gcs)


def put_images(gcs: FakeGcs) -> None:
    for number, name in enumerate(IMAGES):
        gcs.put("bucket", name, jpeg(number))


def settings_of(workspace: str = WORKSPACE, **values: Any) -> Settings:
    values = {"source_uri": SOURCE, "workspace": workspace, "num_shards": 4, "shards_per_task": 2, **values}
    return settings_from(values).dated()


def below(gcs: FakeGcs, prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in gcs.names("bucket") if name.startswith(prefix)]


def commits(gcs: FakeGcs) -> list[str]:
    return [name for name in gcs.names("bucket") if name.endswith("dataset.json")]


@pytest.fixture(scope="module")
def expected() -> dict[str, bytes]:
    """The files of the dataset that an uninterrupted run builds."""
    with FakeGcs() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.create_bucket("bucket")
        put_images(server)
        return files_of(build_in_stages(settings_of()))


# --- transient faults and lost answers --------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("workspace", ["bucket", "disk"])
def test_transient_faults_do_not_change_the_dataset(
    gcs: FakeGcs, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workspace: str
):
    faults: list[Fault] = []

    def begin_well(settings: Settings) -> None:
        """Start the faults after the preflight, which does not retry."""
        preflight(settings)
        for on in ("list", "get", "download", *(["insert"] if workspace == "bucket" else [])):
            faults.extend(gcs.fail("status", on=on, code=code, times=2) for code in (503, 429))
            faults.append(gcs.fail("reset", on=on, times=2))
        faults.extend(gcs.fail(kind, on="download") for kind in ("broken", "corrupt"))
        faults.extend(gcs.fail("lost", on="insert") for _ in range(10 if workspace == "bucket" else 0))

    monkeypatch.setattr(snapshots, "preflight", begin_well)
    folder = build_in_stages(settings_of(WORKSPACE if workspace == "bucket" else str(tmp_path / "work")))
    assert faults
    assert [fault for fault in faults if fault.fired != fault.times] == []
    assert files_of(folder) == expected


# --- permanent faults -------------------------------------------------------------------------------------------------


def test_a_run_after_an_outage_writes_only_the_missing_shards(
    gcs: FakeGcs, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(requests_of, "DEADLINE_S", 0.3)
    outage = gcs.fail("status", on="insert", matches=r"work/datasets/.*/train-00002-.*tfrecord$", times=None)
    with pytest.raises(StorageError, match=r"gs://bucket/work/.*train-00002-of-00004\.tfrecord.* run again"):
        build_in_stages(settings_of())
    assert outage.fired  # Once, if a busy machine needs longer than the deadline for one request.
    plan_path = next(iter((place_of(WORKSPACE) / "work" / settings_of().dataset_name).glob("*/plan.json")))
    with pytest.raises(FileSystemError, match=r"train-00002-of-00004\.tfrecord was not written"):
        commit(plan_path, settings_of())
    assert commits(gcs) == []
    written = [name for name in below(gcs, "work/datasets/") if name.endswith("tfrecord")]
    assert [name[-24:-18] for name in written] == ["-00000", "-00001"]
    outage.release()
    again = gcs.fail("stall", on="insert", matches=r"datasets/.*train-0000[01]-", times=None, seconds=0)
    rest = gcs.fail("stall", on="insert", matches=r"datasets/.*tfrecord$", times=None, seconds=0)
    assert files_of(build_in_stages(settings_of())) == expected
    assert (again.fired, rest.fired) == (0, len([name for name in expected if name.endswith("tfrecord")]) - 2)


# --- foreign files with the name of a dataset file --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train-00001-of-00004.tfrecord", "rejected.jsonl", "dataset.json"])
def test_a_foreign_object_is_reported_and_not_overwritten(gcs: FakeGcs, name: str):
    plan_path, _ = planned(settings_of())
    key = f"{place_of(load_plan(plan_path).dataset).key}/{name}"
    generation = gcs.put("bucket", key, b"mine")
    with pytest.raises((ConflictError, DatasetError), match=f"gs://bucket/{key}"):
        build_in_stages(settings_of())
    assert (gcs.content("bucket", key), gcs.generation("bucket", key)) == (b"mine", generation)
    assert commits(gcs) == ([key] if name == "dataset.json" else [])


def test_a_shard_replaced_before_the_commit_is_reported_and_not_overwritten(gcs: FakeGcs):
    plan_path, ranges = planned(settings_of())
    for path in ranges:
        write_range(path, no_progress)
    key = f"{place_of(load_plan(plan_path).dataset).key}/{SHARD}"
    gcs.put("bucket", key, whole := flipped(gcs.content("bucket", key), 20))
    with pytest.raises(ConflictError, match=f"gs://bucket/{key} has CRC32C .* The file was left untouched"):
        build_in_stages(settings_of())
    assert gcs.content("bucket", key) == whole
    assert commits(gcs) == []


# --- two runs at once -------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("published", ["", "gs://bucket/published"])
def test_two_concurrent_attempts_of_each_task_create_one_dataset(
    gcs: FakeGcs, expected: dict[str, bytes], published: str
):
    settings = settings_of(publish_uri=published)
    plan_path, ranges = planned(settings)
    gcs.latency_s = 0.01  # so that both attempts overlap
    inserted = gcs.requests["insert"] + gcs.requests["rewrite"]
    with ThreadPoolExecutor(4) as pool:
        for stage in (write_range, copy_range):
            list(pool.map(stage, ranges * 2, [no_progress] * 2 * len(ranges)))
        first, second = pool.map(commit, [plan_path] * 2, [settings] * 2)
    assert first == second
    assert files_of(place_of(load_plan(plan_path).dataset)) == expected
    shards = [name for name in gcs.names("bucket") if name.endswith("tfrecord")]
    assert len(shards) == len([name for name in expected if name.endswith("tfrecord")])
    assert gcs.requests["insert"] + gcs.requests["rewrite"] - inserted > 3 * len(shards)  # also the shard results


def command(**values: object) -> list[str]:
    """Return the command that builds a dataset of SOURCE with these settings."""
    options = set_options(**{"source_uri": SOURCE, "num_shards": 4, **values})
    return [sys.executable, "-m", "pipeline", "build", "--json", *options]


@pytest.mark.long
def test_two_concurrent_runs_create_one_dataset(gcs: FakeGcs, expected: dict[str, bytes]):
    runs = [subprocess.Popen(command(workspace=WORKSPACE), stdout=subprocess.PIPE) for _ in range(2)]
    results = [json.loads(run.communicate()[0]) for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert results[0]["dataset"] == results[1]["dataset"]
    assert files_of(place_of(results[0]["dataset"])) == expected
    others = [
        name for name in below(gcs, f"work/datasets/{settings_of().dataset_name}/") if "/labels/" not in f"/{name}"
    ]
    assert len(others) == len(expected) + 1  # plus the pointer of the partition
    assert gcs.requests["insert"] > len(below(gcs, "work/"))  # both runs wrote


# --- killed runs ------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workspace", ["bucket", "disk"])
def test_runs_killed_at_random_moments_converge_to_the_same_dataset(
    gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workspace: str
):
    """Each run continues from the files of the run that was killed before it. Each completed run is compared."""
    root = "gs://bucket" if workspace == "bucket" else str(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    gcs.latency_s = 0.005
    duration, dataset = run_until(gcs, command(workspace=f"{root}/unbroken"), None)
    assert dataset
    expected, names = files_of(place_of(dataset)), all_names(gcs, tmp_path, "unbroken")
    moments, killed, came_through = Random(4), 0, 0
    while killed < 20:
        _, dataset = run_until(gcs, command(workspace=f"{root}/work{came_through}"), moments.uniform(0, duration))
        killed += not dataset
        for copy in tmp_path.glob("*/raw/*/[!.]*"):
            assert md5(copy.read_bytes()).hexdigest() == copy.name
        if dataset:
            assert files_of(place_of(dataset)) == expected
            assert all_names(gcs, tmp_path, f"work{came_through}") == names
            came_through += 1
    _, dataset = run_until(gcs, command(workspace=f"{root}/work{came_through}"), None)
    assert files_of(place_of(dataset)) == expected
    assert all_names(gcs, tmp_path, f"work{came_through}") == names
    assert list((tmp_path / "tmp").iterdir()) == []


def run_until(gcs: FakeGcs, command: Sequence[str], seconds: float | None) -> tuple[float, str]:
    """Run a command, and kill it `seconds` after its first request. Return the seconds since then, and its dataset."""
    before = gcs.requests.total()
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    until(lambda: gcs.requests.total() > before or run.poll() is not None, pause=0.002)
    begun = time.monotonic()
    with suppress(subprocess.TimeoutExpired):
        output = run.communicate(timeout=seconds)[0]
        assert run.returncode == 0
        return time.monotonic() - begun, json.loads(output)["dataset"]
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    return time.monotonic() - begun, ""


def all_names(gcs: FakeGcs, folder: Path, workspace: str) -> list[str]:
    """Return the names of all objects and files below a workspace, without the hash of its location.

    Each attempt to commit adds a state to the label map. All states count as one name.
    """
    found = below(gcs, f"{workspace}/") + [
        str(path.relative_to(folder / workspace)) for path in (folder / workspace).rglob("*")
    ]
    found = [re.sub(r"(?<=[0-9a-f]{16}-)[0-9a-f]{8}", "place", name) for name in found]
    return sorted({re.sub(r"labels/\d{5}\.json", "labels/state.json", name) for name in found})


KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline import storage
from pipeline.snapshot.raw_reader import unfinished_copies
places = unfinished_copies(Path(sys.argv[1]) / "raw") / ("0" * 32), storage.place_of("gs://bucket/rows")
with storage.temporary_for(places[0]) as copy, storage.temporary_for(places[1]) as rows:
    copy.write_bytes(b"half")
    rows.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_run_removes_half_written_files_of_a_killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Copies of images in a local workspace, and files that wait for their upload to a bucket."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "work")])
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in left] == [b"half", b"half"]
    build_in_stages(settings_of(str(tmp_path / "work")))
    build_in_stages(settings_of())
    assert [path for path in left if path.exists()] == []
    assert list((tmp_path / "tmp").iterdir()) == []


# --- a full disk ------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_reported_and_leaves_no_partial_copy(gcs: FakeGcs, expected: dict[str, bytes], tmp_path: Path):
    """A limit on the size of files fails in the middle of a write, as a full disk does."""
    smallest = min(len(gcs.content("bucket", name)) for name in IMAGES)
    run = subprocess.run(
        command(workspace=str(tmp_path / "work")),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # Python would keep a compiled module that is cut off.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (smallest - 1, smallest - 1)),
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("error: ")
    assert str(tmp_path / "work") in run.stderr.splitlines()[-1]
    assert [path for path in (tmp_path / "work").rglob("*") if path.is_file()] == []
    assert files_of(build_in_stages(settings_of(str(tmp_path / "work")))) == expected


# --- readers refuse a damaged dataset ---------------------------------------------------------------------------------


@pytest.fixture
def published(images: None) -> BucketPath:
    folder = build_in_stages(settings_of())
    assert isinstance(folder, BucketPath)
    return folder


SHARD = "train-00002-of-00004.tfrecord"
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda whole: b"", "0 bytes"),
    "cut in a header": (lambda whole: whole[:5], "5 bytes"),
    "cut at a record": (lambda whole: whole[: record_ends(whole)[0]], "readable records"),
    "trailing bytes": (lambda whole: whole + b"trailing", "bytes"),
    "a bit of the length": (lambda whole: flipped(whole, 0), "damaged header"),
    "a bit of its checksum": (lambda whole: flipped(whole, 9), "damaged header"),
    "a bit of the payload": (lambda whole: flipped(whole, 20), "record at byte 0 is damaged"),
    "a record twice": (lambda whole: whole[: record_ends(whole)[0]] + whole, "readable records"),
    "two swapped": (lambda whole: swapped(whole), "does not have the CRC32C"),
}


def flipped(whole: bytes, position: int) -> bytes:
    return whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]


def record_ends(whole: bytes) -> list[int]:
    ends = [0]
    while ends[-1] < len(whole):
        ends.append(ends[-1] + 16 + int.from_bytes(whole[ends[-1] : ends[-1] + 8], "little"))
    return ends[1:]


def swapped(whole: bytes) -> bytes:
    first, second = record_ends(whole)[:2]
    return whole[first:second] + whole[:first] + whole[second:]


def test_a_damaged_shard_in_a_bucket_is_refused_and_described(gcs: FakeGcs, published: BucketPath):
    shard = published / SHARD
    whole = shard.read_bytes()
    for damage, (change, problem) in DAMAGES.items():
        gcs.put("bucket", shard.key, change(whole))
        with pytest.raises(DatasetError, match=rf"{SHARD} was committed with CRC32C .* overwritten after the commit"):
            require_shards(published, load(published))
        with pytest.raises(DatasetError, match=SHARD):
            planned(settings_of())
        problems = "\n".join(verify(published)["problems"])
        assert f"{shard}" in problems
        assert problem in problems, damage


def test_a_missing_file_of_a_dataset_in_a_bucket_is_reported(gcs: FakeGcs, published: BucketPath):
    for name in (SHARD, "rejected.jsonl", "duplicates.jsonl"):
        whole = (published / name).read_bytes()
        gcs.delete("bucket", (published / name).key)
        with pytest.raises(DatasetError, match=rf"{name} was committed with CRC32C .* is missing"):
            require_shards(published, load(published))
        with pytest.raises(DatasetError, match=rf"{name} .* is missing"):
            planned(settings_of())
        assert f"{published / name} is missing" in verify(published)["problems"]
        gcs.put("bucket", (published / name).key, whole)
    assert verify(published)["ok"]


def test_a_damaged_dataset_json_in_a_bucket_is_refused(gcs: FakeGcs, published: BucketPath):
    commit_file = published / "dataset.json"
    whole = commit_file.read_bytes()
    for damaged in (flipped(whole, whole.index(b"cats")), whole[:-9], b""):
        gcs.put("bucket", commit_file.key, damaged)
        for read in (lambda: load(published), lambda: verify(published), lambda: planned(settings_of())):
            with pytest.raises(DatasetError, match=rf"{commit_file} cannot be read"):
                read()


def test_the_next_run_restores_a_missing_dataset_json(gcs: FakeGcs, published: BucketPath):
    whole = files_of(published)
    gcs.delete("bucket", (published / "dataset.json").key)
    with pytest.raises(DatasetError, match=rf"{published} contains no dataset, because it has no dataset\.json"):
        load(published)
    written = gcs.fail("stall", on="insert", matches=r"datasets/.*tfrecord$", times=None, seconds=0)
    assert files_of(build_in_stages(settings_of())) == whole
    assert written.fired == 0


# --- a bucket without access, or an unreachable server ----------------------------------------------------------------


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A function that runs a build that must fail in the first requests, and returns its error message.

    Later requests are tried again for minutes, here forever.
    """
    monkeypatch.setattr("pipeline.__main__.log_to_stderr", lambda: None)  # it would affect other tests
    monkeypatch.setattr(requests_of, "DEADLINE_S", 1e6)

    def run(**values: object) -> str:
        assert main(command(**values)[3:]) == 1
        return capsys.readouterr().err.strip()

    return run


ANONYMOUS = r"an anonymous reader \(no credentials were found\)"
REFUSALS = [
    ("private", rf"gs://private: {ANONYMOUS} cannot log in \(.*\): run `gcloud auth .*"),
    ("forbidden", rf"gs://forbidden: {ANONYMOUS} is not allowed to do this with .* \(403\): give it the role .*"),
    ("missing", rf"gs://missing does not exist \(seen as {ANONYMOUS}\): check its name"),
]


@pytest.mark.parametrize(("bucket", "message"), REFUSALS)
@pytest.mark.parametrize("field", ["source_uri", "workspace", "publish_uri"])
def test_a_private_forbidden_or_missing_bucket_is_reported_at_once(
    gcs: FakeGcs, error_of, bucket: str, message: str, field: str
):
    gcs.create_bucket("private", "private")
    gcs.create_bucket("forbidden", "forbidden")
    before = gcs.names("bucket")
    error = error_of(**{"workspace": WORKSPACE, field: f"gs://{bucket}/place"})
    assert re.fullmatch(rf"error: {field}: {message}", error)
    assert gcs.requests["insert"] == 0
    assert gcs.names("bucket") == before


@pytest.mark.parametrize("field", ["workspace", "publish_uri"])
def test_a_read_only_bucket_is_reported_before_anything_is_written(gcs: FakeGcs, error_of, field: str):
    gcs.create_bucket("read-only")
    fault = gcs.fail("status", on="insert", matches=r"place/\.writable", code=403, times=None)
    error = error_of(**{"workspace": WORKSPACE, field: "gs://read-only/place"})
    assert fault.fired == 1
    assert re.fullmatch(
        rf"error: {field}: gs://read-only: {ANONYMOUS} is not allowed to do this .* \(403\): give .*", error
    )
    assert gcs.names("read-only") == []


def test_the_write_check_removes_the_probe_object_of_a_killed_check(gcs: FakeGcs):
    gcs.put("bucket", "work/.writable", b"")
    place_of("gs://bucket/work").require_writable()
    assert "work/.writable" not in gcs.names("bucket")


@pytest.mark.long
def test_an_unreachable_storage_server_is_reported_at_once(error_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # The socket does not listen, so connections are refused.
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{bound.getsockname()[1]}")
        error = error_of(workspace=str(tmp_path / "work"))
    message = (
        rf"{SOURCE}: Google Cloud Storage gave {ANONYMOUS} no answer \(.*Connection refused\): check the network, .*"
    )
    assert re.fullmatch(rf"error: source_uri: {message}", error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.core
def test_a_silent_storage_server_is_reported_within_ten_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a separate process, which must also end while a request is still in flight.

    The server never answers. The error names the limit of 6 seconds, to which the start of the client adds 3 at most.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{silent.getsockname()[1]}")
        silent.settimeout(600)
        with subprocess.Popen(command(workspace=str(tmp_path / "work")), stderr=subprocess.PIPE, text=True) as run:
            asking, _ = silent.accept()
            assert run.stderr
            error = next(line for line in run.stderr if line.startswith("error: ")).strip()
            until(run.poll, 10, is_expected=lambda code: code is not None)
            asking.close()
    assert run.returncode == 1
    message = (
        rf"{SOURCE}: Google Cloud Storage gave {ANONYMOUS} no answer \(.*no result within 6 s\): check the network, .*"
    )
    assert re.fullmatch(rf"error: source_uri: {message}", error)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that writes the key of a service account, whose tokens come from the given address."""
    pem = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

    def make(token_uri: str) -> None:
        account = {"type": "service_account", "client_email": "builder@project.iam.gserviceaccount.com"}
        account |= {"project_id": "project", "private_key": pem.decode(), "token_uri": token_uri}
        (tmp_path / "key.json").write_text(json.dumps(account))
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))

    requests_of._client.cache_clear()  # otherwise the client has the credentials of another test
    yield make
    requests_of._client.cache_clear()


@pytest.mark.long
def test_an_unreachable_token_server_is_reported_at_once(error_of, tmp_path: Path, key_file: Callable[[str], None]):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        key_file(f"http://127.0.0.1:{bound.getsockname()[1]}/token")
        error = error_of(workspace=str(tmp_path / "work"))
    who = r"builder@project\.iam\.gserviceaccount\.com"
    message = rf"gs://bucket: {who} cannot get an access token \(.*Connection refused\): .*"
    assert re.fullmatch(rf"error: source_uri: {message}", error)
    assert not (tmp_path / "work").exists()


def test_a_silent_token_server_is_reported_within_ten_seconds(
    error_of, tmp_path: Path, key_file: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(requests_of, "FIRST_ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        key_file(f"http://127.0.0.1:{silent.getsockname()[1]}/token")
        error = error_of(workspace=str(tmp_path / "work"))
    assert re.fullmatch(r"error: source_uri: gs://bucket.*builder@project\.iam.* no answer \(.*0\.5 s\): .*", error)
    assert not (tmp_path / "work").exists()


# --- an empty prefix --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["nothing", "raw/cats/000", "placeholder", "text"])
def test_a_prefix_without_images_is_refused(gcs: FakeGcs, tmp_path: Path, prefix: str):
    gcs.put("bucket", "placeholder/", b"")
    gcs.put("bucket", "text/a/readme.txt", b"text")
    with pytest.raises(SourceError, match=rf"no images under source_uri 'gs://bucket/{prefix}'"):
        build_in_stages(settings_of(str(tmp_path / "work"), source_uri=f"gs://bucket/{prefix}"))
    assert not list(tmp_path.rglob("*.json*"))


# --- a source that changes --------------------------------------------------------------------------------------------

CHANGES: dict[str, Change] = {
    "other bytes": lambda gcs, name: gcs.put("bucket", name, jpeg(4711)),
    "equal bytes, put again": lambda gcs, name: gcs.put("bucket", name, gcs.content("bucket", name)),
    "gone": lambda gcs, name: gcs.delete("bucket", name),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("workspace", ["bucket", "disk"])
def test_an_image_changed_after_listing_stops_the_run(
    gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, workspace: str
):
    """It changes after the listing, and before a shard task reads it or a local workspace copies it."""
    fetch = extract.fetch_images

    def change_then_fetch(*arguments: Any, **options: Any) -> int:
        CHANGES[change](gcs, IMAGES[5])
        return fetch(*arguments, **options)

    settings = settings_of(WORKSPACE if workspace == "bucket" else str(tmp_path / "work"))
    with monkeypatch.context() as patch:
        patch.setattr(extract, "fetch_images", change_then_fetch)
        with pytest.raises(SourceError, match=r"gs://bucket/raw/cats/005\.jpg changed or vanished after it was listed"):
            build_in_stages(settings)
    assert commits(gcs) == []
    assert len(load(build_in_stages(settings)).labels) == 3  # the next run lists the source again


def test_every_image_is_read_at_its_listed_generation(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    listed = {name: gcs.generation("bucket", name) for name in IMAGES}
    read: dict[str, int | None] = {}

    def note(place: BucketPath, generation: int | None = None) -> bytes:
        read[place.key] = generation
        return whole(place, generation)

    whole = BucketPath.read_bytes
    monkeypatch.setattr(BucketPath, "read_bytes", note)
    build_in_stages(settings_of())
    assert {name: read[name] for name in IMAGES} == listed


def test_a_local_copy_is_used_after_its_source_changes(gcs: FakeGcs, tmp_path: Path, expected: dict[str, bytes]):
    """All images are as they were listed, and none is fetched again."""
    settings = settings_of(str(tmp_path / "work"))
    plan_path, ranges = planned(settings)
    for name in IMAGES[:3]:
        gcs.put("bucket", name, jpeg(4711))
    before = gcs.requests.total()
    write_and_copy(ranges)
    commit(plan_path, settings)
    assert gcs.requests.total() == before
    assert files_of(place_of(load_plan(plan_path).dataset)) == expected
