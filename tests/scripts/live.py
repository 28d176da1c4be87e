"""An Airflow that `up` started, for tests that only start runs in it."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from scripts.airflow.client import Client
from scripts.airflow.keys import load_keys
from scripts.airflow.record import read_record
from scripts.airflow.results import task_result
from scripts.airflow.settings import url_of
from tests.conftest import jpeg
from tests.scripts.commands import Commands
from tests.waiting import until

UNDER_WAY = """
SELECT (SELECT count(*) FROM asset_dag_run_queue)
     + (SELECT count(*) FROM dag_run WHERE state IN ('queued', 'running'))
"""
TINY = """
epochs = 2
image_size = 32
batch_size = 4
window = 10
num_shards = 1
validation_fraction = 0.25
"""
"""The settings of all runs. With the 10 training shards of the default, each date has twice as many tasks."""


class Live(Commands):
    """Commands that use the same Airflow and workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = folder / "settings.toml"
        settings.write_text(TINY)
        super().__init__(folder, {"TENFOLD_SETTINGS": str(settings), "TENFOLD_RETRAIN_POLL_SECONDS": "5"})
        (self.workspace / "samples").mkdir(parents=True)  # `up` draws no sample images if the folder exists

    @property
    def url(self) -> str:
        """Address of this Airflow."""
        record = read_record(self.home)
        assert record is not None
        return url_of(record.port)

    @property
    def password(self) -> str:
        """The password of its user."""
        return load_keys(self.home / "keys.json").password

    def run_of(self, dag_id: str, training: Path) -> str:
        """Return the id of the run of a DAG that trained in a folder."""
        with closing(Client(self.url, self.password, dag_id)) as client:
            runs = [run["dag_run_id"] for run in client.runs({"state": ["success"]})]
            [found] = [run for run in runs if task_result(client, run, "train").get("run") == str(training)]
        return found

    def backfill(self, source: Path, dates: Sequence[str], *arguments: str) -> tuple[int, str]:
        """Run a backfill of consecutive dates."""
        return self.command(*backfill_of(source, dates), *arguments)

    def settle(self) -> None:
        """Wait until no run of any DAG is queued or running, and no asset event waits for a run.

        A run of `retrain` that begins on the events of two dataset names fails, because it can train only on one.
        """
        until(lambda: not self._ask(UNDER_WAY))

    def _ask(self, query: str) -> int:
        """Return the number that the database of this Airflow answers."""
        with closing(sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True, timeout=30)) as database:
            return int(database.execute(query).fetchone()[0])


def first_of(month: str, count: int) -> list[str]:
    """Return the first dates of a month. A backfill skips dates that an earlier test has run, so each needs its own."""
    return [f"{month}-{day:02}" for day in range(1, count + 1)]


def backfill_of(source: Path, dates: Sequence[str]) -> list[str]:
    """Return the arguments of a backfill of consecutive dates."""
    return ["backfill", "--from", dates[0], "--to", dates[-1], "--source", f"{source}/{{date}}"]


def add_images(folder: Path, count: int, seed: int = 0) -> None:
    """Write small images of two classes. Each seed gives other images."""
    for number in range(count):
        path = folder / ("cats" if number % 2 else "dogs") / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(1000 * seed + number))


def add_dates(source: Path, dates: Sequence[str]) -> None:
    """Write eight images of each date."""
    for date in dates:
        add_images(source / date, 8, seed=int(date[-2:]))
