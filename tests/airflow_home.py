"""A real Airflow on SQLite, for the conftest of each folder whose tests use one.

The settings of Airflow must be in the environment before Airflow is imported. Importing this module sets them.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.airflow_database import copy_database

ROOT = Path(__file__).resolve().parents[1]

assert "airflow" not in sys.modules, "Airflow was imported before its home was set: it would use the user's own"
HOME = Path(tempfile.mkdtemp(prefix="tenfold-airflow-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__API_AUTH__JWT_SECRET": 64 * "s",  # Airflow warns that its random default is too short
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
    "PYTHONPATH": str(ROOT),
}


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """The tables of Airflow, in an SQLite file of this test session."""
    make_database()


def make_database() -> None:
    """Make the tables of Airflow, unless they were made."""
    # Each folder of tests asks for them. A second copy would replace a database that is in use.
    if not (HOME / "airflow.db").exists():
        copy_database(HOME)
