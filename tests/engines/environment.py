"""The environment of the engines, which `make env-engines` makes."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROVIDER = ROOT / ".engines" / "airflow"
"""Folder of Airflow's package for Spark, which is not in the environment of Airflow."""
PYTHON = ROOT / ".engines" / "bin" / "python"


def python_of(engine: str) -> str:
    """Return the Python that has the package of an engine. Skip the test if it is not installed."""
    if engine == "local":
        return sys.executable
    if not PYTHON.exists():
        pytest.skip("the packages of the engines are missing: run `make env-engines`")
    return str(PYTHON)
