"""Another Airflow goes on with the runs of the one that was stopped: all of them complete, and none does so twice."""

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from pipeline.dataset.manifest import load
from pipeline.dataset.verify import verify
from scripts.airflow.settings import ROOT
from tests.scripts.commands import read_until
from tests.scripts.live import Live, add_dates, backfill_of, first_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

USUAL = ROOT / ".venv" / "bin" / "python"
"""Python of the environment of `make env`. In the group `airflow34`, this test has the newer Airflow."""
DATES = first_of("2026-05", 6)
IMAGES = 8


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """An Airflow of the usual environment, which has made its database itself."""
    live = Live(tmp_path)
    (live.home / "airflow.db").unlink()
    live.python = str(USUAL)
    code, output = live.command("up")
    try:
        assert code == 0, output
        yield live
    finally:
        live.command("down")


def runs_of(live: Live) -> list[tuple[str, str]]:
    """Return the date and the state of each run of the backfill."""
    query = "SELECT date(logical_date), state FROM dag_run WHERE dag_id = 'image_dataset' ORDER BY logical_date"
    with closing(sqlite3.connect(live.home / "airflow.db", timeout=60)) as database:
        return database.execute(query).fetchall()


def test_a_backfill_goes_on_in_a_newer_airflow(live: Live):
    source = live.folder / "photos"
    add_dates(source, DATES)
    with live.start(*backfill_of(source, DATES)) as command:
        read_until(command, f"{DATES[0]}     done")
        assert live.command("down")[0] == 0
        assert "has ended unexpectedly" in command.communicate()[0]
    states = [state for _, state in runs_of(live)]
    assert {"running", "success"} <= {*states}, states

    live.python = sys.executable
    code, output = live.command("up")
    assert code == 0, output
    assert httpx.get(f"{live.url}/api/v2/version").json()["version"] == version("apache-airflow-core")
    code, output = live.backfill(source, DATES)
    assert code == 0, output
    assert "This backfill is already running: following it" in output
    assert f"{len(DATES)} of {len(DATES)} dates run\n" in output

    live.settle()
    assert runs_of(live) == [(date, "success") for date in DATES]
    folders = [path.parent for path in live.workspace.glob("datasets/photos/*/dataset.json")]
    assert {folder.name: verify(folder)["records"] for folder in folders} == {folder.name: IMAGES for folder in folders}
    assert sorted(Path(load(folder).source["uri"]).name for folder in folders) == DATES
    [run] = live.workspace.glob("runs/retrain-photos/*/run.json")  # one training
    window = load(Path(json.loads(run.read_text())["dataset"]))
    assert sorted(window.window) == DATES
