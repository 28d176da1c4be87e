import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipeline import storage
from pipeline.errors import ConflictError, DatasetError
from pipeline.records.tfrecord import writer_of
from pipeline.runs.files import read_or_empty
from pipeline.storage import local
from pipeline.storage.local import this_host
from pipeline.system.flock import locked
from tests.namespaces import unshared
from tests.waiting import until


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.tmp"))


@pytest.mark.parametrize("write", [storage.write_whole, storage.write_new])
def test_a_file_appears_whole(tmp_path: Path, write):
    path = tmp_path / "deep" / "file"
    with write(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("write", [storage.write_whole, storage.write_new])
def test_an_error_leaves_no_file(tmp_path: Path, write):
    with pytest.raises(ZeroDivisionError), write(tmp_path / "file") as file:
        file.write(b"half" * (1 // 0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", ["write_whole", "write_new"])
def test_a_failed_write_names_the_file_and_leaves_no_file(tmp_path: Path, write: str):
    """A limit on the file size fails in the middle of a write, as a full disk does."""
    script = "import resource; from pathlib import Path; from pipeline import storage\n"
    script += "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    script += f"with storage.{write}(Path({str(tmp_path / 'shard')!r})) as file: file.write(bytes(100_000))"
    done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(f"File too large: '{tmp_path / 'shard'}'")
    assert list(tmp_path.iterdir()) == []


def test_write_whole_replaces_an_existing_file(tmp_path: Path):
    for content in (b"old", b"new"):
        with storage.write_whole(tmp_path / "file") as file:
            file.write(content)
    assert (tmp_path / "file").read_bytes() == b"new"


def test_write_new_accepts_equal_content_and_refuses_other_content(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"first")
    with storage.write_new(path) as file:
        file.write(b"first")
    for other in (b"other", b"longer than the first"):
        with pytest.raises(ConflictError, match=str(path)), storage.write_new(path) as file:
            file.write(other)
    assert path.read_bytes() == b"first"
    assert left_over(tmp_path) == []


def test_sweep_removes_only_orphaned_temporary_files(tmp_path: Path):
    script = f"import os; from pathlib import Path; from pipeline.storage import *; p = Path({str(tmp_path)!r}) / 'a'\n"
    script += "with write_whole(p) as f: f.write(b'x'); f.flush(); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert len(left_over(tmp_path)) == 1

    host = this_host()
    ours = tmp_path / f".b.{host}.{os.getpid()}.00000000.tmp"
    others_new = tmp_path / ".c.another-host.1.00000000.tmp"
    others_old = tmp_path / ".d.another-host.1.00000000.tmp"
    foreign = tmp_path / ".not-ours.tmp"
    for path in (ours, others_new, others_old, foreign):
        path.touch()
    os.utime(others_old, (time.time() - 90_000,) * 2)

    assert storage.sweep(tmp_path) == 2
    assert left_over(tmp_path) == sorted(path.name for path in (ours, others_new, foreign))


def test_sweep_ignores_a_folder_that_another_run_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("a", "b", "c"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / ".file.tmp").touch()
    is_orphan = local._is_orphan

    def remove_others(path: Path) -> bool:
        for name in {"a", "b", "c"} - {path.parent.name}:
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        return is_orphan(path)

    monkeypatch.setattr(local, "_is_orphan", remove_others)
    assert storage.sweep(tmp_path) == 0


def test_sweep_keeps_the_files_of_a_live_process_however_old_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.storage.local.ORPHAN_AGE_S", -1.0)  # Every file is old.
    ours = tmp_path / f".a.{this_host()}.{os.getpid()}.00000000.tmp"
    ours.touch()
    assert storage.sweep(tmp_path) == 0
    assert ours.exists()


def test_sweep_recognizes_zombies_and_reused_process_ids(tmp_path: Path):
    host = this_host()
    zombie = subprocess.Popen(["true"])
    until(psutil.Process(zombie.pid).status, is_expected=lambda status: status == psutil.STATUS_ZOMBIE)
    of_zombie = tmp_path / f".a.{host}.{zombie.pid}.00000000.tmp"
    of_earlier = tmp_path / f".b.{host}.{os.getpid()}-1.00000000.tmp"
    for path in (of_zombie, of_earlier):
        path.touch()
    assert storage.sweep(tmp_path) == 2
    zombie.wait()


@pytest.mark.parametrize("ahead_s", [-90_000, -60, 90_000])
def test_sweep_keeps_the_files_of_a_live_process_whatever_the_clock_of_the_file_server_says(
    tmp_path: Path, ahead_s: float
):
    began = psutil.Process().create_time()
    with storage.write_whole(tmp_path / "file") as file:
        [temporary] = tmp_path.iterdir()
        os.utime(temporary, (began + ahead_s, began + ahead_s))
        assert storage.sweep(tmp_path) == 0
        file.write(b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"


@pytest.mark.parametrize("size", [0, 1, storage.CHUNK_BYTES, storage.CHUNK_BYTES + 1])
def test_crc32c_of_a_file(tmp_path: Path, size: int):
    import google_crc32c

    (tmp_path / "file").write_bytes(b"ab" * size)
    assert storage.crc32c_of(tmp_path / "file") == google_crc32c.value(b"ab" * size)


def test_sweep_keeps_temporary_files_of_another_container(tmp_path: Path):
    """Two containers with the same host name can share a workspace, but the same id is a different process in each."""
    code = "from pipeline.storage.local import this_host; print(this_host())"
    command = [*unshared("--pid", "--fork"), sys.executable, "-c", code]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = made.stdout.strip()
    assert theirs.startswith(f"{socket.gethostname().replace('.', '-')}-")
    dead = 2**22 + 1  # No process on this host has this id.
    for host in (theirs, this_host()):
        (tmp_path / f".a.{host}.{dead}.00000000.tmp").touch()
    assert storage.sweep(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == [f".a.{theirs}.{dead}.00000000.tmp"]


def test_remove_torn_removes_a_damaged_file_and_keeps_an_intact_file(tmp_path: Path):
    path = tmp_path / "shard"
    assert local.remove_torn(path, 0)  # Another process removed it and is writing it now.
    path.write_bytes(b"content")
    sound = local.crc32c_of_file(path)
    assert not local.remove_torn(path, sound)
    assert path.read_bytes() == b"content"
    path.write_bytes(b"contemt")
    assert local.remove_torn(path, sound)
    assert list(tmp_path.iterdir()) == []


def test_remove_torn_keeps_an_intact_file_written_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two processes find the same damaged file. The slower one then finds the file that the faster one wrote."""
    path = tmp_path / "shard"
    path.write_bytes(b"contemt")
    crc32c_of_file = local.crc32c_of_file

    def written_meanwhile(aside: Path) -> int:
        with storage.write_new(path) as file:
            file.write(b"content")
        return crc32c_of_file(aside)

    monkeypatch.setattr(local, "crc32c_of_file", written_meanwhile)
    assert local.remove_torn(path, 1)
    monkeypatch.undo()
    assert not local.remove_torn(path, local.crc32c_of_file(path))
    assert path.read_bytes() == b"content"


def test_a_full_disk_error_states_the_needed_and_the_free_bytes(small_disk: Path, tmp_path: Path):
    (tmp_path / "large").write_bytes(bytes(100_000))
    (small_disk / "other").write_bytes(bytes(8192))
    known = "No space left on device: 100,000 bytes are needed, 57,344 are free"
    with pytest.raises(OSError, match=re.escape(f"{known}: '{small_disk / 'copy'}'")):
        storage.copy_new(tmp_path / "large", small_disk / "copy")
    unknown = "No space left on device: more than 57,344 bytes are needed, 57,344 are free"
    with pytest.raises(OSError, match=unknown), storage.write_whole(small_disk / "new") as file:
        file.writelines([bytes(1024)] * 100)
    assert [path.name for path in small_disk.iterdir()] == ["other"]


def test_a_full_disk_error_of_a_shard_states_the_free_bytes(small_disk: Path):
    shard = small_disk / "train-00000-of-00001.tfrecord"

    def write() -> None:
        with storage.write_new(shard, synced=True) as file:
            writer = writer_of(shard, file)
            for _ in range(10):
                writer.write(b"", bytes(10_000), 0)
            writer.close()

    with pytest.raises(OSError, match=r"more than [0-9,]+ bytes are needed, 65,536 are free"):
        write()


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path):
    """Other users may make one in a workspace. Opening it would wait until a program writes into it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DatasetError, match="pipe is no regular file"):
        storage.read_limited(tmp_path / "pipe", 100)
    assert read_or_empty(tmp_path / "pipe") == {}
    with pytest.raises(OSError, match="No such device or address"), locked(tmp_path / "pipe"):
        pass
