"""When the start of Airflow may leave out the migration of its database."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from scripts.airflow import migration
from scripts.airflow.migration import is_migrated, note_migration
from scripts.airflow.settings import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A home with a database that was just migrated."""
    layout = Layout(tmp_path, tmp_path / "workspace", tmp_path / "dags")
    create(layout.database, "8b7d8ac23d9d")
    note_migration(layout)
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
    note_migration(layout)  # as after a migration of a database that is not in this home
    assert not is_migrated(layout)
    assert not layout.database.exists()


def replace(layout: Layout) -> None:
    layout.database.unlink()
    create(layout.database, "1a2b3c4d5e6f")


def empty(layout: Layout) -> None:
    layout.database.write_bytes(b"")


def move(layout: Layout) -> None:
    shutil.move(layout.database, layout.home / "elsewhere.db")


@pytest.mark.parametrize("change", [replace, empty, move])
def test_another_database_is_migrated(layout: Layout, change: Callable[[Layout], None]):
    change(layout)
    assert not is_migrated(layout)


def test_another_airflow_migrates_again(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(migration, "version", lambda _: "99.0")
    assert not is_migrated(layout)
