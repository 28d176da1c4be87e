"""Processes that do not outlive who started them."""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, with_signal: signal.Signals) -> None:
    """Have the kernel send this process `with_signal` when its parent, of process id `parent`, dies, however it dies.

    Without it a trainer whose Airflow worker was killed holds its GPU until someone looks. Linux only. The kernel means
    the thread that started this process: it must live as long as the parent.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, with_signal)
    if os.getppid() != parent:  # it died before the kernel was told
        os.kill(os.getpid(), with_signal)


def environment_of_tensorflow() -> Mapping[str, str]:
    """Return the environment of a process that runs a module of this project from any folder, quietly."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    return {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def start_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent of this worker, and end with it: else it would wait for work for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent, signal.SIGKILL)
