"""The undocumented parts of Google's libraries that this project uses, and the variables that switch them, still work.

They are as in google-cloud-storage 3.17.1, google-auth 2.62.2 and google-api-core 2.44.0.
"""

import http.client
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from google.api_core import exceptions
from google.api_core.retry import Retry, retry_base, retry_unary
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import TransportError
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Client
from google.cloud.storage.exceptions import InvalidResponse

from pipeline.storage.gcs_internals import client_of, emulator_url, is_transient
from standins.fake_gcs import FakeGcs, Fault

OTHER_SERVER = "http://127.0.0.1:4443"


def new_client(session: requests.Session | None = None) -> Client:
    credentials = AnonymousCredentials()
    return client_of(session or AuthorizedSession(credentials), credentials)


# --- the client -------------------------------------------------------------------------------------------------------


def test_the_client_sends_its_requests_over_the_session(gcs: FakeGcs):
    class Counting(AuthorizedSession):
        addresses: tuple[str, ...] = ()

        def request(self, method: str, url: str, *arguments: object, **options: object) -> requests.Response:
            self.addresses += (url,)
            return super().request(method, url, *arguments, **options)

    gcs.put("bucket", "file", b"content")
    session = Counting(AnonymousCredentials())
    client = new_client(session)
    blob = client.bucket("bucket").blob("file")
    blob.reload()
    assert blob.download_as_bytes(raw_download=True) == b"content"
    assert len(session.addresses) == sum(gcs.requests.values()) == 2
    assert all(address.startswith(gcs.url) for address in session.addresses)
    session.close()


def test_a_new_client_uses_the_emulator_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", OTHER_SERVER)
    assert emulator_url() == new_client().api_endpoint == OTHER_SERVER
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    assert emulator_url() == ""
    assert new_client().api_endpoint == "https://storage.googleapis.com"


def requests_for_the_bucket(gcs: FakeGcs, client: Client) -> int:
    """Read an object. Return how often the client requested its bucket, once all of its threads have ended."""
    gcs.put("bucket", "file", b"content")
    before = set(threading.enumerate())
    client.bucket("bucket").blob("file").download_as_bytes()
    for thread in set(threading.enumerate()) - before:
        if "process_request" not in thread.name:  # a connection of the fake server
            thread.join()
    return gcs.requests["bucket-get"]


def test_a_client_does_not_request_the_bucket_of_an_object(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA")
    client = new_client()
    assert requests_for_the_bucket(gcs, client) == 0
    monkeypatch.delenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA")
    assert requests_for_the_bucket(gcs, client) == 1, "the client needs no variable any more: remove it"


# --- credentials ------------------------------------------------------------------------------------------------------

PROBE = """
import pipeline.storage.gcs
from google.auth.exceptions import DefaultCredentialsError
from pipeline.storage.gcs_internals import default_credentials

try:
    default_credentials()
except DefaultCredentialsError:
    print("none")
"""


def test_the_metadata_server_is_tried_once(tmp_path: Path):
    """This runs in its own process, because google-auth reads the number of attempts when it is imported."""
    tries: list[object] = []

    class HangUp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            tries.append(self.client_address)

    with socketserver.TCPServer(("127.0.0.1", 0), HangUp) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        host = f"127.0.0.1:{server.server_address[1]}"
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "GCE_METADATA_HOST": host,
            "GCE_METADATA_IP": host,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, timeout=300, check=False
            )
        finally:
            server.shutdown()
            thread.join()
    assert (done.stdout, done.returncode) == ("none\n", 0), done.stderr
    assert len(tries) == 1


# --- retries ----------------------------------------------------------------------------------------------------------


def pass_deadline_after(fault: Fault, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of retries until a fault has met `count` requests. Then the deadline has passed."""
    clock = SimpleNamespace(monotonic=lambda: 1e6 if fault.fired >= count else 0.0, sleep=time.sleep)
    for module in (retry_base, retry_unary):
        monkeypatch.setattr(module, "time", clock)


def test_retries_end_by_their_own_clock(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    armed = gcs.fail("status", code=503, times=None)
    pass_deadline_after(armed, 2, monkeypatch)
    blob = new_client().bucket("bucket").blob("file")
    with pytest.raises(exceptions.RetryError):
        blob.reload(retry=Retry(is_transient, initial=0.01, timeout=100))
    assert armed.fired == 2


def invalid_response(status: int) -> InvalidResponse:
    response = requests.Response()
    response.status_code = status
    return InvalidResponse(response)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (exceptions.TooManyRequests("429"), True),
        (exceptions.InternalServerError("500"), True),
        (exceptions.ServiceUnavailable("503"), True),
        (invalid_response(503), True),
        (invalid_response(408), True),
        (requests.ConnectionError(), True),
        (requests.exceptions.ChunkedEncodingError(), True),
        (requests.ReadTimeout(), True),
        (ConnectionResetError(), True),
        (http.client.IncompleteRead(b""), True),
        (TransportError(requests.ConnectionError()), True),
        (exceptions.Unauthorized("401"), False),
        (exceptions.Forbidden("403"), False),
        (exceptions.NotFound("404"), False),
        (exceptions.PreconditionFailed("412"), False),
        (invalid_response(412), False),
        (TransportError(ValueError()), False),
        (ValueError(), False),
        (KeyboardInterrupt(), False),
        # Not in the client's own list, so `pipeline.storage.gcs` adds it.
        (requests.JSONDecodeError("", "", 0), False),
    ],
    ids=lambda value: f"{type(value).__name__} {value}" if isinstance(value, BaseException) else "",
)
def test_is_transient_matches_the_errors_that_the_client_retries(error: BaseException, expected: bool):
    assert is_transient(error) is expected
