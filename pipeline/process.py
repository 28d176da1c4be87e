"""Processes that do not outlive who started them."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(with_signal: signal.Signals) -> None:
    """Have the kernel send this process `with_signal` when its parent dies, however it dies.

    Without it a trainer whose Airflow worker was killed holds its GPU until someone looks. Linux only.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, with_signal)
    if os.getppid() != parent:  # it died before the kernel was told
        os.kill(os.getpid(), with_signal)
