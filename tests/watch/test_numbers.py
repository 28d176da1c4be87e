"""A quantity has the same value on the tab, in the report, in the comparison and in the record."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from pipeline.monitor import read
from pipeline.monitor.diagnosis import percent, summarize, three_digits
from pipeline.monitor.row import Row
from pipeline.monitor.verdict import diagnose_run, numbers
from pipeline.report import page
from pipeline.report.compare import Comparison
from pipeline.report.compare_words import cells
from pipeline.report.compared_run import compared
from pipeline.runs.recorded_run import load_recorded_run
from pipeline.watch.page_data import page_data
from pipeline.watch.view import load_view
from tests.report.rich import Records
from tests.report.test_report import describe

EPOCHS, STEPS, BATCH = 8, 9, 32


def training(folder: Path, waits_ms: tuple[float, ...] = (0.0276,), epochs: int = EPOCHS) -> Path:
    """Write a complete training with the given mean wait of each server, and return its folder.

    Its epochs end within intervals of the overview, and with a batch of 8 examples.
    """
    describe(folder)
    described = json.loads((folder / "run.json").read_text())
    settings = {**described["settings"], "epochs": epochs, "batch_size": BATCH}
    (folder / "run.json").write_text(json.dumps({**described, "settings": settings, "steps_per_epoch": STEPS}))
    for server, wait_ms in enumerate(waits_ms):
        write(Records(folder if not server else folder / "servers" / str(server)), wait_ms, epochs, server == 0)
    verdict = diagnose_run(folder)
    result = {"metrics": {"val_accuracy": 0.5}, "verdict": verdict.sentence, "limit": verdict.limit.value}
    (folder / "result.json").write_text(json.dumps({**result, **numbers(verdict)}))
    return folder


def write(sink: Records, wait_ms: float, epochs: int, is_chief: bool) -> None:
    random = np.random.default_rng(1)
    now, step = 1e9, 0
    for epoch in range(1, epochs + 1):
        for batch in range(STEPS):
            step += 1
            times = {
                "input/wait_ms": wait_ms * random.uniform(0.5, 1.5),
                "step/compute_ms": 3000.0 if step == 1 else random.uniform(50.0, 70.0),
                "step/host_ms": 0.3,
                "step/checkpoint_ms": 40.0 * epoch * (batch == 3),
            }
            now += sum(times.values()) / 1000
            examples = 8 if batch == STEPS - 1 else BATCH
            whole = {"step/time_ms": sum(times.values()), "input/examples": examples, "epoch": epoch}
            sink.write(Row("batches", now, step, {**times, **whole, "first": step == 1}))
            sink.write(Row("samples", now, step, {"sys/cpu_pct": 50.0, "sys/cores": 2.0}))
        now += 0.1
        values = {"loss": 1.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.5, "epoch/validation_s": 0.1}
        if is_chief:
            sink.write(Row("epochs", now, epoch, values))
    sink.close()


def steady(record: Path) -> pandas.DataFrame:
    """Return the rows of the steady steps, as a user would select them from the files."""
    batches = read(record, "batches")
    return batches[batches["epoch"] == batches["epoch"].shift()]


def shown(folder: Path) -> dict[str, Any]:
    """Return the status that the tab shows."""
    return page_data(folder, is_over=True)["status"]


def test_wait_step_time_and_speed_are_the_same_on_all_pages(tmp_path: Path) -> None:
    folder = training(tmp_path / "run")
    rows = steady(folder / "record")
    wait, step = three_digits(rows["input/wait_ms"].mean()), three_digits(rows["step/time_ms"].mean())
    speed = 1000 * rows["input/examples"].sum() / rows["step/time_ms"].sum()
    share = percent(rows["input/wait_ms"].sum() / rows["step/time_ms"].sum())
    tab, run = shown(folder), load_recorded_run(folder)
    assert f"{share} of the time was waiting for data ({wait} of {step} ms a step)" in tab["sentences"]["waiting"]
    assert [row[1] for row in tab["tables"]["waiting"]["rows"]] == [wait, step]
    tiles = dict(tab["tiles"])
    assert (tiles["data wait"], tiles["step time"], tiles["examples per second"]) == (
        share, f"{step} ms", three_digits(speed),
    )  # fmt: skip
    beside = {row.name: cells(row)[1] for row in Comparison([compared(run, None)] * 2).rows}
    assert (beside["data wait of a step"], beside["time of a step"]) == (f"{wait} ms", f"{step} ms")
    assert beside["examples a second"] == three_digits(speed)
    in_report = dict(page.tiles(run, summarize(run.judged)))
    assert {name: in_report[name] for name in ("data wait", "step time", "examples per second")} == {
        name: tiles[name] for name in ("data wait", "step time", "examples per second")
    }
    assert [row[1] for row in page.timing(run, summarize(run.judged)).rows[:2]] == [f"{step} ms", f"{wait} ms"]


def test_tab_and_report_leave_the_first_step_out_of_a_training_that_is_too_short_for_a_verdict(tmp_path: Path) -> None:
    folder = training(tmp_path / "run", epochs=1)
    tab, run = shown(folder), load_recorded_run(folder)
    step = f"{three_digits(steady(folder / 'record')['step/time_ms'].mean())} ms"
    in_report = dict(page.tiles(run, summarize(run.judged)))
    tiles = dict(tab["tiles"])
    assert tiles["step time"] == step
    for name in ("data wait", "step time", "examples per second"):
        assert tiles[name] == in_report[name]
    assert f" of {step} a step)" in tab["sentences"]["waiting"]


def test_the_seconds_of_each_epoch_are_the_sums_of_its_steps(tmp_path: Path) -> None:
    """An interval of the overview takes two seconds, and an epoch half a second."""
    folder = training(tmp_path / "run")
    batches = read(folder / "record", "batches")
    by_epoch = batches.groupby("epoch")[["input/wait_ms", "step/compute_ms", "step/checkpoint_ms"]].sum() / 1000
    drawn = page_data(folder, is_over=True)["columns"]["spent"]
    for name, column in (
        ("waiting for data", "input/wait_ms"), ("computing", "step/compute_ms"), ("checkpoints", "step/checkpoint_ms"),
    ):  # fmt: skip
        assert drawn[name] == pytest.approx(by_epoch[column].tolist(), rel=1e-3), name


def test_the_smaller_last_batch_is_not_counted_as_a_full_one(tmp_path: Path) -> None:
    folder = training(tmp_path / "run")
    means = load_view(folder, STEPS).batches.means
    rates = [rate for rate in page_data(folder, is_over=True)["columns"]["batches"]["rate"] if rate is not None]
    seconds = means["steps"] * means["step/time_ms"] / 1000
    assert sum(rates * seconds) == pytest.approx(read(folder / "record", "batches")["input/examples"].sum(), rel=1e-3)


def test_all_pages_show_the_server_that_waits_most(tmp_path: Path) -> None:
    folder = training(tmp_path / "run", waits_ms=(1.0, 20.0, 5.0))
    wait = three_digits(steady(folder / "servers" / "1" / "record")["input/wait_ms"].mean())
    tab, run = shown(folder), load_recorded_run(folder)
    assert f"({wait} of " in tab["sentences"]["waiting"]
    assert page.timing(run, summarize(run.judged)).rows[1][1] == f"{wait} ms"
    beside = {row.name: cells(row)[1] for row in Comparison([compared(run, None)] * 2).rows}
    assert beside["data wait of a step"] == f"{wait} ms"


def test_the_tab_shows_the_processor_usage_of_the_verdict(tmp_path: Path) -> None:
    """The verdict excludes the first steps, so the number must too."""
    folder = training(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    assert (result["cpu_pct"], result["gpu_pct"]) == (50.0, None)
    (folder / "result.json").write_text(json.dumps({**result, "cpu_pct": 41.0}))
    assert dict(shown(folder)["tiles"])["processor busy"] == "41%"
    (folder / "result.json").write_text(json.dumps({**result, "gpu_pct": 87.0}))
    assert dict(shown(folder)["tiles"])["GPU busy"] == "87%"


def test_the_figure_on_the_test_split_is_beside_the_best_validation(tmp_path: Path) -> None:
    folder = training(tmp_path / "run")
    run = load_recorded_run(folder)
    for tiles in (shown(folder)["tiles"], page.tiles(run, summarize(run.judged))):
        assert "test accuracy" not in dict(tiles)
    result = json.loads((folder / "result.json").read_text())
    judged = {"split": "test", "metrics": {**result["metrics"], "test_accuracy": 0.4}}
    (folder / "result.json").write_text(json.dumps({**result, **judged}))
    run = load_recorded_run(folder)
    for tiles in (shown(folder)["tiles"], page.tiles(run, summarize(run.judged))):
        named = dict(tiles)
        assert (named["best validation accuracy"], named["test accuracy"]) == ("50.0%", "40.0%")
