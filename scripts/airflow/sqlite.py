"""How Airflow's processes connect to SQLite."""

import sqlite3
from collections.abc import Mapping
from typing import Any, Self

_BUSY_TIMEOUT_S = 60


class Connection(sqlite3.Connection):
    """Starts a transaction before a savepoint, and waits for other writers when it does.

    Python's own starts none there. A savepoint is then a transaction that begins by reading: it fails at once with
    "database is locked" where another process writes before it does, and what it wrote is committed when it is
    released, so that a scheduler sees the first runs of a backfill whose last one is never made.
    """

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor that does so."""
        return super().cursor(factory or _Cursor)


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = ()) -> Self:
        if sql.startswith("SAVEPOINT") and not self.connection.in_transaction:
            super().execute("BEGIN IMMEDIATE")
        return super().execute(sql, parameters)


CONNECT_ARGS: Mapping[str, Any] = {"factory": Connection, "timeout": _BUSY_TIMEOUT_S}
"""Arguments of `sqlite3.connect`, which Airflow imports by this name."""
