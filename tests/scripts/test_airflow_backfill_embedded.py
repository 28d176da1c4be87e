"""`backfill` with failures, an interruption and tables whose columns differ, in the real Airflow of `up`."""

import json
import os
import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pipeline.dataset.manifest import load
from pipeline.runs.run import load_result
from tests.scripts.commands import read_until
from tests.scripts.live import Live, add_dates, backfill_of, first_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

DATES = first_of("2026-01", 4)
LACKING = DATES[2]
"""The date whose table lacks the column `color`."""
ROWS = 150


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


def test_a_failed_date_is_named_and_only_it_is_run_again(live: Live) -> None:
    live.settle()
    source, dates = live.folder / "images", first_of("2026-02", 2)
    add_dates(source, dates[:1])
    code, output = live.backfill(source, dates)
    assert code == 1, output
    assert "2 of 2 dates run, 1 of them failed" in output
    assert "2026-02-02: extract failed: SettingsError: source_uri must be a folder or list that exists" in output
    assert output.count("  new\n") == 1
    assert "Model:" in output

    add_dates(source, dates[1:])
    code, output = live.backfill(source, dates)
    assert code == 0, output
    assert "1 of 2 dates run, 1 skipped" in output
    assert output.count("skipped: already made") == 1
    assert "Model:" in output

    code, output = live.backfill(source, dates, "--reprocess", "all")
    assert code == 0, output
    assert output.count("already complete") == 2
    assert "was already trained on" in output


def test_an_interrupted_backfill_leaves_no_unfinished_run(live: Live) -> None:
    live.settle()
    source, dates = live.folder / "others", first_of("2026-03", 3)
    add_dates(source, dates)
    with live.start(*backfill_of(source, dates)) as process:
        read_until(process, "2026-03-01     running")
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate()[0]
    assert process.returncode == 130, output
    assert "The backfill is cancelled" in output
    # Another backfill can start at once, because no run is left.
    code, output = live.backfill(source, dates, "--reprocess", "all")
    assert code == 0, output
    assert "3 of 3 dates run" in output
    assert "Model:" in output
    assert "/models/others" in output or "others" in output.partition("Model:")[2]
    assert "already running" not in output


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Keep Airflow's processes from writing to their database."""
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def test_a_backfill_waits_for_another_writer_of_the_database(live: Live) -> None:
    live.settle()
    source, dates = live.folder / "waiting", first_of("2026-04", 2)
    add_dates(source, dates)
    with live.start(*backfill_of(source, dates)) as process:
        output = ""
        for state in ("Using the Airflow", "Backfilling"):
            output += read_until(process, state)
            with locked(live.home / "airflow.db"):
                output += read_until(process, "trying again for up to")
        output += process.communicate()[0]
    assert process.returncode == 0, output
    assert "2 of 2 dates run\n" in output
    assert "Traceback" not in output
    assert "OperationalError" not in output


def test_tables_of_which_one_lacks_a_column_become_one_training(live: Live) -> None:
    live.settle()
    tables = live.folder / "sales"
    _write_tables(tables)
    params = json.dumps({"on_columns": "continue"})
    command = (
        *("backfill", "--from", DATES[0], "--to", DATES[-1], "--params", params),
        *("--table", f"{tables}/{{date}}.csv", "--label", "label"),
    )
    code, output = live.command(*command)
    assert code == 0, output
    assert f"{len(DATES)} of {len(DATES)} dates run\n" in output
    assert output.count("  new\n") == len(DATES)

    [run] = (live.workspace / "runs" / "retrain-sales").glob("*/run.json")  # one training
    window = load(Path(json.loads(run.read_text())["dataset"]))
    assert sorted(window.window) == DATES
    assert sum(split.examples for split in window.splits.values()) == window.table["rows"] == len(DATES) * ROWS
    missing = {column["name"]: column["missing"] for column in window.table["columns"]}
    assert missing == {"number": 0, "color": ROWS, "label": 0}
    # Two epochs rank the labels by the color, and without it, the area would be about one half. They are too few for
    # probabilities on the right side of one half.
    assert load_result(run.parent)["metrics"]["val_auc"] > 0.75
    evaluation = json.loads((run.parent / "evaluation.json").read_text())
    assert evaluation["examples"] == window.splits["validation"].examples > 0
    assert "color" in (run.parent / "report.html").read_text()
    assert output.count("\nReport: ") == 1
    assert f"{run.parent}/model.keras" in output

    code, output = live.command(*command, "--reprocess", "all")
    assert code == 0, output
    assert output.count("already complete") == len(DATES)
    assert "was already trained on" in output
