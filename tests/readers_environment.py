"""The environment of readers that are not in the one of the tests, which `make env-readers` makes."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".readers" / "bin" / "python"


def run_with_readers(code: str, stdin: bytes = b"", **variables: str) -> bytes:
    """Run code that may import DALI, Grain and `pipeline`, and return what it printed. Skip if they are missing."""
    if not PYTHON.exists():
        pytest.skip("the packages of the readers are missing: run `make env-readers`")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run([PYTHON, "-c", code], input=stdin, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
