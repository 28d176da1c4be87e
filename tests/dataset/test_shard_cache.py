"""The shard cache of a bucket: damaged and missing shards, full disks, and concurrent readers."""

import contextlib
import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.dataset import shard_cache
from pipeline.dataset.shard_cache import RemoteShard, ShardCache
from pipeline.dataset.shard_reader import ShardReader
from pipeline.errors import DatasetError, Preempted, StorageError
from pipeline.storage import BucketPath, objects
from standins.fake_gcs import FakeGcs
from tests.waiting import until

SIZE = 1000
ROOM = 10**9
FOLDER = BucketPath("bucket", "data/v1")


def content(number: int) -> bytes:
    return bytes([number]) * SIZE


def shards_of(gcs: FakeGcs, count: int) -> dict[str, RemoteShard]:
    """Put `count` shards of SIZE bytes into the bucket, and return them as the cache expects them."""
    for number in range(count):
        gcs.put("bucket", f"data/v1/{number}", content(number))
    return {
        key: RemoteShard(FOLDER / key, stat, Path("v1") / f"{stat.crc32c:08x}-{key}") for key, stat in objects(FOLDER)
    }


def at_once() -> bool:
    """Do not wait for room."""
    return False


def copies(folder: Path) -> list[str]:
    return sorted(path.name.partition("-")[2] for path in folder.glob("*/[!.]*"))


def left_over(folder: Path) -> list[Path]:
    return list(folder.rglob("*.tmp"))


def test_a_shard_is_fetched_once_and_then_read_locally(gcs: FakeGcs, tmp_path: Path):
    shard = shards_of(gcs, 1)["0"]
    cache = ShardCache(tmp_path, ROOM)
    for _ in range(3):
        held = cache.pin(shard, at_once)
        assert held.path.read_bytes() == content(0)
        held.release()
    assert gcs.requests["download"] == 1
    ShardCache(tmp_path, ROOM).pin(shard, at_once).release()  # another process, later
    assert gcs.requests["download"] == 1


def test_a_damaged_download_is_fetched_again(gcs: FakeGcs, tmp_path: Path):
    shard = shards_of(gcs, 1)["0"]
    fault = gcs.fail("corrupt", on="download")
    assert ShardCache(tmp_path, ROOM).pin(shard, at_once).path.read_bytes() == content(0)
    assert fault.fired == 1


def test_a_shard_that_is_damaged_twice_is_not_cached(gcs: FakeGcs, tmp_path: Path):
    shard = shards_of(gcs, 1)["0"]
    fault = gcs.fail("corrupt", on="download", times=None)
    with pytest.raises(StorageError, match="data/v1/0 arrived damaged twice"):
        ShardCache(tmp_path, ROOM).pin(shard, at_once)
    assert fault.fired == 2
    assert copies(tmp_path) == []
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("there", [b"", content(0)[:-1], content(0)[:-1] + b"x", content(0) + b"x"])
def test_a_damaged_copy_under_its_final_name_is_replaced(gcs: FakeGcs, tmp_path: Path, there: bytes):
    shard = shards_of(gcs, 1)["0"]
    (tmp_path / shard.copy).parent.mkdir()
    (tmp_path / shard.copy).write_bytes(there)
    assert ShardCache(tmp_path, ROOM).pin(shard, at_once).path.read_bytes() == content(0)
    assert gcs.requests["download"] == 1


def test_an_intact_copy_is_not_fetched_again(gcs: FakeGcs, tmp_path: Path):
    shard = shards_of(gcs, 1)["0"]
    (tmp_path / shard.copy).parent.mkdir()
    (tmp_path / shard.copy).write_bytes(content(0))
    ShardCache(tmp_path, ROOM).pin(shard, at_once)
    assert gcs.requests["download"] == 0


@pytest.mark.parametrize("what", ["overwritten", "removed"])
def test_a_shard_overwritten_or_removed_during_training_is_refused(gcs: FakeGcs, tmp_path: Path, what: str):
    shard = shards_of(gcs, 1)["0"]
    if what == "overwritten":
        gcs.put("bucket", "data/v1/0", content(7))
    else:
        gcs.delete("bucket", "data/v1/0")
    with pytest.raises(DatasetError, match="data/v1/0 was overwritten or removed"):
        ShardCache(tmp_path, ROOM).pin(shard, at_once)
    assert copies(tmp_path) == []


def test_the_least_recently_used_copy_of_any_version_is_evicted(gcs: FakeGcs, tmp_path: Path):
    shards = shards_of(gcs, 4)
    other = RemoteShard(shards["0"].object, shards["0"].stat, Path("v0") / shards["0"].copy.name)
    cache = ShardCache(tmp_path, 3 * SIZE)
    for shard in (other, shards["1"], shards["2"]):
        cache.pin(shard, at_once).release()
    cache.pin(shards["1"], at_once).release()
    cache.pin(shards["3"], at_once).release()
    assert copies(tmp_path) == ["1", "2", "3"]
    cache.pin(shards["0"], at_once).release()
    assert copies(tmp_path) == ["0", "1", "3"]  # 1 was used again after 2
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) == 3 * SIZE


def test_pinned_copies_are_not_evicted_and_exceeding_the_limit_is_logged_once(
    gcs: FakeGcs, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    shards = shards_of(gcs, 4)
    cache = ShardCache(tmp_path, 2 * SIZE)
    held = [cache.pin(shard, at_once) for shard in shards.values()]
    assert [each.path.read_bytes()[0] for each in held] == [0, 1, 2, 3]
    assert caplog.text.count("cache_gigabytes") == 1
    for each in held:
        each.release()
    cache.pin(shards["0"], at_once).release()
    gcs.put("bucket", "data/v1/4", content(4))
    cache.pin(shards_of(gcs, 5)["4"], at_once).release()
    assert copies(tmp_path) == ["0", "4"]


def test_a_fetch_waits_for_room_in_the_cache(gcs: FakeGcs, tmp_path: Path):
    shards = shards_of(gcs, 3)
    cache = ShardCache(tmp_path, 2 * SIZE)
    held = [cache.pin(shards[name], at_once) for name in "01"]
    states = []

    def waiting() -> bool:
        states.append(copies(tmp_path))
        if len(states) == 3:
            held[0].release()
        return True

    assert cache.pin(shards["2"], waiting).path.read_bytes() == content(2)
    assert states == [["0", "1"]] * 3
    assert copies(tmp_path) == ["1", "2"]


def test_a_copy_that_another_process_fetched_and_still_reads_is_used_at_once(gcs: FakeGcs, tmp_path: Path):
    """The other process fetches it after our look found no copy, and before our turn to fetch it."""
    shard = shards_of(gcs, 1)["0"]
    path = tmp_path / shard.copy
    assert shard_cache._lock(path, fcntl.LOCK_SH) is not None  # its lock
    calls = iter(range(100))

    def waiting() -> bool:
        path.write_bytes(content(0))
        return next(calls) < 10 or pytest.fail("it waits forever")

    assert ShardCache(tmp_path, ROOM).pin(shard, waiting).path == path
    assert gcs.requests["download"] == 0


def test_a_failed_write_is_reported_and_leaves_no_file(gcs: FakeGcs, tmp_path: Path):
    """A limit on the file size fails as a full disk does."""
    shards_of(gcs, 1)
    script = f"""
import resource, sys
from pathlib import Path
from pipeline.dataset.shard_cache import *
from pipeline.storage import objects
resource.setrlimit(resource.RLIMIT_FSIZE, ({SIZE - 1}, {SIZE - 1}))
[(key, stat)] = objects(BucketPath("bucket", "data/v1"))
ShardCache(Path(sys.argv[1]), {ROOM}).pin(RemoteShard(BucketPath("bucket", "data/v1/0"), stat, Path("v1/0")), bool)
"""
    command = [sys.executable, "-B", "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith(
        f"pipeline.errors.StorageError: {tmp_path / 'v1/0'} cannot be written (File too large): free some space"
    )
    assert [path.name for path in (tmp_path / "v1").iterdir()] == [".0.lock"]


def test_a_full_disk_is_reported_and_leaves_no_file(gcs: FakeGcs, small_disk: Path):
    gcs.put("bucket", "data/v1/large", bytes(100_000))
    shards = shards_of(gcs, 1)
    cache = ShardCache(small_disk, ROOM)
    full = (
        r"-large cannot be written \(No space left on device: 100,000 bytes are needed, 65,536 are free\): free "
        r"some space"
    )
    with pytest.raises(StorageError, match=full):
        cache.pin(shards["large"], at_once)
    assert left_over(small_disk) == []
    assert copies(small_disk) == []
    cache.pin(shards["0"], at_once).release()
    assert copies(small_disk) == ["0"]


def test_temporary_files_of_a_killed_process_are_swept(gcs: FakeGcs, tmp_path: Path):
    shards_of(gcs, 1)
    stall = gcs.fail("stall", on="download")
    script = f"""
import sys
from pathlib import Path
from pipeline.dataset.shard_cache import *
from pipeline.storage import objects
[(key, stat)] = objects(BucketPath("bucket", "data/v1"))
ShardCache(Path(sys.argv[1]), {ROOM}).pin(RemoteShard(BucketPath("bucket", "data/v1/0"), stat, Path("v1/0")), bool)
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    until(lambda: stall.fired)
    process.kill()
    process.wait()
    assert len(left_over(tmp_path)) == 1
    [(_, stat)] = objects(FOLDER)
    pinned = ShardCache(tmp_path, ROOM).pin(RemoteShard(FOLDER / "0", stat, Path("v1/0")), at_once)  # its lock is free
    assert pinned.path.read_bytes() == content(0)
    assert left_over(tmp_path) == []


READER = """
import sys
from pathlib import Path
from pipeline.dataset.shard_cache import *
from pipeline.dataset.shard_reader import ShardReader
from pipeline.storage import objects
shards = {key: RemoteShard(BucketPath("bucket", "data/v1") / key, stat, Path("v1") / key)
          for key, stat in objects(BucketPath("bucket", "data/v1"))}
print("ready", flush=True)
sys.stdin.readline()
with ShardReader(ShardCache(Path(sys.argv[1]), 10**9), shards, iter(sorted(shards)), 2, 10**9, bool) as reader:
    for name in sorted(shards):
        assert reader.take(name).read_bytes() == bytes([int(name)]) * 1000
        reader.release(name)
"""


def test_processes_of_one_host_fetch_each_shard_once(gcs: FakeGcs, tmp_path: Path):
    shards_of(gcs, 12)
    gcs.latency_s = 0.05
    command = [sys.executable, "-c", READER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=300)
    assert [process.returncode for process in processes] == [0, 0]
    assert gcs.requests["download"] == 12


# --- the reader ------------------------------------------------------------------------------------------------------


def never() -> bool:
    return False


def test_all_shards_are_fetched_before_they_are_needed(gcs: FakeGcs, tmp_path: Path):
    shards = shards_of(gcs, 10)
    order = list("3142075698")
    with ShardReader(ShardCache(tmp_path, ROOM), shards, iter(order), 2, ROOM, never) as reader:
        until(lambda: len(copies(tmp_path)) == 10)  # before the first call of `take`
        for name in order:
            assert reader.take(name).read_bytes() == content(int(name))
            reader.release(name)
    assert gcs.requests["download"] == 10


def test_only_the_first_epoch_sends_requests_to_the_bucket(gcs: FakeGcs, tmp_path: Path):
    shards = shards_of(gcs, 6)
    with ShardReader(ShardCache(tmp_path, ROOM), shards, iter("012345" + "543210" * 20), 2, ROOM, never) as reader:
        for name in "012345":
            reader.take(name)
            reader.release(name)
        before = sum(gcs.requests.values())
        for name in "543210" * 20:
            reader.take(name)
            reader.release(name)
    assert sum(gcs.requests.values()) == before


@pytest.mark.parametrize("room", [0.5, 1, 3, 5, 9])  # in shards: two are open at once
def test_a_small_cache_serves_all_shards_and_stays_near_its_limit(
    gcs: FakeGcs, tmp_path: Path, room: float, caplog: pytest.LogCaptureFixture
):
    shards = shards_of(gcs, 8)
    order = [*"01234567", *"53164207", *"21034576"]
    most = 0
    with ShardReader(ShardCache(tmp_path, int(room * SIZE)), shards, iter(order), 2, int(room * SIZE), never) as reader:
        before = None
        for name in order:
            assert reader.take(name).read_bytes() == content(int(name))
            with shard_cache.locked(tmp_path / ".lock"):  # nothing is removed while they are counted
                most = max(most, len(copies(tmp_path)))
            if before is not None:
                reader.release(before)
            before = name
        reader.release(before)
    assert most <= max(room, 3)  # two open shards and the next one
    assert ("cache_gigabytes" in caplog.text) == (room < 2)


def test_a_failed_download_raises_in_the_waiting_and_in_later_calls(gcs: FakeGcs, tmp_path: Path):
    shards = shards_of(gcs, 6)
    fault = gcs.fail("corrupt", on="download", matches="/3$", times=None)
    with ShardReader(ShardCache(tmp_path, ROOM), shards, iter("012345"), 2, ROOM, never) as reader:
        with pytest.raises(StorageError, match="data/v1/3 arrived damaged twice"):
            list(map(reader.take, "012345"))
        assert isinstance(reader.failure, StorageError)
        with pytest.raises(StorageError):
            reader.take("4")
    assert fault.fired == 2


def test_a_stop_request_interrupts_the_wait_for_a_shard(gcs: FakeGcs, tmp_path: Path):
    shards = shards_of(gcs, 1)
    fault = gcs.fail("stall", on="download")
    with ShardReader(ShardCache(tmp_path, ROOM), shards, iter("0"), 2, ROOM, lambda: bool(fault.fired)) as reader:
        with pytest.raises(Preempted):
            reader.take("0")
        fault.release()


def test_closing_the_reader_releases_all_locks(gcs: FakeGcs, tmp_path: Path):
    shards = shards_of(gcs, 6)
    with (
        contextlib.suppress(ZeroDivisionError),
        ShardReader(ShardCache(tmp_path, ROOM), shards, iter("012345"), 2, ROOM, never) as reader,
    ):
        reader.take("0")
        until(lambda: len(copies(tmp_path)) == 6)
        raise ZeroDivisionError
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fill-")]
    another = ShardCache(tmp_path, SIZE)
    gcs.put("bucket", "data/v1/9", content(9))
    another.pin(shards_of(gcs, 6)["9"], at_once).release()
    assert copies(tmp_path) == ["9"]
