"""When the start of Airflow may leave out the migration of its database."""

import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from scripts.airflow import migration
from scripts.airflow.embedded import MIGRATION, prepare
from scripts.airflow.errors import Interrupted
from scripts.airflow.migration import is_migrated, noted_migration
from scripts.airflow.settings import DATABASE, Layout
from scripts.airflow.signals import Signals

REVISION = "8b7d8ac23d9d"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A home with a database that was just migrated."""
    layout = Layout(tmp_path, tmp_path / "workspace", tmp_path / "dags")
    with noted_migration(layout):
        create(layout.database, REVISION)
    return layout


def create(database: Path, revision: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num)")
        connection.execute("INSERT INTO alembic_version VALUES (?)", [revision])


def test_a_migrated_database_is_not_migrated_again(layout: Layout):
    assert is_migrated(layout)


def test_a_fresh_home_is_migrated(tmp_path: Path):
    layout = Layout(tmp_path, tmp_path, tmp_path)
    assert not is_migrated(layout)
    assert not layout.database.exists()


def replace(layout: Layout) -> None:
    layout.database.unlink()
    create(layout.database, "1a2b3c4d5e6f")


def empty(layout: Layout) -> None:
    layout.database.write_bytes(b"")


def move(layout: Layout) -> None:
    shutil.move(layout.database, layout.home / "elsewhere.db")


def damage(layout: Layout) -> None:
    layout.database.write_bytes(b"no database")


def forget_revision(layout: Layout) -> None:
    with closing(sqlite3.connect(layout.database)) as connection, connection:
        connection.execute("DELETE FROM alembic_version")


def damage_note(layout: Layout) -> None:
    layout.migrated.write_bytes(b'{"airflow": "\xff')


@pytest.mark.parametrize("change", [replace, empty, move, damage, forget_revision, damage_note])
def test_another_database_or_note_is_migrated(layout: Layout, change: Callable[[Layout], None]):
    change(layout)
    assert not is_migrated(layout)


def test_another_airflow_migrates_again(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(migration, "version", lambda _: "99.0")
    assert not is_migrated(layout)


def test_a_migration_that_was_stopped_is_started_again(layout: Layout):
    layout.database.unlink()
    assert starts_migration(layout, {})
    create(layout.database, REVISION)  # as the stopped process may have done, before it made the pools
    assert not is_migrated(layout)


def test_a_database_of_the_settings_is_always_migrated(layout: Layout):
    assert not starts_migration(layout, {})
    assert starts_migration(layout, {DATABASE: f"sqlite:///{layout.home / 'other.db'}"})
    assert is_migrated(layout)


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
