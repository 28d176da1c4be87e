"""Locks of GPUs, held by real processes."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.system.flock import try_lock
from pipeline.system.gpu_locks import GpuLocks
from tests.waiting import until

HOLDING = """
import sys
from pathlib import Path
from pipeline.system.gpu_locks import GpuLocks
locks = GpuLocks(Path(sys.argv[1]))
taken = locks.take(sys.argv[3:], int(sys.argv[2]))
print(" ".join(taken or ["none"]), flush=True)
sys.stdin.read()
"""
"""Takes a number of the GPUs, and holds them until it is killed."""
FORKING = """
import os, sys
from pathlib import Path
from pipeline.system.gpu_locks import GpuLocks
locks = GpuLocks(Path(sys.argv[1]))
locks.take(sys.argv[2:], 1)
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
os._exit(0)
"""
"""Takes a GPU, forks a child that lives until stdin is closed, and ends."""
GPUS = ["GPU-a", "GPU-b", "GPU-c", "MIG-GPU-d/1/0"]
Hold = Callable[[int], "subprocess.Popen[str]"]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    started: list[subprocess.Popen[str]] = []

    def process(count: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDING, str(tmp_path / "locks"), str(count), *GPUS]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield process
    for each in started:
        each.kill()
        with each:  # closes the pipes, and waits
            pass


def test_processes_hold_different_gpus_until_they_are_killed(hold: Hold, tmp_path: Path):
    # One after another: a process takes nothing while another is just taking GPUs.
    first = hold(2)
    held = [first.stdout.readline().split()]
    held.append(hold(2).stdout.readline().split())
    assert sorted([*held[0], *held[1]]) == sorted(GPUS)
    locks = GpuLocks(tmp_path / "locks")
    assert locks.take(GPUS, 1) is None
    first.kill()
    assert until(lambda: locks.take(GPUS, 2)) == held[0]
    assert hold(1).stdout.readline() == "none\n"
    locks.release()
    assert hold(1).stdout.readline().split() == held[0][:1]


def test_too_few_free_gpus_are_left_to_others(tmp_path: Path):
    one, other, third = (GpuLocks(tmp_path) for _ in range(3))
    assert one.take(GPUS, 2) == GPUS[:2]
    assert other.take(GPUS, 3) is None
    assert third.take(GPUS, 2) == GPUS[2:]


def test_servers_of_one_training_hold_a_gpu_together(tmp_path: Path):
    first, second, foreign = (GpuLocks(tmp_path) for _ in range(3))
    assert first.take(GPUS, 2) == GPUS[:2]
    assert first.join(GPUS[:2])
    assert second.join(GPUS[1:2])
    first.release()
    assert foreign.take(GPUS[:2], 2) is None
    assert foreign.take(GPUS[:2], 1) == GPUS[:1]
    foreign.release()
    with (tmp_path / GPUS[0]).open() as file:
        assert try_lock(file.fileno())  # Another training is taking it.
        assert not second.join(GPUS[:1])


def test_a_forked_child_holds_no_gpu(tmp_path: Path):
    command = [sys.executable, "-c", FORKING, str(tmp_path / "locks"), *GPUS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "forked\n"
        parent.wait()
        assert GpuLocks(tmp_path / "locks").take(GPUS, 4) == GPUS
        parent.stdin.close()


def test_a_folder_that_other_users_cannot_write_is_named(tmp_path: Path):
    """Docker makes a missing folder of a bind mount like this."""
    locks = tmp_path / "locks"
    locks.mkdir()
    locks.chmod(0o555)
    limited = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*limited, sys.executable, "-c", HOLDING, str(locks), "1", *GPUS]
    errors = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stderr
    assert "FileSystemError: this user cannot use the locks of GPUs" in errors
    assert f"`chmod 777 {locks}`, and run again" in errors


def test_other_users_can_use_the_locks(tmp_path: Path):
    before = os.umask(0o077)
    try:
        GpuLocks(tmp_path / "locks").take(GPUS, 4)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "locks", *(tmp_path / "locks").iterdir())]
    assert modes == [0o777, *[0o644] * 5]
