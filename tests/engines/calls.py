"""Calls that an engine makes in a process of its own: see call.py."""

import json
import os
import subprocess
from pathlib import Path

from tests.engines.cases import COUNT
from tests.engines.environment import python_of

PLACES = 12
HERE = "local"
"""This engine needs no package, and its tests take seconds."""


class Call:
    """The result of an engine, and the files that its calls wrote."""

    def __init__(self, engine: str, function: str, folder: Path, sources: str = "*", places: int = PLACES) -> None:
        command = [python_of(engine), "-m", "tests.engines.call", engine, function, str(folder), str(places), sources]
        # The allowlists of this process must not reach the engine by another way.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TENFOLD_ALLOWED")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr
        self.stderr = done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        self.count, self.kind, self.message = result["count"], result["kind"], result["message"]
        self.written = {path.name: path.read_text() for path in folder.glob("*.txt")}

    def is_complete(self) -> bool:
        return not self.kind and self.count == COUNT * PLACES and len(self.written) == PLACES
