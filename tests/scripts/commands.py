"""Run `python -m scripts.airflow` as a terminal does."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.airflow_database import copy_database
from tests.ports import own_port


class Commands:
    """Commands with an Airflow, a port and a workspace of their own."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.home = folder / "home"
        self.workspace = folder / "workspace"
        copy_database(self.home)
        places = {"TENFOLD_HOME": str(self.home), "TENFOLD_WORKSPACE": str(self.workspace)}
        self.python = sys.executable
        self._environ = {**os.environ, "TENFOLD_PORT": str(own_port()), **places, **environ}

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command in its own process group, as a terminal does."""
        return subprocess.Popen(
            [self.python, "-m", "scripts.airflow", *arguments],
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def command(self, *arguments: str) -> tuple[int, str]:
        """Run a command, and return its exit code and output."""
        with self.start(*arguments) as process:
            output = process.communicate()[0]
        return process.returncode, output


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Return the output of a command up to the first line with a text."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if text in line:
            return output
    raise AssertionError(output)
