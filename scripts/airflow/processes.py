"""Start processes, and end them with all processes that they started."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

TRAINING_GRACE_S = 15.0
"""A training has this many seconds for its checkpoint."""
GRACE_S = 3.0
_CLOCK_STEP_S = 2.0
"""Tolerance for the start time of a process, which moves with the clock of the system."""


@dataclass(frozen=True)
class Identity:
    """Identifies one process. A later process may get the same number."""

    pid: int
    created: float


def identify(pid: int) -> Identity:
    """Return the identity of a process, with which `find` finds it again."""
    return Identity(pid, psutil.Process(pid).create_time())


def find(identity: Identity) -> psutil.Process | None:
    """Return the process, if it still lives."""
    process = _with_number_of(identity)
    return process if process and _is(process, identity) and alive(process) else None


def _with_number_of(identity: Identity) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(identity.pid)
    return None


def _is(process: psutil.Process, identity: Identity) -> bool:
    return abs(process.create_time() - identity.created) < _CLOCK_STEP_S


def alive(process: psutil.Process) -> bool:
    """Return whether a process runs. A dead child that its parent has not waited for does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def spawn(command: Sequence[str], environ: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own: Ctrl-C in the terminal reaches this command, which ends it in order."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(identities: Iterable[Identity]) -> None:
    """End processes that `spawn` started, and everything they started: with SIGTERM, and after a limit with SIGKILL.

    A training gets more time than the rest, because it writes a checkpoint before it ends. The rest is Airflow, whose
    scheduler waits forever once its workers are gone, and tasks, in which Airflow blocks SIGTERM.
    """
    noted = list(identities)
    # A dead root, even as a zombie, is no other process: the processes that it left are still in its session.
    sessions = {each.pid for each in noted if not (process := _with_number_of(each)) or _is(process, each)}
    roots = {process for root in noted if (process := find(root))}
    # Looked up before any signal: once a parent has ended, its children have another one. The chain is: scheduler,
    # worker, task, process that the task started.
    started_by_tasks = roots
    for _ in range(3):
        started_by_tasks = {child for process in started_by_tasks for child in _children(process, recursive=False)}
    everything = _survivors(roots | started_by_tasks, sessions)
    _signal(everything, signal.SIGTERM)
    psutil.wait_procs(started_by_tasks, timeout=TRAINING_GRACE_S)
    psutil.wait_procs(everything, timeout=GRACE_S)
    # Processes that were started since then are in the same session, or are descendants of survivors.
    while survivors := _survivors(everything, sessions):
        _signal(survivors, signal.SIGKILL)
        psutil.wait_procs(survivors, timeout=GRACE_S)
        everything |= survivors


def _survivors(known: Iterable[psutil.Process], sessions: set[int]) -> set[psutil.Process]:
    living = {process for process in known if alive(process)}
    below = {child for process in living for child in _children(process)}
    # A worker whose scheduler was killed is no descendant any more, but is still in its session.
    members = {process for process in psutil.process_iter() if _session(process.pid) in sessions}
    return {process for process in living | below | members if alive(process)}


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _children(process: psutil.Process, recursive: bool = True) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive)
    return []


def _signal(processes: Iterable[psutil.Process], signum: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signum)
