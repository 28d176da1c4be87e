"""Linux namespaces of a separate process, in which any user can do what otherwise needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def unshared(*kinds: str) -> list[str]:
    """Return the command prefix that runs a command as root of new namespaces.

    For a user other than root, a user namespace is created too. If the kernel refuses, the test is skipped.

    Args:
        kinds: Options of `unshare`, such as `--mount`.
    """
    command = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *kinds]
    probe = subprocess.run([*command, "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"needs a namespace: {probe.stderr.strip()}")
    return command


@contextmanager
def disk_of(size: str, folder: Path) -> Iterator[Path]:
    """Yield a file system of a given size, in the notation of `mount`. Any user can create it.

    It is mounted on a new folder in a namespace. The returned path leads through `/proc` of a process there.
    """
    folder.mkdir()
    mounted = f'mount -t tmpfs -o size={size} tmpfs "$0" && echo mounted && exec cat'  # until its input is closed
    command = [*unshared("--mount"), "sh", "-c", mounted, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mounted\n"
        yield Path(f"/proc/{process.pid}/root{folder}")


def fill(disk: Path) -> None:
    """Leave no byte free on a file system."""
    with open(disk / "filler", "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
