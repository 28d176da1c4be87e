"""Processes whose file system sometimes fails: a stale handle, an input/output error, a timeout, no descriptors.

A small library replaces calls of libc. The errors are those of system calls, so they affect Python, NumPy and
TensorFlow alike.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).with_suffix(".c")


class Injected(NamedTuple):
    """One error that a process got."""

    message: str
    """The error message of the system."""
    call: str
    path: str


class FailingFileSystem:
    """Environments for processes in which a random fraction of the calls on files below `folder` fails."""

    def __init__(self, folder: Path, output: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler (cc) to let system calls fail")
        self._folder, self._log = folder, output / "injected.log"
        self._library = output / "transient_errors.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", self._library, SOURCE, "-ldl"]
        subprocess.run(command, check=True, timeout=300)

    def environment(self, one_in: int, seed: int) -> dict[str, str]:
        """Return the environment of a process in which one call in `one_in` fails."""
        faults = {"FOLDER": self._folder, "ONE_IN": one_in, "SEED": seed, "LOG": self._log}
        faulty = {f"FAULT_{name}": str(value) for name, value in faults.items()}
        return {**os.environ, **faulty, "LD_PRELOAD": str(self._library), "PYTHONDONTWRITEBYTECODE": "1"}

    def injected(self) -> list[Injected]:
        """Return the errors since the last call."""
        if not self._log.exists():
            return []
        lines = [line.split(" ", 2) for line in self._log.read_text(errors="surrogateescape").splitlines()]
        self._log.unlink()
        return [Injected(os.strerror(int(number)), call, path) for number, call, path in lines]
