"""A server that sends a byte now and then keeps no request waiting for ever."""

import socket
import threading
import time
from collections.abc import Callable

import pytest
from urllib3.connection import HTTPConnection

from pipeline import storage
from pipeline.errors import StorageError
from pipeline.storage import BucketPath, deadlines
from pipeline.storage import gcs as requests_of
from pipeline.storage.deadlines import RequestWatch, TooSlow
from tests.fake_gcs import FakeGcs
from tests.waiting import until

PLACE = BucketPath("bucket", "folder/file")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "TICK_S", 0.02)


def write() -> None:
    with storage.write_new(PLACE.with_name("new")) as file:
        file.write(b"content")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_of, "MAX_REQUEST_S", 0.5)
    monkeypatch.setattr(requests_of, "FIRST_WAIT_S", 0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("download", PLACE.read_bytes),
        ("download", PLACE.open),
        ("get", PLACE.stat),
        ("list", lambda: list(storage.objects(PLACE.parent))),
        ("list", lambda: list(PLACE.parent.iterdir())),
        ("list", lambda: list(storage.folders(PLACE.parent))),
        ("insert", write),
        ("rewrite", lambda: storage.copy_new(PLACE, PLACE.with_name("copy"))),
        ("delete", PLACE.unlink),
    ],
)
def test_an_answer_that_comes_byte_by_byte_is_given_up(gcs: FakeGcs, operation: str, request_: Callable[[], object]):
    gcs.put("bucket", PLACE.key, bytes(1000))
    dripping = gcs.fail("drip", on=operation, times=None, seconds=0.05)  # sooner than any timeout
    begun = time.monotonic()
    with pytest.raises(StorageError, match=r"gs://bucket/folder.* too slow \(.* 0\.5 s\): check the network"):
        request_()
    assert time.monotonic() - begun < 5
    assert dripping.fired == 1  # and not sent again


@pytest.mark.usefixtures("impatient")
def test_what_is_large_has_longer(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    """Else a slow line could never fetch a large shard."""
    monkeypatch.setattr(requests_of, "SLOWEST_BYTES_PER_S", 10)
    gcs.put("bucket", PLACE.key, bytes(50))
    gcs.fail("drip", on="download", times=1, seconds=0.005)
    gcs.fail("stall", on="download", times=1, seconds=0.6)
    with PLACE.open() as file:
        assert file.read() == bytes(50)


@pytest.mark.usefixtures("impatient")
def test_a_listing_that_is_used_slowly_is_not_given_up(gcs: FakeGcs):
    for name in "abc":
        gcs.put("bucket", f"folder/{name}", b"")
    found = []
    for each in storage.objects(PLACE.parent):
        time.sleep(0.25)  # longer than a page may take, all together
        found.append(each.key)
    assert found == ["a", "b", "c"]


def test_other_requests_of_the_same_client_go_on(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requests_of, "MAX_REQUEST_S", 0.5)
    gcs.put("bucket", PLACE.key, bytes(1000))
    gcs.put("bucket", "folder/other", b"other")
    gcs.fail("drip", on="download", matches="file", times=None, seconds=0.05)
    failed: list[Exception] = []

    def read() -> None:
        try:
            PLACE.read_bytes()
        except StorageError as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert BucketPath("bucket", "folder/other").read_bytes() == b"other"
    assert len(failed) == 4


def test_an_error_of_before_the_deadline_stays_what_it_is():
    with pytest.raises(ConnectionError), RequestWatch().within(5):
        raise ConnectionError
    with pytest.raises(TooSlow, match=r"no answer within 0\.1 s"), RequestWatch().within(0.1):
        fail_after(0.3)


def fail_after(seconds: float) -> None:
    time.sleep(seconds)
    raise ConnectionError


def test_work_without_an_error_is_done_even_if_late():
    watch = RequestWatch()
    with watch.within(0.05):
        time.sleep(0.2)
        assert watch.is_over()


def test_the_thread_ends_when_nothing_is_under_way_and_begins_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deadlines, "IDLE_S", 0.05)
    watch, others = RequestWatch(), set(threading.enumerate())

    def is_watched() -> bool:
        return any(thread.name == "deadlines" for thread in set(threading.enumerate()) - others)

    for _ in range(2):
        with watch.within(60):
            assert is_watched()
        until(lambda: not is_watched())
    with pytest.raises(TooSlow), watch.within(0.05):
        fail_after(0.2)


def plain_connection() -> tuple[HTTPConnection, socket.socket]:
    """A connection of a client, and the socket of its server."""
    connection, (near, far) = HTTPConnection("localhost"), socket.socketpair()
    connection.sock = near
    far.settimeout(0.2)
    return connection, far


def is_hung_up(far: socket.socket) -> bool:
    try:
        return far.recv(1) == b""
    except TimeoutError:
        return False


def test_a_connection_that_another_thread_uses_since_then_stays_open():
    watch, (connection, far) = RequestWatch(), plain_connection()
    with watch.within(0.05):
        watch.set_connection(connection)
        other = threading.Thread(target=watch.set_connection, args=(connection,))
        other.start()
        other.join()
        until(watch.is_over)
        assert not is_hung_up(far)
    connection.close()
    far.close()


def test_a_second_request_of_what_is_late_is_ended_as_well():
    watch, first, second = RequestWatch(), plain_connection(), plain_connection()
    with watch.within(0.05):
        for connection, far in (first, second):
            watch.set_connection(connection)
            until(lambda far=far: is_hung_up(far))
    for connection, far in (first, second):
        connection.close()
        far.close()


@pytest.mark.parametrize("odd", [None, 3], ids=["socket in an object", "no socket at all"])
def test_connections_through_a_proxy_are_ended_and_no_error_ends_the_watch(odd: int | None):
    class InTls:
        """As the SSLTransport of urllib3: it holds a socket, and is none."""

        def __init__(self, inner: object) -> None:
            self.socket = inner

    watch, wrapped, plain = RequestWatch(), plain_connection(), plain_connection()
    inner = wrapped[0].sock
    wrapped[0].sock = InTls(odd or inner)
    for connection, far in (wrapped, plain):
        with watch.within(0.05):
            watch.set_connection(connection)
            until(watch.is_over)
            assert is_hung_up(far) == (connection is plain[0] or odd is None)
    for each in (inner, plain[0].sock, wrapped[1], plain[1]):
        each.close()
