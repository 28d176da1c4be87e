"""Servers that meet in a folder. Each server is a thread instead of a process, with its own nonce."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.errors import AccessError, DatasetError, Preempted, StorageError, TenfoldError, TrainingError
from pipeline.rendezvous import Cluster, join_cluster, meeting, presence
from pipeline.rendezvous.servers import Server
from pipeline.storage import BucketPath
from standins.fake_gcs import FakeGcs
from tests.waiting import until


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(meeting, "LEAVE_S", 0.1)


PATIENCE_S = 600.0


class Process:
    """A training server that runs until `end` or `stop` is called."""

    def __init__(self, folder: Path, server: Server, wait_s: float = PATIENCE_S) -> None:
        self.cluster: Cluster | None = None
        self.left: list[TenfoldError] = []
        self._stop, self._error, self._end = threading.Event(), None, threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.future: Future[None] = self._pool.submit(self._be, folder, server, wait_s)

    def _be(self, folder: Path, server: Server, wait_s: float) -> None:
        with join_cluster(folder, server, wait_s, self._stop.is_set, self.left.append) as cluster:
            self.cluster = cluster
            self._end.wait()
            if self._error:
                raise self._error

    def stop(self) -> None:
        self._stop.set()

    def end(self, error: Exception | None = None) -> None:
        self._error = error
        self._end.set()
        self._pool.shutdown(wait=True)

    def came_together(self) -> bool:
        return self.cluster is not None


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def process(index: int, count: int, wait_s: float = PATIENCE_S) -> Process:
        started.append(Process(tmp_path, Server(index, count), wait_s))
        return started[-1]

    yield process
    for each in started:
        each.stop()
        each.end()


def cluster_of(start: Start, count: int) -> list[Process]:
    """Start servers, the last one first, and return them after they have met."""
    processes = [start(index, count) for index in reversed(range(count))][::-1]
    until(lambda: all(process.came_together() for process in processes))
    return processes


def test_all_servers_join_one_cluster_on_loopback(start: Start):
    processes = cluster_of(start, 3)
    addresses = {tuple(process.cluster.addresses) for process in processes}
    assert len(addresses) == 1
    [ports] = addresses
    assert len(set(ports)) == 3
    assert all(address.startswith("127.0.0.1:") for address in ports)


@pytest.mark.parametrize(("index", "other"), [(0, 2), (2, 0)])
def test_a_timeout_names_the_missing_server(start: Start, tmp_path: Path, index: int, other: int):
    patient = start(other, 3)
    until(lambda: list(tmp_path.glob("*.json")))
    hurried = start(index, 3, wait_s=3.0)
    message = r"after 3 s, 2 of 3 training servers are present, but server 1 is missing: each .*num_training_servers"
    with pytest.raises(TrainingError, match=message):
        hurried.future.result()
    assert not patient.future.done()


def test_a_wait_can_be_stopped(start: Start):
    alone = start(0, 2)
    alone.stop()
    with pytest.raises(Preempted):
        alone.future.result()


def test_files_of_an_earlier_attempt_are_ignored_and_removed(start: Start, tmp_path: Path):
    before = cluster_of(start, 2)
    for process in before:
        process.end()
    alone = start(0, 2, wait_s=1.0)
    with pytest.raises(TrainingError, match="but server 1 is missing"):
        alone.future.result()
    cluster_of(start, 2)
    until(lambda: len(list(tmp_path.glob("*.members.json"))) == 1)  # the old files are removed


def test_an_error_of_one_server_reaches_the_others_with_its_type(start: Start):
    first, second = cluster_of(start, 2)
    second.end(DatasetError("shard 3 is damaged"))
    error = first.cluster.loss(within_s=PATIENCE_S)
    assert isinstance(error, DatasetError)
    assert "server 1 of 2 on " in str(error)
    assert str(error).endswith("ended: shard 3 is damaged")
    until(lambda: first.left)  # a server that does not end itself is stopped
    assert first.left[0] is error


def test_a_silent_server_counts_as_dead(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    first, second = cluster_of(start, 2)
    own = second.cluster._presence.nonce
    count = presence.Presence.count
    monkeypatch.setattr(presence, "SILENT_S", 1.0)
    monkeypatch.setattr(presence.Presence, "count", lambda each: None if each.nonce == own else count(each))
    assert "server 1 of 2" in str(first.cluster.loss(within_s=PATIENCE_S))
    assert "has given no sign of life" in str(first.cluster.loss())


@pytest.mark.parametrize("can_look", [False, True])
def test_an_outage_of_the_storage_is_no_silence_of_a_server(tmp_path: Path, can_look: bool):
    """For ten minutes, no server can count. `can_look` is whether they can read the files meanwhile."""
    now = 0.0
    own, other = (presence.Presence(tmp_path, presence._member(Server(index, 2))) for index in range(2))
    lookout = presence.Lookout(tmp_path, own.nonce, lambda: now)
    for each in (own, other):
        each.count()
    lookout.look()
    while now < 600:
        now += 5
        if can_look:
            lookout.look()
            assert not lookout.is_silent(other.nonce)
    own.count()  # The other server counts a few seconds later.
    lookout.look()
    assert not lookout.is_silent(other.nonce)
    while not lookout.is_silent(other.nonce):
        now += 5
        own.count()
        lookout.look()
    assert now - 600 == pytest.approx(presence.SILENT_S, abs=2 * presence.MAX_GAP_S)


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        presence.Lookout(tmp_path / "file", "own").look()


def test_a_restarted_server_ends_its_old_cluster(start: Start):
    first, second = cluster_of(start, 2)
    start(1, 2)
    for process in (first, second):
        assert "server 1 of 2" in str(process.cluster.loss(within_s=PATIENCE_S))
        assert "was started again" in str(process.cluster.loss())


def test_other_servers_wait_until_server_0_is_done(start: Start):
    first, second = cluster_of(start, 2)
    pool = ThreadPoolExecutor(1)
    waiting = pool.submit(second.cluster.wait_for_chief, lambda: False)
    first.end()
    waiting.result()
    assert second.cluster.loss() is None
    assert not second.left


def test_a_server_that_was_asked_to_stop_stops_the_others_at_once(start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(meeting, "LEAVE_S", PATIENCE_S)
    first, second = cluster_of(start, 2)
    second.cluster.report_end(Preempted("asked to stop"))  # as a process whose main thread is stuck
    until(lambda: first.left)
    assert isinstance(first.left[0], Preempted)


def test_no_server_connects_before_all_have_loaded(start: Start):
    first, second = cluster_of(start, 2)
    with pytest.raises(Preempted):
        first.cluster.wait_until_loaded(lambda: True)
    second.cluster.wait_until_loaded(lambda: False)
    first.cluster.wait_until_loaded(lambda: False)


def test_the_first_server_takes_the_gpus_of_all(tmp_path: Path):
    """Servers 0 and 2 see the same GPUs. Server 1 sees others, and takes its own after them."""
    seen, asked = [["a", "b"], ["x"], ["a", "b"]], []

    def gpus_of(index: int) -> list[str]:
        def take(servers: int) -> list[str]:
            asked.append((index, servers))
            return seen[index]

        server = Server(index, 3)
        with join_cluster(tmp_path, server, PATIENCE_S, lambda: False, pytest.fail, seen[index]) as cluster:
            own = cluster.take_gpus(take, lambda: False)
            cluster.wait_until_loaded(lambda: False)  # A server that ended early would be a lost server.
            return own

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(gpus_of, range(3))) == [["a"], ["x"], ["b"]]
    assert asked == [(0, 2), (1, 1)]


def test_servers_share_their_samples(start: Start):
    first, second = cluster_of(start, 2)
    second.cluster.report_sample({"sys/cpu_pct": 50.0})
    until(lambda: first.cluster.samples[1] == {"sys/cpu_pct": 50.0})
    assert first.cluster.samples[0] == {}


def test_a_concurrent_heartbeat_does_not_undo_the_end_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The server ends during a heartbeat, which waits between its read and write until the end wants to write."""
    own, replaced = presence.Presence(tmp_path, presence._member(Server(0, 2))), presence.replace
    begun, ending = threading.Event(), threading.Event()

    class Lock:
        """A lock that notes who waits for it."""

        def __init__(self, lock: threading.Lock) -> None:
            self._lock = lock

        def __enter__(self) -> None:
            if begun.is_set():
                ending.set()
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def slowly(member: presence.Member, **changes: object) -> presence.Member:
        if "count" in changes:
            begun.set()
            ending.wait()
        return replaced(member, **changes)

    monkeypatch.setattr(own, "_lock", Lock(own._lock))
    monkeypatch.setattr(presence, "replace", slowly)
    counting = threading.Thread(target=own.count)
    counting.start()
    begun.wait()
    own.report(ended={"kind": "done", "message": ""})
    ending.set()
    counting.join()
    own.count()
    [member] = presence.Lookout(tmp_path, own.nonce).look().values()
    assert (member.is_done, member.count) == (True, 2)


def test_servers_can_meet_in_a_bucket(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(presence, "HEARTBEAT_IN_BUCKET_S", 0.1)
    processes = [Process(BucketPath("bucket", "run/cluster"), Server(index, 2)) for index in range(2)]
    until(lambda: all(process.came_together() for process in processes))
    processes[1].end(DatasetError("shard 3 is damaged"))
    assert "shard 3 is damaged" in str(processes[0].cluster.loss(within_s=PATIENCE_S))
    processes[0].end()


@pytest.mark.parametrize("error", [AccessError("403"), StorageError("503"), OSError(116, "Stale file handle")])
def test_heartbeats_continue_after_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, caplog: pytest.LogCaptureFixture
):
    with presence.present(tmp_path, Server()) as there:
        count, refused = there.count, []

        def refuses_once() -> None:
            if not refused:
                refused.append(error)
                raise error
            count()

        monkeypatch.setattr(there, "count", refuses_once)
        lookout = presence.Lookout(tmp_path, there.nonce)
        until(lambda: bool(refused))
        before = lookout.look()[there.nonce].count
        until(lambda: lookout.look()[there.nonce].count > before)
    assert "the other servers cannot see this server for now" in caplog.text
