"""Processes that run a module of this project, and end with their parents."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from math import ceil
from pathlib import Path

GRACE_S = 30.0
"""A process has this many seconds after a request to stop, for example for its checkpoint, before it is killed."""
ASK_EVERY_S = 5.0
"""The request is repeated at this interval in seconds. While TensorFlow connects its servers, it takes the signal."""


def end_with_parent(parent: int, with_signal: signal.Signals) -> None:
    """Let the kernel send `with_signal` to this process when its parent ends in any way. Only on Linux.

    Otherwise, a trainer whose Airflow worker was killed would hold its GPU until a person notices. For the kernel, the
    parent is the thread that started this process. That thread must live as long as the process `parent`.
    """
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1  # The number of the option in linux/prctl.h.
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, with_signal)
    if os.getppid() != parent:  # The parent ended before the call, so the kernel sends nothing.
        os.kill(os.getpid(), with_signal)


def environment_of_tensorflow() -> Mapping[str, str]:
    """Return the environment of a process that runs a module of this project from any folder, with few messages.

    Each GPU gets threads of its own that start its kernels, so that no other work of the CPU delays them.
    """
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    defaults = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_GPU_THREAD_MODE": "gpu_private"}
    return {**defaults, **os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this project."""
    return [sys.executable, "-m", module, *arguments]


def start_module(module: str, *arguments: str, output: int) -> "subprocess.Popen[bytes]":
    """Start a module of this project, which can save its work before it stops.

    One of the `arguments` is the id of this process, with which the module calls `end_with_parent`. The file descriptor
    `output` gets its output.
    """
    return subprocess.Popen(
        command_of(module, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment_of_tensorflow(),
        # Ctrl-C in the terminal reaches only this process, which then asks the other one to stop. The other one also
        # leads a group of its own, which `stop_process` can kill.
        start_new_session=True,
    )


def stop_process(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to stop. After GRACE_S, kill it and all processes that it started."""
    for _ in range(ceil(GRACE_S / ASK_EVERY_S)):
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(ASK_EVERY_S)
            return
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_module(module: str, *arguments: str, output: int) -> int:
    """Run `python -m module` as `start_module` does, and return its exit code. An exception stops the process."""
    process = start_module(module, *arguments, output=output)
    try:
        return process.wait()
    finally:
        stop_process(process)


def start_worker(parent: int) -> None:
    """Prepare a worker process: leave Ctrl-C to its parent, and end with the parent instead of waiting forever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent, signal.SIGKILL)
