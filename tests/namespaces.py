"""Namespaces of a separate process, in which any user can do what otherwise only root may do."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def unshared(*kinds: str) -> list[str]:
    """Return the command prefix that runs a command as root of new namespaces.

    Another user than root creates them in a user namespace. If the kernel refuses, the test is skipped.

    Args:
        kinds: Options of `unshare`, such as `--mount`.
    """
    words = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *kinds]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"needs a namespace: {tried.stderr.strip()}")
    return words


@contextmanager
def disk_of(size: str, folder: Path) -> Iterator[Path]:
    """A file system of a size as `mount` takes it, for any user.

    It is mounted on a new folder in a namespace, and reached through a process there.
    """
    folder.mkdir()
    mounted = f'mount -t tmpfs -o size={size} tmpfs "$0" && echo mounted && exec cat'  # until its input ends
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
