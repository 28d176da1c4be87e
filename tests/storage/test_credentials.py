"""Faults of token servers, and tokens that a bucket refuses. A transient fault is not a missing permission."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from google.auth import compute_engine
from google.auth._exponential_backoff import ExponentialBackoff
from google.auth.compute_engine import _metadata
from google.oauth2.credentials import Credentials

from pipeline import storage
from pipeline.errors import AccessError, StorageError
from pipeline.storage import BucketPath
from pipeline.storage import gcs as requests_of
from standins.fake_gcs import FakeGcs
from tests.token_server import TokenServer

PLACE = BucketPath("bucket", "folder/file")
REFRESHES = 3  # Per request, because google-auth itself retries twice.


@pytest.fixture
def tokens(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    """A token server that the client's credentials use."""
    server = TokenServer()
    credentials = Credentials(
        None, refresh_token="r", token_uri=f"http://{server.address}", client_id="c", client_secret="s"
    )
    monkeypatch.setattr(requests_of, "_credentials", lambda: credentials)
    monkeypatch.setattr(requests_of, "FIRST_WAIT_S", 0.01)
    quick = partial(ExponentialBackoff, initial_wait_seconds=0.01)  # between google-auth's own tries
    monkeypatch.setattr(_metadata, "ExponentialBackoff", quick)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()
    requests_of._client.cache_clear()


@pytest.mark.long
def test_a_transient_token_server_failure_is_retried_and_logged(
    gcs: FakeGcs, tokens: TokenServer, caplog: pytest.LogCaptureFixture
):
    gcs.put("bucket", PLACE.key, b"content")
    tokens.failing = REFRESHES
    assert PLACE.read_bytes() == b"content"
    assert tokens.requests == REFRESHES + 1
    assert "trying again after RefreshError" in caplog.text


def test_a_transient_metadata_server_failure_is_retried_and_logged(
    gcs: FakeGcs, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    gcs.put("bucket", PLACE.key, b"content")
    credentials = compute_engine.Credentials()
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", tokens.address)
    monkeypatch.setattr(requests_of, "_credentials", lambda: credentials)
    assert PLACE.read_bytes() == b"content"
    credentials.token = None  # as if it had expired
    requests = tokens.requests
    tokens.failing = requests + 5  # more than google-auth's own tries
    assert PLACE.read_bytes() == b"content"
    assert "gs://bucket/folder/file: trying again after" in caplog.text


def test_a_metadata_server_outage_at_startup_is_reported(
    gcs: FakeGcs, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", tokens.address)
    monkeypatch.setattr(requests_of, "_credentials", compute_engine.Credentials)
    tokens.failing = 99
    with pytest.raises(StorageError, match=r"gs://: .* cannot get an access token \(TransportError: .*run again"):
        PLACE.require_bucket()


@pytest.mark.parametrize("request_", [PLACE.require_bucket, PLACE.read_bytes])
def test_a_refused_login_is_not_retried(gcs: FakeGcs, tokens: TokenServer, request_: Callable[[], object]):
    tokens.failing, tokens.status, tokens.error = 99, 400, "invalid_grant"
    with pytest.raises(AccessError, match=r"cannot log in \(RefreshError: .*invalid_grant"):
        request_()
    assert tokens.requests == 1


def test_a_temporarily_refused_token_is_fetched_again(gcs: FakeGcs, tokens: TokenServer):
    gcs.put("bucket", PLACE.key, b"content")
    refused = gcs.fail("status", on="download", code=401, times=5)  # Each try itself fetches a fresh token twice.
    assert PLACE.read_bytes() == b"content"
    assert refused.fired == 5
    assert tokens.requests > 2


def test_a_token_refused_until_the_deadline_raises_a_storage_error(
    gcs: FakeGcs, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(requests_of, "DEADLINE_S", 0.3)
    gcs.fail("status", code=401, times=None)
    with pytest.raises(StorageError, match=r"did not answer within .* \(Unauthorized 401\): run again"):
        list(storage.objects(PLACE.parent))


def test_a_refused_token_at_startup_raises_an_access_error(gcs: FakeGcs, tokens: TokenServer):
    gcs.fail("status", code=401, times=None)
    with pytest.raises(AccessError, match=r"is not allowed to do this with .* \(401\)"):
        PLACE.require_bucket()


@pytest.mark.parametrize(
    "fault", [{"kind": "status", "code": 503}, {"kind": "status", "code": 429}, {"kind": "reset"}], ids=str
)
@pytest.mark.parametrize("request_", [PLACE.require_bucket, PLACE.require_writable])
def test_the_first_requests_are_retried(gcs: FakeGcs, tokens: TokenServer, fault: dict, request_: Callable[[], None]):
    armed = gcs.fail(**fault, on="list|insert", times=2)
    request_()
    assert armed.fired == 2


def test_the_first_requests_fail_soon_and_report_the_status(
    gcs: FakeGcs, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(requests_of, "FIRST_TRIES_S", 0.3)
    gcs.fail("status", on="list", code=503, times=None)
    with pytest.raises(StorageError, match=r"gs://bucket/folder/file: the bucket answered 503 .*: run again"):
        PLACE.require_bucket()
