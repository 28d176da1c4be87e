import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts.airflow import processes
from scripts.airflow.processes import Identity, end, find, identify, spawn
from tests.waiting import until

# Starts a child in the same session and a child in a new session, prints their process ids, and then waits.
TREE = """
import subprocess, sys
sleep = [sys.executable, "-c", "import signal, sys, time; exec(sys.argv[1]); print('up', flush=True); time.sleep(60)"]
children = [
    subprocess.Popen([*sleep, sys.argv[1]], stdout=subprocess.PIPE, start_new_session=own) for own in (False, True)
]
print(*[child.pid for child in children if child.stdout.readline()], flush=True)
exec(sys.argv[1])
sys.stdin.read() if sys.argv[2] == "leave" else children[0].wait()
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    monkeypatch.setattr(processes, "TRAINING_GRACE_S", 0.3)


def start_tree(tmp_path: Path, setup: str, last: str) -> tuple["subprocess.Popen[bytes]", list[Identity]]:
    root = spawn([sys.executable, "-c", TREE, setup, last], os.environ, tmp_path / "log")
    printed = until((tmp_path / "log").read_text, is_expected=lambda text: text.endswith("\n"))
    return root, [identify(int(pid)) for pid in printed.split()]


@pytest.mark.parametrize("setup", ["pass", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_end_also_kills_processes_that_ignore_sigterm(tmp_path: Path, setup: str) -> None:
    root, children = start_tree(tmp_path, setup, "stay")
    assert len(children) == 2
    end([identify(root.pid)])
    root.wait()
    assert [find(child) for child in children] == [None, None]


@pytest.mark.parametrize("reaped", [True, False])
def test_children_of_a_dead_root_are_identified_by_their_session(tmp_path: Path, reaped: bool) -> None:
    root, (in_session, elsewhere) = start_tree(tmp_path, "pass", "leave")
    noted = identify(root.pid)
    if reaped:
        root.wait()
    until(lambda: not find(noted))
    end([noted])
    root.wait()
    assert find(in_session) is None
    psutil.Process(elsewhere.pid).kill()


def test_a_process_is_not_mistaken_for_an_earlier_one_with_its_id() -> None:
    me = identify(os.getpid())
    assert find(me) is not None
    assert find(Identity(me.pid, me.created - 60)) is None


def test_ending_a_dead_process_does_not_end_a_process_with_the_same_id() -> None:
    me = identify(os.getpid())
    end([Identity(me.pid, me.created - 60)])


def test_spawned_processes_have_their_own_session(tmp_path: Path) -> None:
    child = spawn([sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())"], os.environ, tmp_path / "log")
    assert child.wait() == 0
    assert (tmp_path / "log").read_text() == "True\n"
