"""Note that Airflow has migrated its database. Asking Airflow again at each start would take 3 s."""

import json
import sqlite3
from contextlib import closing
from importlib.metadata import version

from scripts.airflow.keys import write_private
from scripts.airflow.settings import Layout

_QUERY = "SELECT version_num FROM alembic_version"


def is_migrated(layout: Layout) -> bool:
    """Return whether the installed Airflow migrated the database of this home.

    The database may be another one since then, such as a backup from before an upgrade. Its revision shows that.
    """
    try:
        noted = json.loads(layout.migrated.read_text())
    except FileNotFoundError:
        return False
    return bool(noted == _state(layout))


def note_migration(layout: Layout) -> None:
    """Note that the installed Airflow has migrated the database of this home."""
    if state := _state(layout):
        write_private(layout.migrated, json.dumps(state))


def _state(layout: Layout) -> dict[str, str] | None:
    """Return the versions of Airflow and of the database; None if there is no database."""
    try:
        with closing(sqlite3.connect(f"{layout.database.as_uri()}?mode=ro", uri=True)) as database:
            (revision,) = database.execute(_QUERY).fetchone()
    except sqlite3.OperationalError:
        return None
    return {"airflow": version("apache-airflow-core"), "revision": revision}
