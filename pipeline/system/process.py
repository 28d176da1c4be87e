"""Processes that end with their parents."""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1
"""This is the number of the option in linux/prctl.h."""


def end_with_parent(parent: int, with_signal: signal.Signals) -> None:
    """Let the kernel send `with_signal` to this process when its parent ends in any way. Only on Linux.

    Otherwise, a trainer whose Airflow worker was killed would hold its GPU until a person notices. For the kernel, the
    parent is the thread that started this process. That thread must live as long as the process `parent`.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, with_signal)
    if os.getppid() != parent:  # The parent ended before the call, so the kernel sends nothing.
        os.kill(os.getpid(), with_signal)


def environment_of_tensorflow() -> Mapping[str, str]:
    """Return the environment of a process that runs a module of this project from any folder, with few messages."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    return {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def start_worker(parent: int) -> None:
    """Prepare a worker process: leave Ctrl-C to its parent, and end with the parent instead of waiting forever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent, signal.SIGKILL)
