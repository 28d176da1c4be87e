import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.airflow.sqlite import CONNECT_ARGS


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "airflow.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE run (id)")
    connection.close()
    return path


def test_a_savepoint_blocks_other_writers_until_its_commit(database: Path) -> None:
    ours = sqlite3.connect(database, **CONNECT_ARGS)
    other = sqlite3.connect(database, timeout=0)
    cursor = ours.cursor()
    cursor.execute("SAVEPOINT one")
    cursor.execute("SELECT count(*) FROM run").fetchone()
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        other.execute("INSERT INTO run VALUES (1)")
    cursor.execute("INSERT INTO run VALUES (2)")  # This fails at once if the other writer came first.
    ours.commit()
    assert other.execute("SELECT id FROM run").fetchall() == [(2,)]
    ours.close()
    other.close()


def test_a_released_savepoint_is_not_visible_before_the_commit(database: Path) -> None:
    ours = sqlite3.connect(database, **CONNECT_ARGS)
    cursor = ours.cursor()
    for statement in ("SAVEPOINT one", "INSERT INTO run VALUES (1)", "RELEASE SAVEPOINT one"):
        cursor.execute(statement)
    other = sqlite3.connect(database)
    assert other.execute("SELECT id FROM run").fetchall() == []
    ours.rollback()
    assert cursor.execute("SELECT id FROM run").fetchall() == []
    ours.close()
    other.close()


def test_a_commit_does_not_wait_for_the_disk(database: Path) -> None:
    normal = 1
    with closing(sqlite3.connect(database, **CONNECT_ARGS)) as ours:
        assert ours.execute("PRAGMA synchronous").fetchone() == (normal,)
