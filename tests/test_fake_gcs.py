"""The fake Cloud Storage, driven by the real client: what the tests in tests/storage rely on but do not prove."""

import io
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from standins.fake_gcs import FakeGcs
from standins.fake_gcs.faults import Kind
from tests.waiting import until

with warnings.catch_warnings():
    # At its first import, the client tries to import grpcio-status, which only gRPC needs.
    warnings.simplefilter("ignore", ImportWarning)
    import requests
    from google.api_core import exceptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

CHUNK = 256 * 1024
NAMES = ["grüße/菊.jpg", "a#b?c%20d%2F.jpg", "two\nlines\r", "a//b/", " space + plus&=", "x" * 900, "//", "%", "a/../b"]


@pytest.fixture
def bucket(gcs: FakeGcs) -> Iterator[storage.Bucket]:
    with storage.Client(credentials=AnonymousCredentials(), project="test") as client:
        yield client.bucket("bucket")


def test_an_object_can_have_any_name_and_a_listing_has_the_order_of_utf8_bytes(gcs: FakeGcs, bucket: storage.Bucket):
    names = sorted([*NAMES, "\U0001f600", "\uff5e"], key=str.encode)
    for name in reversed(names):
        bucket.blob(name).upload_from_string(name)
    assert [blob.name for blob in bucket.list_blobs(page_size=3)] == gcs.names("bucket") == names
    for name in names:
        assert bucket.get_blob(name).download_as_bytes() == gcs.content("bucket", name) == name.encode()
        bucket.blob(name).delete()
    assert gcs.names("bucket") == []


@pytest.mark.parametrize("page_size", [1, 2, 100])
def test_a_delimiter_groups_deeper_objects_into_prefixes(gcs: FakeGcs, bucket: storage.Bucket, page_size: int):
    for name in ["x/a", "x/b/1", "x/b/2", "x/b/3", "x/c", "x/d//1", "x/d/2", "y/a"]:
        gcs.put("bucket", name, b"")
    listing = bucket.list_blobs(prefix="x/", delimiter="/", page_size=page_size)
    assert [blob.name for blob in listing] == ["x/a", "x/c"]
    assert listing.prefixes == {"x/b/", "x/d/"}
    assert gcs.requests["list"] == -(-4 // page_size)


def test_an_object_has_the_metadata_of_its_upload_and_a_copy_has_its_type(gcs: FakeGcs, bucket: storage.Bucket):
    blob, copy = bucket.blob("a/b.txt"), bucket.blob("copy")
    blob.metadata = {"made": "by hand"}
    blob.upload_from_string("hello", content_type="text/plain")
    read = bucket.get_blob("a/b.txt")
    assert (read.size, read.content_type, read.metadata) == (5, "text/plain", {"made": "by hand"})
    assert (read.crc32c, read.md5_hash) == ("mnG7TA==", "XUFAKrxLKna5cZ2REBfFkg==")
    sent = requests.get(f"{gcs.url}/download/storage/v1/b/bucket/o/a%2Fb.txt?alt=media").headers
    assert (sent["x-goog-hash"], sent["ETag"]) == (f"crc32c={read.crc32c}, md5={read.md5_hash}", read.etag)
    assert int(sent["x-goog-generation"]) == read.generation == gcs.generation("bucket", "a/b.txt")
    assert (copy.rewrite(read), copy.content_type, copy.crc32c) == ((None, 5, 5), "text/plain", read.crc32c)


def test_requests_with_failing_preconditions_are_refused(gcs: FakeGcs, bucket: storage.Bucket):
    old, live = (gcs.put("bucket", "a", content) for content in (b"old", b"content"))
    blob, upload = bucket.blob("a"), partial(bucket.blob("a").upload_from_string, b"other")
    failing: list[tuple[Callable[..., object], dict[str, int]]] = [
        (upload, {"if_generation_not_match": live}),
        (upload, {"if_metageneration_match": 7}),
        (blob.create_resumable_upload_session, {"if_generation_match": 0}),  # refused before a byte is sent
        (blob.reload, {"if_generation_match": old}),
        (blob.download_as_bytes, {"if_generation_match": old}),
        (partial(bucket.blob("b").rewrite, blob), {"if_source_generation_match": old}),
    ]
    for request, conditions in failing:
        with pytest.raises(exceptions.PreconditionFailed, match="pre-conditions you specified did not hold"):
            request(**conditions)
    with pytest.raises(exceptions.NotModified):
        blob.reload(if_generation_not_match=live)
    assert (gcs.names("bucket"), gcs.content("bucket", "a"), gcs.generation("bucket", "a")) == (["a"], b"content", live)


@pytest.mark.parametrize("size", [0, 1, 2 * CHUNK, 3 * CHUNK + 1])
def test_a_resumable_upload_of_unknown_size_stores_all_chunks(gcs: FakeGcs, bucket: storage.Bucket, size: int):
    content = Random(size).randbytes(size)
    bucket.blob("a", chunk_size=CHUNK).upload_from_file(io.BytesIO(content), checksum="md5")
    assert gcs.content("bucket", "a") == content


def test_an_upload_session_reports_its_progress(gcs: FakeGcs, bucket: storage.Bucket):
    place = bucket.blob("a").create_resumable_upload_session()

    def send(content_range: str, content: bytes = b"", to: str = place) -> requests.Response:
        return requests.put(to, content, headers={"Content-Range": f"bytes {content_range}"})

    first, rest = f"0-{CHUNK - 1}/{CHUNK + 1}", f"{CHUNK}-{CHUNK}/{CHUNK + 1}"
    assert (send("*/*").status_code, send("*/*").headers.get("Range")) == (308, None)
    assert send(rest, b"y").status_code == 503  # the first chunk is missing
    for _ in range(2):  # a repeated chunk is stored once
        assert send(first, b"x" * CHUNK).headers["Range"] == f"bytes=0-{CHUNK - 1}"
    assert send("*/*").headers["Range"] == f"bytes=0-{CHUNK - 1}"
    assert gcs.names("bucket") == []
    assert send(rest, b"y").status_code == 200
    assert gcs.content("bucket", "a") == b"x" * CHUNK + b"y"
    assert int(send("*/*").json()["generation"]) == gcs.generation("bucket", "a")
    assert send("*/*", to=place.partition("upload_id=")[0] + "upload_id=unknown").status_code == 404


@pytest.mark.parametrize("size", [5, None], ids=["multipart", "resumable"])
def test_an_upload_with_a_wrong_checksum_is_refused(gcs: FakeGcs, bucket: storage.Bucket, size: int | None):
    for key, wrong in (("crc32c", "AAAAAA=="), ("md5_hash", "1B2M2Y8AsgTpgAmY7PhCfg==")):
        blob = bucket.blob("a")
        setattr(blob, key, wrong)
        with pytest.raises(exceptions.BadRequest, match="doesn't match calculated"):
            blob.upload_from_file(io.BytesIO(b"hello"), size=size, checksum=None)
    place = bucket.blob("a").create_resumable_upload_session(checksum=None)
    assert requests.put(place, b"hello", headers={"x-goog-hash": "crc32c=AAAAAA=="}).status_code == 400
    assert gcs.names("bucket") == []


def test_a_download_can_be_limited_to_a_byte_range(gcs: FakeGcs, bucket: storage.Bucket, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"0123456789")
    gcs.put_folder("bucket", "on disk/", tmp_path)
    gcs.put("bucket", "in memory", b"0123456789")
    for blob in map(bucket.blob, ("on disk/file", "in memory")):
        for start, end, content in ((2, 4, b"234"), (7, None, b"789"), (-3, None, b"789"), (8, 99, b"89")):
            assert blob.download_as_bytes(start=start, end=end) == content
        with pytest.raises(exceptions.RequestRangeNotSatisfiable):
            blob.download_as_bytes(start=10)


@pytest.mark.parametrize("kind", ["pause", "stall", "lost", "drip", "broken", "short"])
def test_a_fault_precedes_or_follows_the_effect_of_an_upload(gcs: FakeGcs, bucket: storage.Bucket, kind: Kind):
    fault = gcs.fail(kind, on="insert")
    with pytest.raises((requests.RequestException, exceptions.GoogleAPIError)):
        bucket.blob("a").upload_from_string(b"content", timeout=0.3, retry=None)
    until(lambda: fault.fired)
    if kind != "pause":
        until(lambda: gcs.names("bucket"))
    assert (fault.fired, gcs.names("bucket")) == (1, [] if kind == "pause" else ["a"])


@pytest.mark.parametrize(("kind", "flipped_bits"), [("short", 0), ("damaged", 1)])
def test_a_fault_sends_half_of_a_download_as_a_whole_answer(gcs: FakeGcs, kind: Kind, flipped_bits: int):
    content = Random(0).randbytes(1000)
    gcs.put("bucket", "a", content)
    gcs.fail(kind, on="download")
    half = requests.get(f"{gcs.url}/storage/v1/b/bucket/o/a?alt=media").content
    assert sum((one ^ other).bit_count() for one, other in zip(content[:500], half, strict=True)) == flipped_bits


def test_a_fault_affects_only_matching_objects_until_its_release(gcs: FakeGcs, bucket: storage.Bucket):
    fault = gcs.fail("status", on="insert", matches=r"\.bad$", code=403, times=None)
    bucket.blob("a.good").upload_from_string(b"")
    with pytest.raises(exceptions.Forbidden):
        bucket.blob("a.bad").upload_from_string(b"")
    fault.release()
    bucket.blob("a.bad").upload_from_string(b"")
    assert (fault.fired, gcs.names("bucket")) == (1, ["a.bad", "a.good"])


def test_the_answer_to_a_failed_request_is_never_lost(gcs: FakeGcs, bucket: storage.Bucket):
    fault = gcs.fail("lost", times=None)
    with pytest.raises(exceptions.NotFound):
        bucket.blob("missing").reload(retry=None)
    assert fault.fired == 0


def test_latency_delays_each_answer(gcs: FakeGcs):
    gcs.latency_s = 0.1
    assert requests.get(f"{gcs.url}/storage/v1/b/bucket/o").elapsed.total_seconds() >= 0.1


def test_an_unsupported_request_fails_at_once(bucket: storage.Bucket):
    with pytest.raises(exceptions.MethodNotImplemented, match="does not know GET /storage/v1/b:"):
        list(bucket.client.list_buckets())


def test_an_internal_error_of_the_fake_server_fails_the_test():
    with pytest.raises(ExceptionGroup) as raised, FakeGcs() as server:  # noqa: PT012
        server.create_bucket("bucket")
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{server.url}/storage/v1/b/bucket/o?maxResults=many")
    assert raised.group_contains(ValueError)


def test_the_fake_server_runs_as_a_command(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jpg").write_bytes(b"content")
    requested = tmp_path / "requests.json"
    command = [sys.executable, "-m", "standins.fake_gcs", "--folder", str(tmp_path), "--bucket", "work"]
    command += ["--requests", str(requested)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        url = server.stdout.readline().strip()
        assert requests.get(f"{url}/storage/v1/b/raw/o/a.jpg?alt=media").content == b"content"
        assert "items" not in requests.get(f"{url}/storage/v1/b/work/o").json()
        server.terminate()
        assert server.wait() == 0
    assert json.loads(requested.read_text()) == {"download": 1, "list": 1}
