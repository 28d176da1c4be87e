"""A migrated database of each version of Airflow, made once and copied into the home of each Airflow of the tests."""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from scripts.airflow.database import is_migrated
from scripts.airflow.embedded import prepare
from scripts.airflow.settings import ROOT, Layout
from scripts.airflow.signals import Signals

# Each version has its own, because Airflow cannot read the database of a newer one.
_TEMPLATE = ROOT / ".pytest_cache" / "d" / f"airflow-{version('apache-airflow-core')}"


def copy_database(home: Path) -> None:
    """Create a home whose database is migrated, so that its Airflow starts without a migration."""
    template = Layout(_TEMPLATE, _TEMPLATE / "workspace", ROOT / "dags")
    with _lock():
        if not is_migrated(template.database):
            airflow = prepare(template, background=False)
            airflow.migrate(Signals())
            airflow.stop()
    copy = replace(template, home=home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A copy of the file alone would lack what SQLite still has in its write-ahead log.
    with closing(sqlite3.connect(template.database)) as source, closing(sqlite3.connect(copy.database)) as target:
        source.backup(target)
    assert is_migrated(copy.database)


@contextmanager
def _lock() -> Iterator[None]:
    """Let one process of pytest migrate, while the others wait for it."""
    _TEMPLATE.mkdir(parents=True, exist_ok=True)
    with open(_TEMPLATE / "template.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
