"""Processes that see more processor cores than this machine has, or fewer.

No setting of Python or TensorFlow reaches all code that counts cores, so a small library replaces the calls of libc.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


class SimulatedCores:
    """Environments for processes that see a given number of cores, and so do the processes that they start."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler (cc) to simulate a number of cores")
        self._library = folder / "simulated_cores.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", self._library, SOURCE, "-ldl"]
        subprocess.run(command, check=True, timeout=300)

    def environment(self, cores: int) -> dict[str, str]:
        """Return the environment of a process that sees `cores` cores."""
        return {**os.environ, "LD_PRELOAD": str(self._library), "SIMULATED_CORES": str(cores)}
