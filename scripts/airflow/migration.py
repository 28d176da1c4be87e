"""Note that Airflow has migrated its database. Asking Airflow again at each start would take 3 s."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
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
    except (FileNotFoundError, ValueError):
        return False
    state = _state(layout)
    return bool(state and noted == state)


@contextmanager
def noted_migration(layout: Layout) -> Iterator[None]:
    """Note at the end of the block, which migrates the database of this home, that the installed Airflow did so."""
    # A migration that is killed may have written the revision already, but not all that comes after it.
    layout.migrated.unlink(missing_ok=True)
    yield
    write_private(layout.migrated, json.dumps(_state(layout)))


def _state(layout: Layout) -> dict[str, str] | None:
    """Return the versions of Airflow and of the database; None if the database is missing, empty or damaged."""
    try:
        with closing(sqlite3.connect(f"{layout.database.as_uri()}?mode=ro", uri=True)) as database:
            row = database.execute(_QUERY).fetchone()
    except sqlite3.DatabaseError:
        return None
    return {"airflow": version("apache-airflow-core"), "revision": row[0]} if row else None
