"""Faults of single requests to a bucket. The server counts them: a fault that never fired proves nothing."""

import errno
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import pytest

from pipeline import storage
from pipeline.config.settings import settings_from
from pipeline.errors import AccessError, ConflictError, StorageError, TenfoldError
from pipeline.snapshot.raw_example import Origin, RawExample
from pipeline.snapshot.raw_reader import RawReader
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.storage import BucketPath
from pipeline.storage import gcs as requests_of
from pipeline.storage.gcs import Gcs
from standins.fake_gcs import FakeGcs
from standins.fake_gcs.api import Api
from standins.fake_gcs.objects import Content
from tests.snapshots import take_snapshot
from tests.storage.test_gcs_internals import pass_deadline_after
from tests.waiting import until

PLACE = BucketPath("bucket", "folder/file")
SMALL = b"content"
LARGE = Random(0).randbytes(9 << 20)  # more than the client sends in one request
PASSING = [{"kind": "status", "code": 503}, {"kind": "status", "code": 429}, {"kind": "reset"}]
Request = Callable[[], object]
FOREVER_S = 1e6
"""Longer than any test may take."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waits as short as possible, and parts so small that large objects have several."""
    monkeypatch.setattr(requests_of, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(requests_of, "PART_BYTES", 4 << 20)


@pytest.fixture
def deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_of, "DEADLINE_S", 0.3)


def write_new(content: bytes = SMALL) -> None:
    with storage.write_new(PLACE) as file:
        file.write(content)


def write_whole(content: bytes = SMALL) -> None:
    with storage.write_whole(PLACE) as file:
        file.write(content)


def read_whole() -> bytes:
    return PLACE.read_bytes()


def fetch() -> bytes:
    with PLACE.open() as file:
        return file.read()


# --- 1: transient errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", PASSING, ids=["503", "429", "reset"])
@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("insert", write_new),
        ("insert", write_whole),
        ("resumable-start", lambda: write_new(LARGE)),
        ("resumable-chunk", lambda: write_new(LARGE)),
        ("list", lambda: list(storage.objects(PLACE.parent))),
        ("get", PLACE.with_name("there").stat),
        ("download", PLACE.with_name("there").read_bytes),
        ("download", PLACE.with_name("large").open),
        ("rewrite", lambda: storage.copy_new(PLACE.with_name("there"), PLACE)),
        ("delete", PLACE.with_name("there").unlink),
    ],
)
def test_transient_errors_are_retried_and_logged(
    gcs: FakeGcs, caplog: pytest.LogCaptureFixture, fault: dict, operation: str, request_: Request
):
    gcs.put("bucket", "folder/there", SMALL)
    gcs.put("bucket", "folder/large", LARGE)
    armed = gcs.fail(**fault, on=operation, times=2)
    close = getattr(request_(), "close", None)
    if close:
        close()
    assert armed.fired == 2
    retries = [line for line in caplog.messages if "trying again" in line]
    assert len(retries) == 2
    assert all("gs://bucket/folder" in line for line in retries)
    if operation in ("insert", "rewrite"):
        assert gcs.content("bucket", PLACE.key) == SMALL
    if operation.startswith("resumable"):
        assert PLACE.stat().crc32c == google_crc32c.value(LARGE)


KIB = 1024
SOON = (0.2, 0.2)  # Replaces the client's timeouts for a connection and for bytes.
READS = (("list", lambda: list(storage.objects(PLACE.parent))), ("get", PLACE.stat))
DOWNLOADS = (("download", read_whole), ("download", fetch))
INSERTS = (("insert", write_new), ("insert", write_whole))
CHUNKS = (("resumable-chunk", lambda: write_new(LARGE)), ("resumable-chunk", lambda: write_whole(LARGE)))
COPIES = (("rewrite", lambda: storage.copy_new(PLACE, PLACE.with_name("copy"))),)
IN_JSON = (*READS, *INSERTS, *CHUNKS, *COPIES)
ANY = (*IN_JSON, *DOWNLOADS, ("resumable-start", lambda: write_new(LARGE)))
UPLOADS = ("insert", "resumable-start", "resumable-chunk")
SCENARIOS: list[tuple[str, dict[str, object], tuple[tuple[str, Request], ...]]] = [
    *((f"return-{code}", {"kind": "status", "code": code}, ANY) for code in (408, 429, 500, 502, 503, 504)),
    ("return-reset-connection", {"kind": "reset"}, ANY),
    ("lost answer", {"kind": "lost"}, ANY),
    ("answer that is too late", {"kind": "stall", "seconds": 0.5}, ANY),
    ("return-503-after-0K", {"kind": "status", "after_bytes": 1}, INSERTS),
    ("return-503-after-256K", {"kind": "status", "after_bytes": 256 * KIB}, CHUNKS),
    ("return-429-after-700K", {"kind": "status", "code": 429, "after_bytes": 700 * KIB}, CHUNKS),
    ("reset after 1 MiB of a chunk", {"kind": "reset", "after_bytes": KIB * KIB}, CHUNKS),
    ("return-broken-stream", {"kind": "broken", "after_bytes": 4}, (*IN_JSON, *DOWNLOADS)),
    ("return-broken-stream-after-300K", {"kind": "broken", "after_bytes": 300 * KIB}, DOWNLOADS),
    ("return-broken-stream at the begin", {"kind": "broken", "after_bytes": 0}, DOWNLOADS),
    ("return-broken-stream-final-chunk-after-100B", {"kind": "short", "after_bytes": 100}, IN_JSON),
    ("reset after 256 KiB of a download", {"kind": "lost", "after_bytes": 256 * KIB}, DOWNLOADS),
    ("stall-after-0K of an upload", {"kind": "pause", "after_bytes": 0, "seconds": 0.5}, (*INSERTS, *CHUNKS)),
    ("stall-after-300K of an upload", {"kind": "pause", "after_bytes": 300 * KIB, "seconds": 0.5}, CHUNKS),
    ("stall-after-300K", {"kind": "stall", "after_bytes": 300 * KIB, "seconds": 0.5}, DOWNLOADS),
    ("stall-after-100B", {"kind": "stall", "after_bytes": 100, "seconds": 0.5}, IN_JSON),
    ("return-corrupted-data", {"kind": "corrupt"}, DOWNLOADS),
]
"""The faults that Google's storage-testbench documents for its HTTP interface, by its names, and further faults."""


def firings(kind: object, operation: str) -> int:
    """Return how often a fault that is armed twice fires.

    A second damaged download is an error. A second write is refused.
    """
    was_done = kind in ("lost", "broken", "short") and operation in ("insert", "rewrite")
    return 1 if was_done or kind == "corrupt" else 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "operation", "request_"),
    [
        pytest.param(fault, operation, request_, id=f"{name}-{operation}-{number}")
        for name, fault, requests in SCENARIOS
        for number, (operation, request_) in enumerate(requests)
    ],
)
def test_each_scenario_of_the_testbench_succeeds(
    gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, fault: dict, operation: str, request_: Request
):
    content = SMALL if operation == "insert" else LARGE
    if operation not in UPLOADS:
        gcs.put("bucket", PLACE.key, content)
    if "seconds" in fault:
        monkeypatch.setattr(requests_of, "TIMEOUT_S", SOON)
    before = gcs.api.buckets["bucket"].creations
    times = firings(fault["kind"], operation)
    armed = gcs.fail(**fault, on=operation, times=times if fault["kind"] == "corrupt" else 2)
    answer = request_()
    assert armed.fired == times
    if operation == "download":
        assert answer == content
    if operation == "list":
        assert [key for key, _ in answer] == ["file"]  # type: ignore[attr-defined]
    if operation == "get":
        assert (answer.st_size, answer.crc32c) == (len(content), google_crc32c.value(content))  # type: ignore[attr-defined]
    copied = [PLACE.with_name("copy").key] if operation == "rewrite" else []
    assert gcs.names("bucket") == sorted([PLACE.key, *copied])
    assert all(gcs.content("bucket", name) == content for name in gcs.names("bucket"))
    assert gcs.api.buckets["bucket"].creations - before == (operation in (*UPLOADS, "rewrite"))


@pytest.mark.parametrize("operation", ["insert", "list"])
def test_the_first_requests_survive_a_truncated_answer(gcs: FakeGcs, operation: str):
    short = gcs.fail("short", on=operation, after_bytes=20)
    PLACE.parent.require_bucket()
    PLACE.parent.require_writable()
    assert short.fired == 1
    assert gcs.names("bucket") == []


def test_the_first_requests_fail_soon_if_deletion_fails(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    """A run in progress waits minutes for a bucket, here forever. The first requests must not."""
    monkeypatch.setattr(requests_of, "FIRST_TRIES_S", 0.5)
    for name in ("DEADLINE_S", "FIRST_ANSWER_S"):
        monkeypatch.setattr(requests_of, name, FOREVER_S)
    gcs.fail("status", on="delete", code=503, times=None)
    with pytest.raises(StorageError, match="503"):
        PLACE.parent.require_writable()


def test_an_interrupted_download_is_continued(gcs: FakeGcs):
    gcs.put("bucket", PLACE.key, LARGE)
    for read in (read_whole, fetch):
        broken = gcs.fail("broken", on="download", times=2)
        assert read() == LARGE
        assert broken.fired == 2


# --- 2: permanent outages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("insert", write_new),
        ("resumable-chunk", lambda: write_new(LARGE)),
        ("list", lambda: list(storage.objects(PLACE.parent))),
        ("get", PLACE.with_name("there").stat),
        ("download", PLACE.with_name("there").read_bytes),
        ("rewrite", lambda: storage.copy_new(PLACE.with_name("there"), PLACE)),
    ],
)
@pytest.mark.parametrize("fault", PASSING, ids=["503", "429", "reset"])
def test_a_permanent_outage_fails_within_the_deadline(
    gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, operation: str, request_: Request, fault: dict
):
    gcs.put("bucket", "folder/there", SMALL)
    armed = gcs.fail(**fault, on=operation, times=None)
    pass_deadline_after(armed, 3, monkeypatch)
    with pytest.raises(StorageError, match=r"gs://bucket/folder.* run again"):
        request_()
    assert armed.fired >= 3
    assert gcs.names("bucket") == ["folder/there"]


def test_a_bucket_that_stops_answering_raises_a_storage_error(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requests_of, "TIMEOUT_S", (1.0, 0.1))
    gcs.put("bucket", PLACE.key, SMALL)
    silent = gcs.fail("stall", on="download", times=None)
    pass_deadline_after(silent, 2, monkeypatch)
    with pytest.raises(StorageError, match=r"gs://bucket/folder/file.* run again"):
        read_whole()


# --- 3: the answer is lost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_new, write_whole])
@pytest.mark.parametrize(
    ("operation", "content", "times"),
    [("insert", SMALL, 1), ("resumable-start", LARGE, 3), ("resumable-chunk", LARGE, 3)],
)
def test_an_upload_with_a_lost_answer_succeeds(
    gcs: FakeGcs, write: Callable[[bytes], None], operation: str, content: bytes, times: int
):
    lost = gcs.fail("lost", on=operation, times=times)
    write(content)
    assert lost.fired == times
    assert gcs.content("bucket", PLACE.key) == content


def test_a_replacement_with_a_lost_answer_is_applied_once(gcs: FakeGcs):
    gcs.put("bucket", PLACE.key, b"before")
    lost = gcs.fail("lost", on="insert")
    write_whole()
    assert lost.fired == 1
    assert gcs.requests["insert"] == 2  # the second was refused by its precondition
    assert read_whole() == SMALL


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_swap_with_a_lost_answer_is_applied_once(gcs: FakeGcs, before: bytes | None):
    if before:
        write_whole(before)
    lost = gcs.fail("lost", on="insert")
    storage.swap(PLACE, before, SMALL)
    assert (lost.fired, read_whole()) == (1, SMALL)
    with pytest.raises(ConflictError):
        storage.swap(PLACE, before, b"other")


def test_a_copy_with_a_lost_answer_succeeds(gcs: FakeGcs):
    gcs.put("bucket", "source", SMALL)
    lost = gcs.fail("lost", on="rewrite")
    storage.copy_new(BucketPath("bucket", "source"), PLACE)
    assert (lost.fired, gcs.requests["rewrite"], read_whole()) == (1, 2, SMALL)


def test_a_deletion_with_a_lost_answer_succeeds(gcs: FakeGcs):
    gcs.put("bucket", PLACE.key, SMALL)
    lost = gcs.fail("lost", on="delete")
    PLACE.unlink(missing_ok=True)
    assert (lost.fired, gcs.requests["delete"], gcs.names("bucket")) == (1, 2, [])


# --- 4: another object exists -----------------------------------------------------------------------------------------


def replace_after_a_look(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Replace an object right after each of the first `times` calls of `stat`, as another process would."""

    def replaced(path: BucketPath) -> storage.ObjectStat:
        seen = look(path)
        if next(left, None) is not None:
            gcs.put("bucket", path.key, b"theirs")
        return seen

    left = iter(range(times))
    client = requests_of.client()
    look = client.stat
    monkeypatch.setattr(client, "stat", replaced)


def test_unlink_keeps_an_object_written_meanwhile(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    write_new()
    replace_after_a_look(gcs, monkeypatch, times=1)
    PLACE.unlink()
    assert PLACE.read_bytes() == b"theirs"


def test_open_reads_an_object_written_meanwhile(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    write_new(LARGE)
    replace_after_a_look(gcs, monkeypatch, times=2)
    with PLACE.open() as file:
        assert file.read() == b"theirs"


def test_an_object_replaced_during_every_read_is_named(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    write_new()
    replace_after_a_look(gcs, monkeypatch, times=100)
    with pytest.raises(
        StorageError, match="other programs replaced gs://bucket/folder/file 10 times while it was being read"
    ):
        PLACE.open()


@pytest.mark.usefixtures("deadline")
def test_an_error_does_not_contain_the_request_url(monkeypatch: pytest.MonkeyPatch):
    """Anyone who has the URL of an upload session can write to it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # The socket does not listen, so connections are refused.
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(StorageError, match=r"did not answer within .*refused") as failed:
            write_new(LARGE)
    assert "url" not in str(failed.value)
    assert "/upload/" not in str(failed.value)


def test_an_invalid_bucket_name_is_refused(gcs: FakeGcs):
    with pytest.raises(AccessError, match=r"gs://photos_ is not a valid bucket name .*: check the name"):
        BucketPath("photos_").require_bucket()


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["multipart", "resumable"])
def test_an_existing_object_is_named_and_not_changed(gcs: FakeGcs, content: bytes):
    other = content[:-1] + b"!"
    generation = gcs.put("bucket", PLACE.key, other)
    gcs.put("bucket", "source", content)
    with pytest.raises(ConflictError, match="gs://bucket/folder/file already exists with other content"):
        write_new(content)
    with pytest.raises(ConflictError, match="gs://bucket/folder/file already exists with other content"):
        storage.copy_new(BucketPath("bucket", "source"), PLACE)
    assert gcs.content("bucket", PLACE.key) == other
    assert gcs.generation("bucket", PLACE.key) == generation


@pytest.mark.parametrize(("theirs", "welcome"), [(LARGE, True), (LARGE[:-1] + b"!", False)], ids=["equal", "other"])
def test_an_upload_does_not_replace_an_object_created_in_the_meantime(gcs: FakeGcs, theirs: bytes, welcome: bool):
    waiting = gcs.fail("stall", on="resumable-start")

    def appear() -> None:
        until(lambda: waiting.fired, pause=0.001)
        gcs.put("bucket", PLACE.key, theirs)
        waiting.release()

    other = threading.Thread(target=appear)
    other.start()
    if welcome:
        write_new(LARGE)
    else:
        with pytest.raises(ConflictError):
            write_new(LARGE)
    other.join()
    assert waiting.fired == 1
    assert gcs.content("bucket", PLACE.key) == theirs


# --- 8: an upload session is gone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [404, 410])
@pytest.mark.parametrize("write", [write_new, write_whole])
def test_an_upload_restarts_if_its_session_is_gone(
    gcs: FakeGcs, caplog: pytest.LogCaptureFixture, code: int, write: Callable[[bytes], None]
):
    gone = gcs.fail("status", on="resumable-chunk", code=code, times=2)
    write(LARGE)
    assert gone.fired == 2
    assert gcs.requests["resumable-start"] == 3
    assert gcs.content("bucket", PLACE.key) == LARGE
    assert caplog.text.count("the bucket ended the upload session of gs://bucket/folder/file early") == 2


def test_an_upload_fails_after_three_lost_sessions(gcs: FakeGcs):
    gone = gcs.fail("status", on="resumable-chunk", code=404, times=None)
    with pytest.raises(
        StorageError, match="gs://bucket/folder/file: the bucket ended 3 upload sessions early: run again"
    ):
        write_new(LARGE)
    assert gone.fired == 3
    assert gcs.names("bucket") == []


# --- 9 and 10: damaged downloads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [read_whole, fetch])
@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_a_damaged_download_is_fetched_again(
    gcs: FakeGcs, caplog: pytest.LogCaptureFixture, read: Callable[[], bytes], content: bytes
):
    gcs.put("bucket", PLACE.key, content)
    damaged = gcs.fail("corrupt", on="download")
    assert read() == content
    assert damaged.fired == 1
    assert "arrived damaged" in caplog.text


@pytest.mark.parametrize("read", [read_whole, fetch])
def test_a_download_damaged_twice_is_refused(gcs: FakeGcs, read: Callable[[], bytes]):
    gcs.put("bucket", PLACE.key, SMALL)
    damaged = gcs.fail("corrupt", on="download", times=None)
    with pytest.raises(StorageError, match=r"gs://bucket/folder/file arrived damaged twice \(wrong CRC32C\)"):
        read()
    assert damaged.fired == 2


@pytest.mark.parametrize("read", [read_whole, fetch])
def test_damage_before_an_interruption_is_detected(gcs: FakeGcs, read: Callable[[], bytes]):
    """The client then requests only the rest, which is intact."""
    gcs.put("bucket", PLACE.key, SMALL * 1000)
    damaged = gcs.fail("damaged", on="download")
    assert read() == SMALL * 1000
    assert damaged.fired == 1


@pytest.mark.parametrize(
    "request_", [PLACE.stat, PLACE.open, PLACE.read_bytes, lambda: list(storage.objects(PLACE.parent))]
)
def test_an_object_without_a_checksum_is_named(gcs: FakeGcs, request_: Request):
    gcs.put("bucket", PLACE.key, SMALL, encrypted=True)
    with pytest.raises(AccessError, match=r"gs://bucket/folder/file: the bucket states no CRC32C .*: copy it"):
        request_()


def test_a_composed_object_needs_no_md5(gcs: FakeGcs):
    gcs.api.buckets["bucket"].create(PLACE.key, Content(LARGE), {}, components=2)
    assert (PLACE.stat().md5, PLACE.read_bytes(), fetch()) == ("", LARGE, LARGE)
    storage.copy_new(PLACE, PLACE.with_name("copy"))
    assert gcs.content("bucket", "folder/copy") == LARGE


def test_an_empty_object_may_lack_its_size(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    """Google's storage-testbench describes an empty object this way."""
    resource = Api._resource
    monkeypatch.setattr(Api, "_resource", lambda api, item: {**resource(api, item), "size": None})
    gcs.put("bucket", PLACE.key, b"")
    assert PLACE.stat().st_size == 0
    assert PLACE.read_bytes() == b""
    gcs.put("bucket", PLACE.key, SMALL)
    with pytest.raises(AccessError, match="states no CRC32C or no size"):
        PLACE.stat()


@pytest.fixture
def row(gcs: FakeGcs) -> RawExample:
    """An image in the bucket, as it was listed."""
    gcs.put("bucket", PLACE.key, SMALL)
    stat = PLACE.stat()
    return RawExample(PLACE.name, ["cats"], "", stat.st_size, stat.crc32c, "", (), stat.generation, stat.md5)


def cached(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("times", [1, 2])
def test_a_damaged_image_is_never_cached(gcs: FakeGcs, tmp_path: Path, row: RawExample, times: int):
    reader = RawReader(Origin(str(PLACE.parent), cache=str(tmp_path), remote=True))
    damaged = gcs.fail("corrupt", on="download", times=times)
    if times == 1:
        assert reader.fetch_to_cache(row)
        assert cached(tmp_path) == [SMALL]
    else:
        with pytest.raises(StorageError, match="arrived damaged twice"):
            reader.fetch_to_cache(row)
        assert cached(tmp_path) == []
    assert damaged.fired == times


@pytest.mark.parametrize("partial", [b"", SMALL[:3], SMALL[:-1] + b"!"], ids=["empty", "cut", "of the right size"])
def test_a_partial_file_in_the_cache_is_replaced(gcs: FakeGcs, tmp_path: Path, row: RawExample, partial: bytes):
    reader = RawReader(Origin(str(PLACE.parent), cache=str(tmp_path), remote=True))
    reader.fetch_to_cache(row)
    [copy] = [path for path in tmp_path.rglob("*") if path.is_file()]
    copy.write_bytes(partial)
    assert reader.read(row) == SMALL
    assert cached(tmp_path) == [SMALL]
    assert gcs.requests["download"] == 2


# --- 14: a bucket without access, or out of reach ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bucket", "message"),
    [
        ("private", r"cannot log in .*: run `gcloud auth"),
        ("forbidden", r"is not allowed .*\(403\): give it the role"),
        ("missing", r"does not exist .*: check its name"),
    ],
)
def test_a_refused_request_is_not_retried(gcs: FakeGcs, bucket: str, message: str):
    gcs.create_bucket("private", "private")
    gcs.create_bucket("forbidden", "forbidden")
    place = BucketPath(bucket, "file")
    for request in (place.require_bucket, place.stat, place.read_bytes, lambda: list(storage.objects(place))):
        with pytest.raises(AccessError, match=rf"gs://{bucket}.*{message}") as raised:
            request()
        assert "an anonymous reader" in str(raised.value)
    # If the bucket is missing, each request sends one more listing to find that out.
    assert sum(gcs.requests.values()) == (8 if bucket == "missing" else 4)


def test_a_bucket_whose_requester_pays_needs_a_project(gcs: FakeGcs):
    gcs.create_bucket("paid", requester_pays=True)
    gcs.put("paid", "file", SMALL)
    place = BucketPath("paid", "file")
    for request in (place.stat, place.read_bytes, lambda: list(storage.objects(place.parent))):
        with pytest.raises(AccessError, match="gs://paid makes the requester pay: set user_project"):
            request()
    paying = BucketPath("paid", "file", user_project="project")
    assert (paying.read_bytes(), len(list(storage.objects(paying.parent)))) == (SMALL, 1)


@pytest.mark.parametrize(
    ("code", "message", "error"),
    [
        (403, "Object 'x' is subject to bucket's retention policy and cannot be deleted.", AccessError),
        (403, "The billing account for the owning project is disabled in state absent", AccessError),
        (403, "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: a1", AccessError),
        (400, "Invalid argument, see https://storage.googleapis.com/upload?upload_id=secret for more", StorageError),
    ],
)
def test_an_error_contains_the_message_of_the_server(gcs: FakeGcs, code: int, message: str, error: type[TenfoldError]):
    gcs.put("bucket", PLACE.key, SMALL)
    gcs.fail("status", on="get|download", code=code, message=message, times=1)
    with pytest.raises(error) as raised:
        PLACE.stat()
    assert message.partition(" see ")[0].strip() in str(raised.value).replace('"', "'").replace("\\'", "'")
    assert "upload_id" not in str(raised.value)


def test_a_source_replaced_during_a_copy_is_named(gcs: FakeGcs):
    gcs.put("bucket", PLACE.key, SMALL)
    gcs.fail("status", on="rewrite", code=412)
    with pytest.raises(
        StorageError, match=r"another program replaced gs://bucket/folder/file while it was being copied"
    ):
        storage.copy_new(PLACE, PLACE.with_name("copy"))


def test_a_full_folder_for_temporary_files_is_named(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The error is simulated, because a test may lack the right to mount a small file system."""
    gcs.put("bucket", PLACE.key, SMALL)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(requests_of.os, "pwrite", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bytes_named = rf"No space left on device: {len(SMALL)} bytes are needed, [0-9,]+ are free"
    with pytest.raises(StorageError, match=rf"file does not fit into {tmp_path} \({bytes_named}\): free some"):
        PLACE.open()
    with (
        pytest.raises(StorageError, match=r"device: more than 0 bytes are needed, [0-9,]+ are free"),
        storage.write_new(PLACE.with_name("new")),
    ):
        full()


@pytest.fixture
def silence() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_bucket_that_never_answers_is_reported(silence: str, monkeypatch: pytest.MonkeyPatch):
    """The server never answers, so that the test would not end without this limit."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", silence)
    monkeypatch.setattr(requests_of, "FIRST_ANSWER_S", 0.5)
    with pytest.raises(TenfoldError, match=r"gs://bucket.*an anonymous reader .* no answer \(.*0\.5 s"):
        PLACE.require_bucket()


# --- 15: pages --------------------------------------------------------------------------------------------------------


def test_a_short_page_does_not_end_a_listing(gcs: FakeGcs):
    names = [f"folder/{number:03d}" for number in range(50)]
    for name in names:
        gcs.put("bucket", name, b"")
    gcs.api.page_sizes = cycle([0, 3, 0, 0, 1, 7])
    assert [path.key for path, _ in requests_of.client().objects(PLACE.parent)] == names


def test_a_listing_of_many_pages_holds_each_object_once(gcs: FakeGcs):
    names = [f"{label}/{number:04d}.jpg" for label in ("cats", "dogs") for number in range(1250)]
    for name in names:
        gcs.put("bucket", f"raw/{name}", name.encode())
    gcs.put("bucket", "raw-2/other.jpg", b"")
    passing = gcs.fail("status", on="list", times=2)
    assert [key for key, _ in storage.objects(BucketPath("bucket", "raw"))] == names
    assert (passing.fired, gcs.requests["list"]) == (2, 3 + 2)
    snapshot = load_snapshot(
        take_snapshot(settings_from({"source_uri": "gs://bucket/raw", "workspace": "gs://bucket/work"}))
    )
    assert (snapshot.listed, snapshot.classes) == (2500, {"cats": 1250, "dogs": 1250})
    assert gcs.requests["download"] == 1  # the snapshot itself


def test_a_missing_key_file_is_named(monkeypatch: pytest.MonkeyPatch):
    """Otherwise, a person with a mistyped path would see an error about missing permissions."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(AccessError, match=r"^GOOGLE_APPLICATION_CREDENTIALS names /nowhere/key.json, which cannot be"):
        BucketPath("bucket", "file").exists()


@pytest.mark.parametrize(("content", "raised"), [(b"some bytes", None), (b"others", FileNotFoundError)])
def test_a_copy_continues_if_an_equal_object_replaced_its_source(
    gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, content: bytes, raised: type[Exception] | None
):
    """Two attempts of one task write the same file and copy it. The replacement comes between two requests."""
    source, target = PLACE.with_name("there"), PLACE.with_name("copy")
    with storage.write_whole(source) as file:
        file.write(b"some bytes")
    real = Gcs._rewrite

    def replaced(client: Gcs, *blobs: Any) -> None:
        monkeypatch.setattr(Gcs, "_rewrite", real)
        with storage.write_whole(source) as file:
            file.write(content)
        real(client, *blobs)

    monkeypatch.setattr(Gcs, "_rewrite", replaced)
    with pytest.raises(raised) if raised else nullcontext():
        storage.copy_new(source, target)
    assert target.exists() == (raised is None)
    if not raised:
        assert target.read_bytes() == content
