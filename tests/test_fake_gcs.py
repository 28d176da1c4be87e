"""The fake Cloud Storage, driven by the real client."""

import io
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from urllib.request import urlopen

import pytest

from tests.fake_gcs import FakeGcs
from tests.waiting import until

with warnings.catch_warnings():
    # At its first import, the client tries to import grpcio-status, which only gRPC needs.
    warnings.simplefilter("ignore", ImportWarning)
    import requests
    from google.api_core import exceptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from google.cloud.storage.exceptions import DataCorruption
    from google.cloud.storage.retry import DEFAULT_RETRY

CHUNK = 256 * 1024
AWKWARD = [
    "grüße/菊.jpg",
    "a#b?c%20d%2F.jpg",
    "two\nlines\r",
    "a//b/",
    " space + plus&=",
    "x" * 900,
    "//",
    "%",
    "a/../b",
]
QUICK = DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.02).with_timeout(5)


@pytest.fixture
def client(gcs: FakeGcs) -> Iterator[storage.Client]:
    with storage.Client(credentials=AnonymousCredentials(), project="test") as client:
        yield client


@pytest.fixture
def bucket(client: storage.Client) -> storage.Bucket:
    return client.bucket("bucket")


@pytest.mark.parametrize("name", AWKWARD)
def test_an_object_with_any_name_can_be_stored_and_read(gcs: FakeGcs, bucket: storage.Bucket, name: str):
    bucket.blob(name).upload_from_string(b"content")
    assert gcs.names("bucket") == [blob.name for blob in bucket.list_blobs()] == [name]
    assert bucket.get_blob(name).download_as_bytes() == gcs.content("bucket", name) == b"content"
    bucket.blob(name).delete()
    assert gcs.names("bucket") == []


def test_the_client_reads_the_metadata_of_an_object(gcs: FakeGcs, bucket: storage.Bucket):
    blob = bucket.blob("a/b.txt")
    blob.metadata = {"made": "by hand"}
    blob.upload_from_string("hello", content_type="text/plain")
    read = bucket.get_blob("a/b.txt")
    assert (read.size, read.content_type, read.metadata) == (5, "text/plain", {"made": "by hand"})
    assert (read.crc32c, read.md5_hash) == ("mnG7TA==", "XUFAKrxLKna5cZ2REBfFkg==")
    assert (read.generation, read.metageneration) == (gcs.generation("bucket", "a/b.txt"), 1)
    assert read.time_created == read.updated
    assert read.etag


def test_a_bucket_can_be_created_only_once(client: storage.Client):
    client.create_bucket("new", project="test")
    assert client.get_bucket("new").name == "new"
    with pytest.raises(exceptions.NotFound):
        client.get_bucket("unknown")
    with pytest.raises(exceptions.NotFound):
        client.bucket("unknown").blob("a").upload_from_string(b"")
    with pytest.raises(exceptions.Conflict):
        client.create_bucket("new", project="test")


def test_generations_grow_and_an_old_generation_is_not_found(gcs: FakeGcs, bucket: storage.Bucket):
    first = gcs.put("bucket", "a", b"first")
    second = gcs.put("bucket", "a", b"second")
    assert second > first
    old, new = (bucket.blob("a", generation=generation) for generation in (first, second))
    assert new.download_as_bytes() == b"second"
    for call in (old.download_as_bytes, old.reload, old.delete):
        with pytest.raises(exceptions.NotFound, match="No such object: bucket/a"):
            call()
    new.delete()
    assert gcs.names("bucket") == []


def test_every_operation_checks_its_preconditions(gcs: FakeGcs, bucket: storage.Bucket):
    live, stale = gcs.put("bucket", "a", b"content"), 1
    blob = bucket.blob("a")
    with pytest.raises(exceptions.PreconditionFailed, match="pre-conditions you specified did not hold"):
        blob.upload_from_string(b"other", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_file(io.BytesIO(b"other"), if_generation_match=0)  # resumable, because the size is unknown
    with pytest.raises(exceptions.PreconditionFailed):
        blob.create_resumable_upload_session(if_generation_match=0)  # refused before a byte is sent
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(b"other", if_generation_not_match=live)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(b"other", if_metageneration_match=7)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.reload(if_generation_match=stale)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.download_as_bytes(if_generation_match=stale)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.delete(if_generation_match=stale)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("b").rewrite(blob, if_source_generation_match=stale)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.rewrite(blob, if_generation_match=0)
    with pytest.raises(exceptions.NotModified):
        bucket.blob("a").reload(if_generation_not_match=live)
    with pytest.raises(exceptions.NotModified):
        bucket.blob("a").download_as_bytes(if_generation_not_match=live)
    assert (gcs.names("bucket"), gcs.content("bucket", "a"), gcs.generation("bucket", "a")) == (["a"], b"content", live)
    blob.upload_from_string(b"other", if_generation_match=live)
    assert gcs.content("bucket", "a") == b"other"


def test_a_patch_raises_only_the_metageneration(gcs: FakeGcs, bucket: storage.Bucket):
    generation = gcs.put("bucket", "a", b"content")
    blob = bucket.blob("a")
    blob.metadata = {"key": "value"}
    blob.patch(if_metageneration_match=1)
    assert (blob.generation, blob.metageneration, blob.metadata) == (generation, 2, {"key": "value"})
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=1)


@pytest.mark.parametrize("resumable", [False, True])
def test_exactly_one_of_several_concurrent_creates_succeeds(gcs: FakeGcs, client: storage.Client, resumable: bool):
    start = threading.Barrier(8)

    def create(racer: int) -> bool:
        content = bytes([racer]) * 1000
        blob = client.bucket("bucket").blob("a")
        start.wait()
        try:
            blob.upload_from_file(io.BytesIO(content), size=None if resumable else 1000, if_generation_match=0)
        except exceptions.PreconditionFailed:
            return False
        return True

    gcs.latency_s = 0.02  # so that all requests are in flight together
    with ThreadPoolExecutor(8) as racers:
        won = list(racers.map(create, range(8)))
    assert won.count(True) == 1
    assert gcs.content("bucket", "a") == bytes([won.index(True)]) * 1000
    assert gcs.requests["resumable-start" if resumable else "insert"] == 8


def test_a_listing_is_split_into_pages(gcs: FakeGcs, client: storage.Client):
    names = [f"{number:04d}" for number in range(2500)]
    for name in Random(0).sample(names, len(names)):
        gcs.put("bucket", name, b"")
    assert [blob.name for blob in client.list_blobs("bucket")] == names
    assert gcs.requests["list"] == 3
    assert [blob.name for blob in client.list_blobs("bucket", page_size=2000, start_offset="1400")] == names[1400:]
    assert gcs.requests["list"] == 5
    assert [blob.name for blob in client.list_blobs("bucket", max_results=7, prefix="01")] == names[100:107]
    assert [blob.name for blob in client.list_blobs("bucket", start_offset="0005", end_offset="0007")] == names[5:7]


def test_a_listing_is_sorted_by_utf8_bytes(gcs: FakeGcs, client: storage.Client):
    names = ["\U0001f600", "\uff5e", "a", "Z", "é", "a/b", "a-b", "a0"]
    for name in names:
        gcs.put("bucket", name, b"")
    assert [blob.name for blob in client.list_blobs("bucket", page_size=3)] == sorted(names, key=str.encode)


@pytest.mark.parametrize("page_size", [1, 2, 100])
def test_a_delimiter_groups_deeper_objects_into_prefixes(gcs: FakeGcs, client: storage.Client, page_size: int):
    for name in ["x/a", "x/b/1", "x/b/2", "x/b/3", "x/c", "x/d//1", "x/d/2", "y/a"]:
        gcs.put("bucket", name, b"")
    listing = client.list_blobs("bucket", prefix="x/", delimiter="/", page_size=page_size)
    assert [blob.name for blob in listing] == ["x/a", "x/c"]
    assert listing.prefixes == {"x/b/", "x/d/"}
    assert gcs.requests["list"] == -(-4 // page_size)


@pytest.mark.parametrize("size", [0, 1, CHUNK, 2 * CHUNK, 3 * CHUNK + 1])
@pytest.mark.parametrize("told", [False, True])
def test_a_resumable_upload_stores_its_chunks(gcs: FakeGcs, bucket: storage.Bucket, size: int, told: bool):
    content = Random(size).randbytes(size)
    blob = bucket.blob("a", chunk_size=CHUNK)
    blob.upload_from_file(io.BytesIO(content), size=size if told else None, if_generation_match=0, checksum="md5")
    assert gcs.content("bucket", "a") == content
    assert blob.size == size
    assert gcs.requests["insert"] + gcs.requests["resumable-start"] == 1
    assert gcs.bytes_up >= size


def test_an_upload_session_reports_its_progress(gcs: FakeGcs, client: storage.Client, bucket: storage.Bucket):
    place = bucket.blob("a").create_resumable_upload_session()
    status = {"Content-Range": "bytes */*"}
    chunk = {"Content-Range": f"bytes 0-{CHUNK - 1}/{CHUNK + 1}"}
    rest = {"Content-Range": f"bytes {CHUNK}-{CHUNK}/{CHUNK + 1}"}
    with requests.Session() as http:
        untouched = http.put(place, headers=status)
        assert (untouched.status_code, untouched.headers.get("Range")) == (308, None)
        assert http.put(place, b"y", headers=rest).status_code == 503  # the first chunk is missing
        for _ in range(2):  # a repeated chunk is stored once
            assert http.put(place, b"x" * CHUNK, headers=chunk).headers["Range"] == f"bytes=0-{CHUNK - 1}"
        assert http.put(place, headers=status).headers["Range"] == f"bytes=0-{CHUNK - 1}"
        assert gcs.names("bucket") == []
        assert http.put(place, b"y", headers=rest).status_code == 200
        assert int(http.put(place, headers=status).json()["generation"]) == gcs.generation("bucket", "a")
        assert http.put(place.split("upload_id=")[0] + "upload_id=unknown", headers=status).status_code == 404
    assert gcs.content("bucket", "a") == b"x" * CHUNK + b"y"


def test_a_download_can_be_limited_to_a_byte_range(gcs: FakeGcs, bucket: storage.Bucket):
    gcs.put("bucket", "a", b"0123456789")
    blob = bucket.blob("a")
    assert blob.download_as_bytes(start=2, end=4) == b"234"
    assert blob.download_as_bytes(start=7) == b"789"
    assert blob.download_as_bytes(start=-3) == b"789"
    assert blob.download_as_bytes(start=8, end=99) == b"89"
    with pytest.raises(exceptions.RequestRangeNotSatisfiable):
        blob.download_as_bytes(start=10)


def test_a_download_sends_its_generation_and_checksums(gcs: FakeGcs):
    generation = gcs.put("bucket", "a", b"hello")
    for path in ("/download/storage/v1/b/bucket/o/a?alt=media", "/storage/v1/b/bucket/o/a?alt=media"):
        with urlopen(gcs.url + path) as answer:
            assert answer.headers["x-goog-generation"] == str(generation)
            assert answer.headers.get_all("x-goog-hash") == ["crc32c=mnG7TA==", "md5=XUFAKrxLKna5cZ2REBfFkg=="]
            assert (answer.headers["Content-Length"], bool(answer.headers["ETag"])) == ("5", True)
    assert gcs.bytes_down == 10


@pytest.mark.parametrize(("key", "value"), [("crc32c", "AAAAAA=="), ("md5_hash", "1B2M2Y8AsgTpgAmY7PhCfg==")])
def test_an_upload_with_a_wrong_checksum_in_its_metadata_is_refused(
    gcs: FakeGcs, bucket: storage.Bucket, key: str, value: str
):
    for size in (5, None):  # multipart, resumable
        blob = bucket.blob("a")
        setattr(blob, key, value)
        with pytest.raises(exceptions.BadRequest, match="doesn't match calculated"):
            blob.upload_from_file(io.BytesIO(b"hello"), size=size, checksum=None)
    assert gcs.names("bucket") == []


def test_an_upload_with_a_wrong_checksum_in_its_header_is_refused(gcs: FakeGcs, bucket: storage.Bucket):
    place = bucket.blob("a").create_resumable_upload_session(checksum=None)
    refused = requests.put(place, b"hello", headers={"x-goog-hash": "crc32c=AAAAAA=="})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, 400)
    assert gcs.names("bucket") == []


def test_rewrite_and_copy_keep_content_and_type(gcs: FakeGcs, client: storage.Client, bucket: storage.Bucket):
    gcs.create_bucket("other")
    source = bucket.blob("a b/c")
    source.upload_from_string("hello", content_type="text/plain")
    target = client.bucket("other").blob("d/é")
    assert target.rewrite(source, if_generation_match=0, if_source_generation_match=source.generation) == (None, 5, 5)
    assert target.content_type == "text/plain"
    bucket.copy_blob(source, client.bucket("other"), "e")
    assert gcs.content("other", "d/é") == gcs.content("other", "e") == b"hello"


def test_a_composed_object_has_no_md5(gcs: FakeGcs, bucket: storage.Bucket):
    gcs.put("bucket", "a", b"hel")
    gcs.put("bucket", "b", b"lo")
    composed = bucket.blob("c")
    composed.compose([bucket.blob("a"), bucket.blob("b")], if_generation_match=0)
    assert (composed.crc32c, composed.md5_hash, composed.component_count) == ("mnG7TA==", None, 2)
    assert composed.download_as_bytes() == b"hello"


def test_a_requester_pays_bucket_requires_a_user_project(gcs: FakeGcs, client: storage.Client):
    gcs.create_bucket("paid", requester_pays=True)
    gcs.put("paid", "a", b"content")
    with pytest.raises(exceptions.BadRequest, match="requester pays bucket but no user project provided"):
        client.bucket("paid").blob("a").download_as_bytes()
    paying = client.bucket("paid", user_project="mine")
    assert paying.blob("a").download_as_bytes() == b"content"
    assert [blob.name for blob in paying.list_blobs()] == ["a"]


@pytest.mark.parametrize(("access", "status"), [("private", 401), ("forbidden", 403)])
def test_a_restricted_bucket_refuses_anonymous_requests(gcs: FakeGcs, access: str, status: int):
    gcs.create_bucket("closed", access)
    gcs.put("closed", "a", b"content")
    place = f"{gcs.url}/storage/v1/b/closed/o/a"
    refused = requests.get(place)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, status)
    assert requests.get(place, headers={"Authorization": "Bearer token"}).ok == (access == "private")


def test_a_folder_is_served_as_objects(gcs: FakeGcs, bucket: storage.Bucket, tmp_path: Path):
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "1.jpg").write_bytes(b"one")
    (tmp_path / "2.jpg").write_bytes(b"two" * 100_000)
    gcs.put_folder("bucket", "raw/", tmp_path)
    assert gcs.names("bucket") == ["raw/2.jpg", "raw/cats/1.jpg"]
    assert bucket.blob("raw/2.jpg").download_as_bytes() == b"two" * 100_000
    assert bucket.blob("raw/2.jpg").download_as_bytes(start=299_998) == b"wo"
    assert bucket.blob("raw/2.jpg").download_as_bytes(start=1, end=200_000) == b"wot" * 66_666 + b"wo"
    assert bucket.get_blob("raw/cats/1.jpg").size == 3


def test_uploads_are_stored_in_the_keep_folder(tmp_path: Path):
    with FakeGcs(keep=tmp_path) as server:
        server.create_bucket("bucket")
        for content in (b"first", b"second"):
            server.put("bucket", "../../a", content)
        assert server.content("bucket", "../../a") == b"second"
        assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"first", b"second"]


def test_latency_delays_concurrent_answers_in_parallel(gcs: FakeGcs):
    """The server waits for its latency in the thread that also holds a stalled answer."""
    gcs.put("bucket", "a", b"")
    gcs.latency_s = 0.2
    stalled = gcs.fail("stall", on="get", times=16)

    def late(_: int) -> bool:
        return requests.get(f"{gcs.url}/storage/v1/b/bucket/o/a").elapsed.total_seconds() >= 0.2

    with ThreadPoolExecutor(16) as threads:
        answers = threads.map(late, range(16))
        try:
            until(lambda: stalled.fired, is_right=lambda fired: fired == 16)
        finally:
            stalled.release()
        assert all(answers)


@pytest.mark.parametrize("code", [429, 500, 503])
def test_the_client_retries_a_transient_fault(gcs: FakeGcs, client: storage.Client, bucket: storage.Bucket, code: int):
    faults = [gcs.fail("status", on=on, code=code, times=2) for on in ("insert", "list", "get", "download", "delete")]
    bucket.blob("a").upload_from_string(b"content", if_generation_match=0, retry=QUICK)
    assert [blob.name for blob in client.list_blobs("bucket", retry=QUICK)] == ["a"]
    blob = bucket.get_blob("a", retry=QUICK)
    assert blob.download_as_bytes(retry=QUICK) == b"content"
    blob.delete(retry=QUICK)
    assert [fault.fired for fault in faults] == [2] * 5
    assert gcs.requests["insert"] == gcs.requests["list"] == 3


@pytest.mark.parametrize(
    ("code", "error"),
    [(403, exceptions.Forbidden), (404, exceptions.NotFound), (410, exceptions.GoogleAPICallError)],
)
def test_the_client_does_not_retry_a_refusal(gcs: FakeGcs, bucket: storage.Bucket, code: int, error: type[Exception]):
    fault = gcs.fail("status", on="insert", code=code, times=None)
    with pytest.raises(error):
        bucket.blob("a").upload_from_string(b"content", retry=QUICK)
    assert (fault.fired, gcs.names("bucket")) == (1, [])


def test_a_permanent_fault_lasts_until_its_release(gcs: FakeGcs, bucket: storage.Bucket):
    gcs.put("bucket", "a", b"content")
    fault = gcs.fail("status", on="download", times=None)
    with pytest.raises((exceptions.ServiceUnavailable, exceptions.RetryError)):
        bucket.blob("a").download_as_bytes(retry=QUICK.with_timeout(0.3))
    assert fault.fired > 3
    fault.release()
    assert bucket.blob("a").download_as_bytes() == b"content"


def test_a_fault_affects_only_the_matching_objects(gcs: FakeGcs, bucket: storage.Bucket):
    fault = gcs.fail("status", on="insert|resumable-start", matches=r"\.bad$", code=403, times=None)
    bucket.blob("a.good").upload_from_string(b"")
    for size in (0, None):
        with pytest.raises(exceptions.Forbidden):
            bucket.blob("a.bad").upload_from_file(io.BytesIO(b""), size=size)
    assert (fault.fired, gcs.names("bucket")) == (2, ["a.good"])


@pytest.mark.parametrize("code", [404, 410])
def test_an_upload_to_an_expired_session_fails(gcs: FakeGcs, bucket: storage.Bucket, code: int):
    fault = gcs.fail("status", on="resumable-chunk", matches="a", code=code)
    with pytest.raises(exceptions.GoogleAPICallError) as raised:
        bucket.blob("a", chunk_size=CHUNK).upload_from_file(io.BytesIO(b"x" * 3 * CHUNK), retry=QUICK)
    assert (raised.value.code, fault.fired, gcs.names("bucket")) == (code, 1, [])


def test_a_request_on_a_reset_connection_has_no_effect(gcs: FakeGcs, bucket: storage.Bucket):
    fault = gcs.fail("reset", on="insert")
    with pytest.raises(requests.ConnectionError):
        bucket.blob("a").upload_from_string(b"content", retry=None)
    assert (fault.fired, gcs.names("bucket")) == (1, [])
    fault = gcs.fail("reset", on="insert", times=2)
    bucket.blob("a").upload_from_string(b"content", retry=QUICK)
    assert (fault.fired, gcs.content("bucket", "a")) == (2, b"content")


def test_a_request_with_a_lost_answer_takes_effect(gcs: FakeGcs, bucket: storage.Bucket):
    fault = gcs.fail("lost", on="insert")
    with pytest.raises(exceptions.PreconditionFailed):  # raised by the retry of the client
        bucket.blob("a").upload_from_string(b"content", if_generation_match=0, retry=QUICK)
    assert (fault.fired, gcs.requests["insert"], gcs.content("bucket", "a")) == (1, 2, b"content")


def test_a_lost_answer_to_a_chunk_does_not_fail_the_upload(gcs: FakeGcs, bucket: storage.Bucket):
    fault = gcs.fail("lost", on="resumable-chunk", times=3)
    content = Random(0).randbytes(2 * CHUNK + 5)
    bucket.blob("a", chunk_size=CHUNK).upload_from_file(io.BytesIO(content), if_generation_match=0, retry=QUICK)
    assert (fault.fired, gcs.requests["resumable-chunk"], gcs.content("bucket", "a")) == (3, 6, content)


def test_the_answer_to_a_failed_request_is_never_lost(gcs: FakeGcs, bucket: storage.Bucket):
    fault = gcs.fail("lost", times=None)
    with pytest.raises(exceptions.NotFound):
        bucket.blob("missing").reload(retry=None)
    assert fault.fired == 0


def test_a_broken_download_ends_early_and_is_retried(gcs: FakeGcs, bucket: storage.Bucket):
    content = Random(0).randbytes(3_000_000)
    gcs.put("bucket", "a", content)
    fault = gcs.fail("broken", on="download")
    assert bucket.blob("a").download_as_bytes(retry=QUICK) == content
    assert (fault.fired, gcs.requests["download"]) == (1, 2)
    gcs.fail("broken", on="download")
    with requests.get(f"{gcs.url}/storage/v1/b/bucket/o/a?alt=media", stream=True) as answer:
        assert answer.headers["Content-Length"] == "3000000"
        assert len(answer.raw.read(1_500_000)) == 1_500_000
        with pytest.raises(Exception, match="IncompleteRead"):
            answer.raw.read()


def test_a_damaged_download_is_found_only_by_its_checksum(gcs: FakeGcs, bucket: storage.Bucket):
    content = Random(0).randbytes(1_000_000)
    gcs.put("bucket", "a", content)
    fault = gcs.fail("corrupt", on="download", times=2)
    with pytest.raises(DataCorruption):
        bucket.blob("a").download_as_bytes()
    damaged = bucket.blob("a").download_as_bytes(checksum=None)
    assert fault.fired == 2
    assert sum((one ^ other).bit_count() for one, other in zip(content, damaged, strict=True)) == 1
    assert bucket.blob("a").download_as_bytes() == gcs.content("bucket", "a") == content


def test_a_stalled_answer_exceeds_the_timeout_of_the_client(gcs: FakeGcs, bucket: storage.Bucket):
    fault = gcs.fail("stall", on="insert")
    with pytest.raises(requests.ReadTimeout):
        bucket.blob("a").upload_from_string(b"content", timeout=(60, 0.1), retry=None)
    until(lambda: fault.fired)  # The server of a busy machine may receive the request later.
    assert (fault.fired, gcs.content("bucket", "a")) == (1, b"content")
    gcs.fail("stall", on="download", seconds=0.1)
    assert bucket.blob("a").download_as_bytes() == b"content"


def test_a_stalled_answer_arrives_after_the_release(gcs: FakeGcs, bucket: storage.Bucket):
    gcs.put("bucket", "a", b"content")
    fault = gcs.fail("stall", on="download")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(bucket.blob("a").download_as_bytes)
        until(lambda: fault.fired)
        assert not waiting.done()
        fault.release()
        assert waiting.result() == b"content"


def test_an_unsupported_request_fails_at_once(gcs: FakeGcs, client: storage.Client):
    with pytest.raises(exceptions.MethodNotImplemented, match="does not know GET /storage/v1/b:"):
        list(client.list_buckets(project="test"))


def test_an_internal_error_of_the_fake_server_fails_the_test():
    with pytest.raises(ExceptionGroup) as raised, FakeGcs() as server:  # noqa: PT012
        server.create_bucket("bucket")
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{server.url}/storage/v1/b/bucket/o?maxResults=many")
    assert raised.group_contains(ValueError)


def test_the_fake_server_runs_as_a_command(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jpg").write_bytes(b"content")
    command = [sys.executable, "-m", "tests.fake_gcs", "--folder", str(tmp_path), "--bucket", "work"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        url = server.stdout.readline().strip()
        assert requests.get(f"{url}/storage/v1/b/raw/o/a.jpg?alt=media").content == b"content"
        assert "items" not in requests.get(f"{url}/storage/v1/b/work/o").json()
        server.terminate()
        assert server.wait() == 0
