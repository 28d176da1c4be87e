"""`backfill` in the real Airflow of `up`, with the real DAGs on tiny images and tables."""

import json
import os
import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.dataset.manifest import load
from pipeline.runs.run import load_result
from tests.conftest import jpeg
from tests.scripts.commands import Commands
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

UNDER_WAY = """
SELECT (SELECT count(*) FROM asset_dag_run_queue)
     + (SELECT count(*) FROM dag_run WHERE state IN ('queued', 'running'))
"""


class Up(Commands):
    """Commands with their own Airflow and workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = folder / "settings.toml"
        # With the 10 training shards of the default, each date has twice as many tasks.
        settings.write_text("epochs = 1\nimage_size = 32\nbatch_size = 4\nwindow = 10\nnum_shards = 4\n")
        super().__init__(
            {
                "TENFOLD_HOME": str(folder / "home"),
                "TENFOLD_WORKSPACE": str(folder / "workspace"),
                "TENFOLD_SETTINGS": str(settings),
                "TENFOLD_RETRAIN_POLL_SECONDS": "5",
            }
        )

    def backfill(self, source: Path, *arguments: str) -> tuple[int, str]:
        """Run a backfill of the first three dates of 2026."""
        return self.command(*_three_dates(source), *arguments)

    def settle(self) -> None:
        """Wait until no run of `retrain` is under way and no asset event waits for one.

        A run that begins on the events of two dataset names fails, because it can only train on one of them.
        """
        until(lambda: not self._ask(UNDER_WAY))

    def _ask(self, query: str) -> int:
        """Return the number that the database of this Airflow answers."""
        with closing(sqlite3.connect(f"file:{self.folder}/home/airflow.db?mode=ro", uri=True, timeout=30)) as database:
            return int(database.execute(query).fetchone()[0])

    def add_date(self, source: Path, day: int) -> None:
        """Write eight images of one date."""
        for number in range(8):
            folder = source / f"2026-01-{day:02}" / ("cats" if number % 2 else "dogs")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.jpg").write_bytes(jpeg(100 * day + number))


DATES = [f"2026-01-{day:02}" for day in range(1, 11)]
LACKING = DATES[3]
"""The date whose table lacks the column `color`."""
ROWS = 60


def _write_tables(folder: Path) -> None:
    """Write a table for each date. In all of them, the color alone decides the label."""
    generator = random.Random(0)
    folder.mkdir()
    for date in DATES:
        rows = [{"number": generator.random(), "color": generator.choice(["red", "blue"])} for _ in range(ROWS)]
        names = ["number", *(["color"] if date != LACKING else []), "label"]
        labeled = [{**row, "label": "yes" if row["color"] == "red" else "no"} for row in rows]
        lines = [",".join(names), *(",".join(str(row[name]) for name in names) for row in labeled)]
        (folder / f"{date}.csv").write_text("\n".join(lines) + "\n")


def _three_dates(source: Path) -> list[str]:
    return ["backfill", "--from", "2026-01-01", "--to", "2026-01-03", "--source", f"{source}/{{date}}"]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = Up(tmp_path_factory.mktemp("up"))
    code, output = up.command("up")
    try:
        assert code == 0, output
        yield up
    finally:
        up.command("down")


def test_a_failed_date_is_named_and_only_it_is_run_again(up: Up) -> None:
    source = up.folder / "images"
    for day in (1, 2):
        up.add_date(source, day)
    code, output = up.backfill(source)
    assert code == 1, output
    assert "3 of 3 dates run, 1 of them failed" in output
    assert "2026-01-03: extract failed: SettingsError: source_uri must be a folder or list that exists" in output
    assert output.count("  new\n") == 2
    assert "Model:" in output

    up.add_date(source, 3)
    code, output = up.backfill(source)
    assert code == 0, output
    assert "1 of 3 dates run, 2 skipped" in output
    assert output.count("skipped: already made") == 2
    assert "Model:" in output

    code, output = up.backfill(source, "--reprocess", "all")
    assert code == 0, output
    assert output.count("already complete") == 3
    assert "was already trained on" in output


def test_an_interrupted_backfill_leaves_no_unfinished_run(up: Up) -> None:
    up.settle()
    source, again = up.folder / "others", ("--reprocess", "all")
    for day in (1, 2, 3):
        up.add_date(source, day)
    with up.start(*_three_dates(source), *again) as process:
        assert process.stdout is not None
        assert any("2026-01-01     running" in line for line in process.stdout)
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate()[0]
    assert process.returncode == 130, output
    assert "The backfill is cancelled" in output
    # Another backfill can start at once, because no run is left.
    code, output = up.backfill(source, *again)
    assert code == 0, output
    assert "3 of 3 dates run" in output
    assert "Model:" in output
    assert "/models/others" in output or "others" in output.partition("Model:")[2]
    assert "already running" not in output


def test_ten_tables_of_which_one_lacks_a_column_become_one_training(up: Up) -> None:
    up.settle()
    tables = up.folder / "sales"
    _write_tables(tables)
    params = json.dumps({"on_columns": "continue"})
    code, output = up.command(
        *("backfill", "--from", DATES[0], "--to", DATES[-1], "--params", params),
        *("--table", f"{tables}/{{date}}.csv", "--label", "label"),
    )
    assert code == 0, output
    assert "10 of 10 dates run\n" in output
    assert output.count("  new\n") == 10

    [run] = (up.folder / "workspace" / "runs" / "retrain-sales").glob("*/run.json")  # one training
    window = load(Path(json.loads(run.read_text())["dataset"]))
    assert sorted(window.window) == DATES
    assert sum(split.examples for split in window.splits.values()) == window.table["rows"] == len(DATES) * ROWS
    missing = {column["name"]: column["missing"] for column in window.table["columns"]}
    assert missing == {"number": 0, "color": ROWS, "label": 0}
    # Without the color, no more than about half of the labels can be predicted.
    assert load_result(run.parent)["metrics"]["val_accuracy"] > 0.8
    evaluation = json.loads((run.parent / "evaluation.json").read_text())
    assert evaluation["examples"] == window.splits["validation"].examples > 0
    assert "color" in (run.parent / "report.html").read_text()
    assert output.count("\nReport: ") == 1
    assert f"{run.parent}/model.keras" in output
