"""The SQLite database of Airflow: how Airflow's processes connect to it, and whether it is migrated already."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self
from zlib import crc32

_BUSY_TIMEOUT_S = 60
"""A writer waits this many seconds for other writers."""


class Connection(sqlite3.Connection):
    """Starts a transaction before a savepoint, and waits for other writers to do so.

    Python's own connection starts none there. The savepoint is then a transaction that begins by reading. If another
    process writes before it does, it fails at once with "database is locked". Its changes are committed when it is
    released, so a scheduler would see the first runs of a backfill whose last run is never created.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Airflow keeps a write-ahead log. In it, a commit need not wait for the disk: a loss of power may undo the last
        # commits, but never damages the database. On a busy disk, each wait lasts seconds, and other writers wait, too.
        self.execute("PRAGMA synchronous=NORMAL")

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor that does so."""
        return super().cursor(factory or _Cursor)


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = ()) -> Self:
        if sql.startswith("SAVEPOINT") and not self.connection.in_transaction:
            # IMMEDIATE takes the write lock at once, for which SQLite waits. A later change from reading to writing
            # would fail.
            super().execute("BEGIN IMMEDIATE")
        return super().execute(sql, parameters)


CONNECT_ARGS: Mapping[str, Any] = {"factory": Connection, "timeout": _BUSY_TIMEOUT_S}
"""Arguments of `sqlite3.connect`, which Airflow imports by this name."""


def is_migrated(database: Path) -> bool:
    """Return whether the installed Airflow has migrated a database. To ask Airflow would take 3 s."""
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            return bool(connection.execute("PRAGMA user_version").fetchone() == (_mark(connection),))
    except sqlite3.DatabaseError:  # It is missing, empty or damaged.
        return False


def forget_migration(database: Path) -> None:
    """Remove the note, so that a migration that is killed leaves none. Of a damaged file, Airflow says more."""
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 0")


def note_migration(database: Path) -> None:
    """Note in a database that the installed Airflow has migrated it. Call `forget_migration` before it does.

    The note is a number that SQLite keeps for applications. It is part of the database, also of a backup.
    """
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA user_version = {_mark(connection)}")


def _mark(connection: sqlite3.Connection) -> int:
    """Return a number for the installed Airflow and the revision of a database, in the 31 bits that SQLite keeps.

    The revision is in it, because a person may downgrade the database without another Airflow being installed.
    """
    revision = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return crc32(f"{version('apache-airflow-core')} {revision}".encode()) >> 1
