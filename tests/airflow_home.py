"""A real Airflow on SQLite, for the conftest of each folder whose tests use one.

Its settings must stand in the environment before anything imports Airflow, so they are made where this is imported.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

assert "airflow" not in sys.modules, "Airflow was imported before its home was set: it would use the user's own"
HOME = Path(tempfile.mkdtemp(prefix="tenfold-airflow-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__API_AUTH__JWT_SECRET": 64 * "s",  # the one that Airflow draws where there is none is warned of: too short
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
    "PYTHONPATH": str(ROOT),
}


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """Tables in an SQLite file of this session's own."""
    from airflow.utils.db import initdb

    initdb()
