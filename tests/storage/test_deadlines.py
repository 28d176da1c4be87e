"""A server that sends one byte at a time cannot delay a request forever."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
from urllib3.connection import HTTPConnection

from pipeline import storage
from pipeline.errors import StorageError
from pipeline.storage import BucketPath, deadlines
from pipeline.storage import gcs as requests_of
from pipeline.storage.deadlines import RequestWatch, TooSlow
from standins.fake_gcs import FakeGcs
from tests.waiting import until

PLACE = BucketPath("bucket", "folder/file")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "TICK_S", 0.02)


def write() -> None:
    with storage.write_new(PLACE.with_name("new")) as file:
        file.write(b"content")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the deadlines. It stands still, so that a slow machine cannot be too slow."""
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep)
    monkeypatch.setattr(deadlines, "time", clock)
    monkeypatch.setattr(requests_of, "MAX_REQUEST_S", 0.5)
    monkeypatch.setattr(requests_of, "FIRST_WAIT_S", 0.01)
    return clock


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
def test_a_slow_answer_fails_within_the_deadline(
    gcs: FakeGcs, clock: SimpleNamespace, operation: str, request_: Callable[[], object]
):
    gcs.put("bucket", PLACE.key, bytes(1000))
    dripping = gcs.fail("drip", on=operation, times=None, seconds=0.05)  # more often than any timeout
    clock.monotonic = lambda: 0.6 if dripping.fired else 0.0
    with pytest.raises(StorageError, match=r"gs://bucket/folder.* too slow \(.* 0\.5 s\): check the network"):
        request_()
    assert dripping.fired == 1  # The client did not retry.


def test_a_large_object_has_a_longer_deadline(gcs: FakeGcs, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    """Otherwise, a slow network could never fetch a large shard."""
    monkeypatch.setattr(requests_of, "SLOWEST_BYTES_PER_S", 10)
    gcs.put("bucket", PLACE.key, bytes(50))
    dripping = gcs.fail("drip", on="download", times=1, seconds=0.005)
    clock.monotonic = lambda: 5.4 if dripping.fired else 0.0
    with PLACE.open() as file:
        assert file.read() == bytes(50)


def test_a_slow_consumer_does_not_end_a_listing(gcs: FakeGcs):
    """While the consumer has a page, no request is under way, so no deadline can pass."""
    gcs.api.page_sizes = repeat(1)
    for name in "abc":
        gcs.put("bucket", f"folder/{name}", b"")
    found = []
    for each in storage.objects(PLACE.parent):
        found.append(each.key)
        assert not requests_of.client()._watch._under_way
    assert found == ["a", "b", "c"]


def test_a_slow_answer_does_not_stop_other_requests_of_the_client(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    gcs.put("bucket", PLACE.key, bytes(1000))
    gcs.put("bucket", "folder/other", b"other")
    gcs.fail("drip", on="download", matches="file", times=None, seconds=0.05)
    failed: list[Exception] = []

    def read() -> None:
        try:
            PLACE.read_bytes()
        except StorageError as error:
            failed.append(error)

    threads, within = [threading.Thread(target=read) for _ in range(4)], RequestWatch.within

    def hurried(watch: RequestWatch, seconds: float) -> AbstractContextManager[None]:
        """Give only these threads little time. A busy machine may take long for the other requests."""
        return within(watch, 0.5 if threading.current_thread() in threads else seconds)

    monkeypatch.setattr(RequestWatch, "within", hurried)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert BucketPath("bucket", "folder/other").read_bytes() == b"other"
    assert len(failed) == 4


def test_an_error_becomes_too_slow_only_after_the_deadline():
    watch = RequestWatch()
    with pytest.raises(ConnectionError), watch.within(3600):
        raise ConnectionError
    with pytest.raises(TooSlow, match=r"no answer within 0\.1 s"), watch.within(0.1):
        fail_late(watch)


def test_an_inner_block_ends_with_the_outer_one():
    """Each request has a block of its own. Several requests can share the deadline of a block around them."""
    watch = RequestWatch()
    # The error of the inner block: the outer block would turn any error into its own.
    with watch.within(0.1), pytest.raises(TooSlow, match=r"no answer within 0\.1 s"), watch.within(3600):
        fail_late(watch)


@pytest.mark.parametrize("fault", ["status", "stall"])
def test_requests_with_their_retries_end_with_the_deadline_of_their_work(
    gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, fault: str
):
    monkeypatch.setattr(requests_of, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(storage, "LATE_S", 60.0)  # A busy machine ends the requests late.
    outage = gcs.fail(fault, on="get", times=None)
    with pytest.raises(StorageError, match=r"gs://bucket/folder/file.* within 0\.3 s"):
        storage.within(PLACE, 0.3, PLACE.stat)
    assert outage.fired


def test_nobody_waits_for_work_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(storage, "LATE_S", 0.01)
    released = threading.Event()
    try:
        with pytest.raises(TimeoutError, match="no result within"):
            storage.within(tmp_path, 0.01, released.wait)
    finally:
        released.set()


def fail_late(watch: RequestWatch) -> None:
    until(watch.is_over)
    raise ConnectionError


def test_late_work_without_an_error_succeeds():
    watch = RequestWatch()
    with watch.within(0.05):
        until(watch.is_over)


def test_the_watch_thread_ends_when_idle_and_starts_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deadlines, "IDLE_S", 0.05)
    watch, others = RequestWatch(), set(threading.enumerate())

    def is_watched() -> bool:
        return any(thread.name == "deadlines" for thread in set(threading.enumerate()) - others)

    for _ in range(2):
        with watch.within(60):
            assert is_watched()
        until(lambda: not is_watched())
    with pytest.raises(TooSlow), watch.within(0.05):
        fail_late(watch)


def plain_connection() -> tuple[HTTPConnection, socket.socket]:
    """Return the connection of a client and the socket of its server."""
    connection, (near, far) = HTTPConnection("localhost"), socket.socketpair()
    connection.sock = near
    far.settimeout(0.2)
    return connection, far


def is_hung_up(far: socket.socket) -> bool:
    try:
        return far.recv(1) == b""
    except TimeoutError:
        return False


def test_a_connection_taken_over_by_another_thread_stays_open():
    watch, (connection, far) = RequestWatch(), plain_connection()
    with watch.within(0.05):
        with watch._changed:  # The watch ends no request between the two, however slow this machine is.
            watch.set_connection(connection)
            other = threading.Thread(target=watch.set_connection, args=(connection,))
            other.start()
            other.join()
        until(watch.is_over)
        assert not is_hung_up(far)
    connection.close()
    far.close()


def test_a_second_request_after_the_deadline_is_ended_too():
    watch, first, second = RequestWatch(), plain_connection(), plain_connection()
    with watch.within(0.05):
        for connection, far in (first, second):
            watch.set_connection(connection)
            until(lambda far=far: is_hung_up(far))
    for connection, far in (first, second):
        connection.close()
        far.close()


@pytest.mark.parametrize("odd", [None, 3], ids=["socket in an object", "no socket at all"])
def test_proxy_connections_are_ended_and_errors_do_not_stop_the_watch(odd: int | None):
    class InTls:
        """A stand-in for urllib3's SSLTransport, which holds a socket but is not one."""

        def __init__(self, inner: object) -> None:
            self.socket = inner

    watch, wrapped, plain = RequestWatch(), plain_connection(), plain_connection()
    inner = wrapped[0].sock
    wrapped[0].sock = InTls(odd or inner)
    for connection, far in (wrapped, plain):
        with watch.within(0.05):
            watch.set_connection(connection)
            until(watch.is_over)
            if connection is plain[0] or odd is None:
                until(lambda far=far: is_hung_up(far))
            else:
                assert not is_hung_up(far)
    for each in (inner, plain[0].sock, wrapped[1], plain[1]):
        each.close()
