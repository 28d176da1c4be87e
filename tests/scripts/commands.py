"""Run `python -m scripts.airflow` as a terminal does."""

import os
import subprocess
import sys
from collections.abc import Mapping

from tests.ports import own_port


class Commands:
    """Commands that run in their own environment. An Airflow that stays has its own port."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = {**os.environ, "TENFOLD_PORT": str(own_port()), **environ}

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command in its own process group, as a terminal does."""
        return subprocess.Popen(
            [sys.executable, "-m", "scripts.airflow", *arguments],
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
