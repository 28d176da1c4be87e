"""A migrated database of Airflow, made once for each checkout and copied into the home of each Airflow of the tests."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.airflow.embedded import prepare
from scripts.airflow.migration import is_migrated
from scripts.airflow.settings import ROOT, Layout
from scripts.airflow.signals import Signals

_TEMPLATE = ROOT / ".pytest_cache" / "d" / "airflow"


def copy_database(home: Path) -> None:
    """Create a home whose database is migrated, so that its Airflow starts without a migration."""
    template = Layout(_TEMPLATE, _TEMPLATE / "workspace", ROOT / "dags")
    with _lock():
        if not is_migrated(template):
            airflow = prepare(template, background=False)
            airflow.migrate(Signals())
            airflow.stop()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (template.database, template.migrated):
        shutil.copy(path, home)


@contextmanager
def _lock() -> Iterator[None]:
    """Let one process of pytest migrate, while the others wait for it."""
    _TEMPLATE.mkdir(parents=True, exist_ok=True)
    with open(_TEMPLATE / "template.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
