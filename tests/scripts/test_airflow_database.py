"""How Airflow's processes share their database, and when a start of Airflow may leave out its migration."""

import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from scripts.airflow import database as database_module
from scripts.airflow.database import CONNECT_ARGS, forget_migration, is_migrated, note_migration
from scripts.airflow.embedded import MIGRATION, prepare
from scripts.airflow.errors import Interrupted
from scripts.airflow.settings import DATABASE, Layout
from scripts.airflow.signals import Signals


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


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A home with a database that was just migrated."""
    layout = Layout(tmp_path, tmp_path / "workspace", tmp_path / "dags")
    create(layout.database)
    note_migration(layout.database)
    return layout


def create(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num)")
        connection.execute("INSERT INTO alembic_version VALUES ('a1b2')")


def test_a_migrated_database_is_not_migrated_again(layout: Layout):
    assert is_migrated(layout.database)


def test_a_fresh_home_is_migrated(tmp_path: Path):
    assert not is_migrated(tmp_path / "airflow.db")
    assert not (tmp_path / "airflow.db").exists()


def replace(database: Path) -> None:
    database.unlink()
    create(database)


def empty(database: Path) -> None:
    database.write_bytes(b"")


def move(database: Path) -> None:
    shutil.move(database, database.with_name("elsewhere.db"))


def damage(database: Path) -> None:
    database.write_bytes(b"no database")


def move_back(database: Path) -> None:
    """Do what `airflow db downgrade` does to the revision."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'a1b1'")


@pytest.mark.parametrize("change", [replace, empty, move, damage, move_back])
def test_another_database_is_migrated(layout: Layout, change: Callable[[Path], None]):
    change(layout.database)
    assert not is_migrated(layout.database)


def test_a_killed_migration_leaves_no_note_and_a_damaged_database_is_left_to_the_migration(layout: Layout):
    forget_migration(layout.database)
    assert not is_migrated(layout.database)
    damage(layout.database)
    forget_migration(layout.database)
    assert not is_migrated(layout.database)


def test_a_backup_from_before_an_upgrade_is_migrated(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(layout.database)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    monkeypatch.setattr(database_module, "version", lambda _: "99.0")
    assert not is_migrated(layout.database)
    note_migration(layout.database)
    assert is_migrated(layout.database)
    assert not is_migrated(backup)
    monkeypatch.undo()
    assert is_migrated(backup)


def test_a_migration_that_was_stopped_is_started_again(layout: Layout):
    layout.database.unlink()
    assert starts_migration(layout, {})
    create(layout.database)  # as the stopped process may have done, before it made the pools
    assert not is_migrated(layout.database)


def test_a_database_of_the_settings_is_always_migrated(layout: Layout):
    assert not starts_migration(layout, {})
    assert starts_migration(layout, {DATABASE: f"sqlite:///{layout.home / 'other.db'}"})
    assert is_migrated(layout.database)


def starts_migration(layout: Layout, settings: dict[str, str]) -> bool:
    """Return whether the start of an Airflow migrates its database. The migration is stopped at once."""
    airflow = prepare(layout, background=False, settings=settings)
    with Signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        try:
            airflow.migrate(signals)
        except Interrupted:
            return MIGRATION in airflow.record.processes
        finally:
            airflow.stop()
    return False
