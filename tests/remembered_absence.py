"""A process whose file system remembers that a file did not exist, as a client of NFS does for up to a minute."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = Path(__file__).with_suffix(".c")


class OtherHost:
    """A process that runs `before`, waits for `go_on`, and runs `after`. It remembers absent files below a folder.

    Both are code of Python, and may use the arguments as `sys.argv[1:]`.
    """

    def __init__(self, folder: Path, output: Path, before: str, after: str, *arguments: Any) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler (cc) to remember that a file did not exist")
        library = output / "remembered_absence.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl", "-lpthread"], check=True)
        code = f"import sys\n{before}\nprint('waiting', flush=True)\nsys.stdin.readline()\n{after}"
        environment = {**os.environ, "ABSENT_FOLDER": str(folder), "LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
        )
        assert self._process.stdout
        line = ""
        while line != "waiting\n":
            line = self._process.stdout.readline()
            assert line, "the process ended before it waited"

    def go_on(self) -> str:
        """Let the process run the rest, and return what it printed."""
        return self._process.communicate("\n", timeout=120)[0]
