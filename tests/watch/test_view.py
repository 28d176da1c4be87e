"""The figures and texts of the page of a training."""

import json
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from pipeline.config.automatic import training_settings
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.gpu_columns import busy_pct
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.report.utilization import MAX_LINES
from pipeline.runs.changes import BUILD, CONTINUES, DATASET, Change
from pipeline.runs.files import CHANGES, RUN_FORMAT
from pipeline.runs.offers import Offer, save_offers
from pipeline.tuning.stages import StageCosts, save_stages
from pipeline.watch.heartbeats import Heartbeats
from pipeline.watch.page_data import page_data, span_of
from pipeline.watch.queue_wait import TimesLeft
from pipeline.watch.status import MAX_VERDICT_AGE_S, _per_step, duration, exact_duration, last_time
from pipeline.watch.view import _by_epoch, drawable, load_view
from tests.report.rich import SERVERS, Records, rich_run

EPOCHS, STEPS = 6, 60


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = rich_run(tmp_path / "run", epochs=EPOCHS, steps=STEPS)
    describe(folder, epochs=EPOCHS)
    (folder / "result.json").unlink(missing_ok=True)
    return folder


def describe(folder: Path, epochs: int) -> None:
    described = json.loads((folder / "run.json").read_text())
    settings = {**described["settings"], "epochs": epochs, "batch_size": 32, "dataset_name": "shapes"}
    (folder / "run.json").write_text(json.dumps({**described, "steps_per_epoch": STEPS, "settings": settings}))


def status_of(run: Path, is_over: bool = False, heartbeats: Heartbeats | None = None) -> dict[str, Any]:
    return page_data(run, is_over, heartbeats=heartbeats)["status"]


def test_all_lines_have_a_column(run: Path) -> None:
    drawn = page_data(run, is_over=False)
    assert [figure["name"] for figure in drawn["figures"]] == ["waiting", "learning", "spent", "machine", "servers"]
    for figure in drawn["figures"]:
        for chart in figure["charts"]:
            assert chart["lines"], chart["title"]
            for line in chart["lines"]:
                assert line["column"] in drawn["columns"][line["source"]], line
    for name, columns in drawn["columns"].items():
        assert len({len(values) for values in columns.values()}) == 1, name
        assert {"time", "step"} < columns.keys() or name in ("ends", "spent"), name
    json.dumps(drawn, allow_nan=False)


def test_the_stages_of_the_input_are_shown_once_they_are_measured(run: Path) -> None:
    shown = page_data(run, is_over=False)["frames"]
    us = {"read": Estimate(100, 90, 110), "parse": Estimate(900, 800, 1000)}
    save_stages(run, StageCosts(us, 1e5, 64, 1.0, {"read": 120.0, "parse": 500.0}))
    drawn = page_data(run, is_over=False, shown=shown)  # Other figures than before, so the page gets all of them.
    assert [figure["name"] for figure in drawn["figures"]][:2] == ["waiting", "stages"]
    status = drawn["status"]
    assert status["sentences"]["stages"] == ("Of 1 ms of processor time per row, parsing takes 900 µs, reading 100 µs.")
    assert status["tables"]["stages"]["rows"] == [
        ["reading", "100 µs", "90 µs to 110 µs", "10%", "120 µs"],
        ["parsing", "900 µs", "800 µs to 1 ms", "90%", "500 µs"],
    ]
    [bar] = status["bars"]
    assert [(part["label"], part["ms"]) for part in bar["parts"]] == [("reading", 0.1), ("parsing", 0.9)]


def test_each_row_has_its_step(run: Path) -> None:
    drawn = page_data(run, is_over=False)
    assert drawn["steps_per_epoch"] == STEPS
    assert drawn["start"] == pytest.approx(1e12, abs=3000)
    for source in ("samples", "batches", "server 1"):
        steps = drawn["columns"][source]["step"]
        assert steps == sorted(steps)
        assert steps[-1] == EPOCHS * STEPS
    assert drawn["columns"]["epochs"]["step"] == [STEPS * epoch for epoch in range(1, EPOCHS + 1)]


def test_each_gpu_has_a_line_if_there_are_several(run: Path, tmp_path: Path) -> None:
    assert drawable(load_view(run, STEPS)).gpus == tuple(
        (server, str(gpu)) for server in range(SERVERS) for gpu in (0, 1)
    )
    [*_, chart] = [chart for figure in page_data(run, is_over=False)["figures"] for chart in figure["charts"]]
    assert (chart["title"], chart["names_idlest"]) == ("Each GPU (% busy)", True)
    assert [line["label"] for line in chart["lines"]][:3] == ["server 0, GPU 0", "server 0, GPU 1", "server 1, GPU 0"]
    sinks = Records(tmp_path)
    for second in range(60):
        gpus = {f"gpu/{gpu}/util_pct": 100.0 - gpu for gpu in range(24)}
        sinks.write(Row("samples", 1e9 + second, second, {"sys/cpu_pct": 50.0, **gpus}))
    sinks.close()
    shown = drawable(load_view(tmp_path, STEPS))
    assert (len(shown.gpus), shown.servers) == (MAX_LINES, ())
    assert {int(gpu) for _, gpu in shown.gpus} == {*range(24 - MAX_LINES, 24)}  # the idlest ones
    data = page_data(tmp_path, is_over=False)
    titles = [chart["title"] for figure in data["figures"] for chart in figure["charts"]]
    assert f"The {MAX_LINES} idlest of 24 GPUs (% busy)" in titles
    assert "server 0" in data["columns"]


def test_the_time_of_each_epoch_is_divided_into_parts(run: Path) -> None:
    spent = page_data(run, is_over=False)["columns"]["spent"]
    assert spent["epoch"] == list(range(1, EPOCHS + 1))
    assert sum(filter(None, spent["computing"])) == pytest.approx(EPOCHS * STEPS * 0.060, rel=0.02)
    assert sum(filter(None, spent["validation"])) == pytest.approx(EPOCHS * 0.55, rel=0.1)
    assert sum(filter(None, spent["callbacks"])) == pytest.approx(EPOCHS * 0.25)
    assert sum(filter(None, spent["waiting for data"])) == pytest.approx(EPOCHS * STEPS * 0.020, rel=0.15)


def test_an_interval_with_two_epochs_counts_in_both() -> None:
    pieces = _by_epoch(np.array([30, 50, 130, 120]), steps_per_epoch=40, before=0)  # 120: a new attempt repeats steps
    assert pieces.to_dict("list") == {
        "steps": [30, 10, 10, 30, 40, 10],
        "interval": [0, 1, 1, 2, 2, 2],
        "epoch": [1, 1, 2, 2, 3, 4],
    }
    assert len(_by_epoch(np.empty(0), steps_per_epoch=40, before=0)) == 0


def test_a_damaged_number_of_steps_makes_no_more_epochs_than_a_training_can_have() -> None:
    pieces = _by_epoch(np.array([10, 20, 10**9]), 1, 0)
    assert pieces["epoch"].max() == len(pieces) == 10_000


@pytest.mark.parametrize("epoch", [-1, -(10**9), 0, 10**9])
def test_a_damaged_epoch_in_the_changes_leaves_the_page_as_it_is(run: Path, epoch: int) -> None:
    expected = page_data(run, is_over=False)["columns"]["spent"]
    change = Change(CONTINUES, "x", 1.0, "a", epoch=epoch)
    (run / CHANGES).write_text(json.dumps(asdict(change)) + "\n")
    assert page_data(run, is_over=False)["columns"]["spent"] == expected


@pytest.mark.parametrize(
    ("field", "value", "refused", "is_offered"),
    [
        (BUILD, "prepare=resize, prepare_size=36", "", False),
        (BUILD, "prepare_size=36, prepare=resize", "", False),
        (BUILD, "prepare=resize, prepare_size=36", "its build has failed", True),
        (BUILD, "prepare=resize, prepare_size=64", "", True),
        (BUILD, "compression=gzip", "", True),
        (DATASET, "compression=gzip", "", False),
    ],
)
def test_a_dataset_that_is_being_built_is_not_offered(
    run: Path, field: str, value: str, refused: str, is_offered: bool
) -> None:
    described = json.loads((run / "run.json").read_text())
    settings = training_settings({"advice": "show", "epochs": EPOCHS}).model_dump()
    (run / "run.json").write_text(json.dumps({**described, "settings": {**described["settings"], **settings}}))
    change = {"prepare": "resize", "prepare_size": 36}
    save_offers(run, [Offer(change, "1.6 times faster", (1.6, 1.5, 1.75))])
    (run / CHANGES).write_text(json.dumps(asdict(Change(field, value, 1.0, "Ada", refused=refused))) + "\n")
    changes = page_data(run, is_over=False)["status"]["changes"]
    assert changes["offers"] == ([("1.6 times faster", change)] if is_offered else [])
    # A build may have been killed: a person can request any dataset by its settings.
    assert bool(changes["need_dataset"]) == (field == BUILD)


def test_means_are_weighted_by_steps() -> None:
    batches = pandas.DataFrame({"steps": [99.0, 1.0], "step/time_ms": [20.0, 2020.0]})
    assert _per_step(batches, "step/time_ms") == 40
    assert _per_step(batches[:0], "step/time_ms") == 0


def test_only_new_rows_are_sent_after_the_first_request(run: Path) -> None:
    whole = page_data(run, is_over=False)
    newer = page_data(run, is_over=False, after=whole["settled"] - 5000, shown=whole["frames"])
    assert (newer["after"], newer["figures"]) == (whole["settled"] - 5000, None)
    for name in ("samples", "batches", "server 1"):
        times = newer["newer"][name]["time"]
        assert 0 < len(times) < 6
        assert whole["columns"][name]["time"][-len(times) :] == times
    assert newer["columns"] == {name: whole["columns"][name] for name in ("epochs", "ends", "spent")}


def test_the_ends_of_many_epochs_are_not_drawn(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends() -> tuple[int, bool]:
        found = page_data(run, is_over=False)
        return len(found["columns"]["ends"]["time"]), "dotted" in found["status"]["sentences"]["waiting"]

    assert ends() == (EPOCHS, True)
    for module in ("view", "status"):
        monkeypatch.setattr(f"pipeline.watch.{module}.MAX_BOUNDARIES", EPOCHS - 1)
    assert ends() == (0, False)


def test_changed_figures_are_sent_with_all_rows(run: Path) -> None:
    whole = page_data(run, is_over=False)
    found = page_data(run, is_over=False, after=whole["settled"], shown="others")
    assert found["after"] is None
    assert found["columns"] == whole["columns"]
    assert found["figures"] == whole["figures"]


def test_the_first_sample_of_another_server_brings_all_rows(tmp_path: Path) -> None:
    """The page has no column of that server yet, to which it could add rows."""
    described = {"format": RUN_FORMAT, "settings": {"epochs": 9}, "num_training_servers": 2}
    (tmp_path / "run.json").write_text(json.dumps(described))

    def sample(folder: Path) -> None:
        sinks = Records(folder)
        for second in range(60):
            sinks.write(Row("samples", 1e9 + second, second, {"sys/cpu_pct": 50.0}))
        sinks.close()

    sample(tmp_path)
    (tmp_path / "servers/1/record").mkdir(parents=True)
    before = page_data(tmp_path, is_over=False)
    assert before["columns"]["server 1"] == {"time": [], "step": []}
    sample(tmp_path / "servers/1")
    after = page_data(tmp_path, is_over=False, after=before["settled"], shown=before["frames"])
    assert (after["after"], after["newer"]) == (None, {})
    assert "busy" in after["columns"]["server 1"]


def test_a_span_has_more_points(run: Path) -> None:
    whole, closer = (page_data(run, is_over=False, span=span) for span in (None, span_of(run, 10_000, 20_000)))
    seen = [each for each in closer["columns"]["samples"]["time"] if each is not None and 10_000 <= each <= 20_000]
    assert len(seen) >= 90
    assert len(whole["columns"]["samples"]["time"]) < 30
    assert closer["status"]["sentences"] == whole["status"]["sentences"]  # the sentences are about the whole training
    assert closer["frames"] == whole["frames"]


def test_trainings_with_equal_curves_share_their_figures(run: Path, tmp_path: Path) -> None:
    other = rich_run(tmp_path / "other", epochs=1, steps=20)
    describe(other, epochs=1)
    of_both = [drawable(load_view(folder, STEPS)) for folder in (run, other)]
    assert of_both[0] == of_both[1]
    assert page_data(run, is_over=False)["frames"] == page_data(other, is_over=False)["frames"]
    assert drawable(load_view(run, 0)).spent == ()


@pytest.mark.parametrize(
    ("epochs", "is_over", "state", "text"),
    [
        (EPOCHS, False, "silent", "no sample for"),
        (EPOCHS, True, "stopped", "the run ended in epoch 6 of 6, step 360 of 360, without a model"),
    ],
)
def test_an_old_training_is_silent_or_stopped(run: Path, epochs: int, is_over: bool, state: str, text: str) -> None:
    describe(run, epochs)
    found = status_of(run, is_over)
    assert found["state"] == state
    assert found["words"].startswith(text)


@pytest.mark.parametrize(("epochs", "state", "text"), [
    (EPOCHS, "evaluating", "all epochs are done"),
    (10, "training", "epoch 6 of 10, step 360 of 600"),
])  # fmt: skip
def test_a_running_training_is_training_or_evaluating(run: Path, epochs: int, state: str, text: str) -> None:
    describe(run, epochs)
    last = float(load_view(run, STEPS).samples.means["time"].iloc[-1])
    found = status_of(run, heartbeats=Heartbeats(wall_clock=lambda: last + 1))
    assert (found["state"], found["words"][: len(text)]) == (state, text)
    assert found["progress"] == pytest.approx(min(1, 360 / (epochs * STEPS)))
    tiles = dict(found["tiles"])
    assert tiles["data wait"].endswith("%")
    assert tiles["GPU busy"] == "90%"
    assert ("remaining, about" in tiles) == (epochs == 10)
    if epochs == 10:  # 240 steps of 90 ms, and four validations
        assert 20 < float(tiles["remaining, about"].split()[0]) < 30


def test_a_running_training_says_when_its_last_sample_came_and_how_long_its_longest_step_took(tmp_path: Path) -> None:
    about = {"format": RUN_FORMAT, "settings": {"epochs": 10}, "steps_per_epoch": STEPS}
    (tmp_path / "run.json").write_text(json.dumps(about))
    sink, begin = Records(tmp_path), time.time() - 205
    for step in range(1, 201):
        step_ms = 20_000.0 if step == 1 else 9000.0 if step == 130 else 80.0
        times = {"input/wait_ms": 60.0, "step/time_ms": step_ms, "input/examples": 8}
        # Rows without a time do not hide the longest step.
        sink.write(Row("batches", begin + step, step, {"input/examples": 8} if 50 <= step < 70 else times))
        sink.write(Row("samples", begin + step, step, {"sys/cpu_pct": 50.0}))
    sink.close()
    found = status_of(tmp_path)
    assert re.fullmatch(r"epoch \d of 10, step 200 of 600; the last sample came \d+ s ago", found["words"])
    assert "The longest step took 9,000 ms, and ended about 2 min " in found["sentences"]["waiting"]
    assert "remaining, about" in dict(found["tiles"])
    assert "remaining, about" not in dict(status_of(tmp_path, is_over=True)["tiles"])


def test_a_training_whose_steps_stand_still_says_when_the_last_one_ended(tmp_path: Path) -> None:
    """It still has samples, which only show that the process lives."""
    about = {"format": RUN_FORMAT, "settings": {"epochs": 10}, "steps_per_epoch": STEPS}
    (tmp_path / "run.json").write_text(json.dumps(about))
    sink, begin = Records(tmp_path), time.time() - 205
    for second in range(1, 201):
        if second <= 100:
            times = {"input/wait_ms": 60.0, "step/time_ms": 80.0, "input/examples": 8}
            sink.write(Row("batches", begin + second, second, times))
        sink.write(Row("samples", begin + second, min(second, 100), {"sys/cpu_pct": 50.0}))
    sink.close()
    assert re.fullmatch(
        r"epoch 2 of 10, step 100 of 600; the last sample came \d+ s ago, and the last step ended 2 min ago",
        status_of(tmp_path)["words"],
    )


@pytest.mark.parametrize(("ended", "state"), [(EPOCHS, "evaluating"), (0, "training")])
def test_a_training_that_ended_early_is_evaluating(run: Path, ended: int, state: str) -> None:
    """The page said that it was training in epoch 6 of 10, with a remaining time. A retry that goes on ends later."""
    describe(run, epochs=10)
    (run / "early_end.json").write_text(json.dumps({"epoch": ended}))
    last = float(load_view(run, STEPS).samples.means["time"].iloc[-1])
    found = status_of(run, heartbeats=Heartbeats(wall_clock=lambda: last + 1))
    assert found["state"] == state
    assert found["progress"] == pytest.approx(1 if ended else 360 / (10 * STEPS))
    assert ("remaining, about" in dict(found["tiles"])) == (not ended)
    assert status_of(run, is_over=True)["words"].startswith(f"the run ended in epoch 6 of {ended or 10}, ")


def test_a_training_without_steps_is_starting(tmp_path: Path) -> None:
    settings = {"model": "small_cnn", "dataset_name": "flowers"}
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT, "settings": settings}))
    found = page_data(tmp_path, is_over=False)
    assert found["status"]["state"] == "starting"
    assert found["status"]["title"] == "flowers: small_cnn"
    assert "appears after 20 seconds" in found["status"]["verdict"]
    json.dumps(found["figures"], allow_nan=False)


def test_a_regression_shows_its_mean_absolute_error(tmp_path: Path) -> None:
    settings = {"model": "mlp", "dataset_name": "prices", "example_kind": "table", "image_size": 96, "epochs": 3}
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT, "settings": settings, "steps_per_epoch": 2}))
    sinks = Records(tmp_path)
    for epoch, error in enumerate((40.0, 12.3, 13.0), 1):
        times = {
            "input/wait_ms": 1.0,
            "step/compute_ms": 2.0,
            "step/time_ms": 3.0,
            "input/examples": 32,
            "epoch": epoch,
        }
        sinks.write(Row("batches", 1e9 + epoch, 2 * epoch, times))
        sinks.write(Row("samples", 1e9 + epoch, 2 * epoch, {"sys/cpu_pct": 50.0}))
        values = {"loss": 0.5, "mae": error + 1, "val_loss": 0.6, "val_mae": error}
        sinks.write(Row("epochs", 1e9 + epoch, epoch, values | {"epoch/time_s": 1.0}))
    sinks.close()
    (tmp_path / "result.json").write_text(json.dumps({"metrics": {"val_mae": 12.3}, "baselines": {"val_mae": 45.6}}))
    found = page_data(tmp_path, is_over=False)
    status = found["status"]
    assert dict(status["tiles"])["best validation mean absolute error"] == "12.30"
    assert dict(status["tiles"])["its baseline"] == "45.60"
    assert "validation mean absolute error was best in epoch 2 with 12.30." in status["sentences"]["learning"]
    assert "image size" not in dict(status["facts"])
    [learning] = [figure for figure in found["figures"] if figure["name"] == "learning"]
    assert learning["title"] == "Loss and mean absolute error"


def test_a_missing_folder_is_a_stopped_training(tmp_path: Path) -> None:
    found = page_data(tmp_path / "gone", is_over=True)["status"]
    assert (found["state"], found["verdict"]) == ("stopped", "")


def test_the_first_step_is_not_in_the_longest_times(tmp_path: Path) -> None:
    sink = Records(tmp_path)
    for step in range(1, 101):
        times = {"input/wait_ms": 1.0, "step/time_ms": 5000.0 if step == 1 else 20.0 + step % 10, "input/examples": 8}
        sink.write(Row("batches", 1e9 + step, step, times))
    sink.close()
    longest = page_data(tmp_path, is_over=False)["columns"]["batches"]["step/time_ms/max"]
    assert max(filter(None, longest[1:])) == 29
    assert longest[0] < 5000


def test_the_verdict_of_the_result_replaces_the_live_verdict(run: Path) -> None:
    view = load_view(run, STEPS)
    verdict = {"sentence": "Compute-bound.", "seconds": 20.2, "time": view.start + 25.2, "steps": 1234}
    (run / "verdict.json").write_text(json.dumps(verdict))
    an_hour_later = Heartbeats(wall_clock=lambda: view.start + 25.2 + 3600)
    assert status_of(run, heartbeats=an_hour_later)["verdict"] == (
        "From 5 s to 25 s after the start (1,234 steps, ended 60 min ago): Compute-bound."
    )
    (run / "result.json").write_text(json.dumps({"verdict": "Compute-bound, all of it."}))
    assert status_of(run)["verdict"] == "Compute-bound, all of it."
    assert (status_of(run)["state"], status_of(run)["progress"]) == ("trained", 1.0)


def test_a_complete_training_shows_the_numbers_of_its_verdict(run: Path) -> None:
    (run / "result.json").write_text(json.dumps({"wait_ms": 10.0, "step_ms": 40.0}))
    tiles, tables = status_of(run)["tiles"], status_of(run)["tables"]
    assert tiles[:3] == [("data wait", "25%"), ("step time", "40 ms"), ("examples per second", "800")]
    assert "25% of the time was waiting for data (10 of 40 ms a step)" in status_of(run)["sentences"]["waiting"]
    assert [row[1] for row in tables["waiting"]["rows"]] == ["10", "40"]


def test_a_simulated_accelerator_is_named_and_has_no_accuracy(tmp_path: Path) -> None:
    settings = {"epochs": 1, "simulated_step_ms": 2.0}
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT, "settings": settings, "steps_per_epoch": 2}))
    sink = Records(tmp_path)
    sink.write(Row("batches", 1e9 + 1, 1, {"input/wait_ms": 1.0, "step/time_ms": 3.0, "input/examples": 8}))
    sink.write(Row("samples", 1e9 + 1, 1, {"sys/cpu_pct": 50.0}))
    sink.write(Row("epochs", 1e9 + 1, 1, {"epoch/time_s": 1.0, "epoch/validation_s": 0.1}))
    sink.close()
    found = page_data(tmp_path, is_over=False)
    assert dict(found["status"]["tiles"])["accelerator"] == "simulated"
    assert "accuracy" not in json.dumps(found["status"])


def test_numbers_are_those_of_the_interval_of_the_verdict(run: Path) -> None:
    samples = load_view(run, STEPS).samples.means
    end = float(samples["time"].iloc[-1]) - 5
    verdict = {"sentence": "So.", "time": end, "seconds": 4.0, "wait_ms": 10.0, "step_ms": 40.0}
    (run / "verdict.json").write_text(json.dumps({**verdict, "examples_per_s": 321.0}))
    tiles = status_of(run)["tiles"]
    assert tiles[:3] == [("data wait", "25%"), ("step time", "40 ms"), ("examples per second", "321")]
    busy = samples[(samples["time"] > end - 4) & (samples["time"] <= end)]
    assert len(busy) < len(samples)
    assert dict(tiles)["GPU busy"] == f"{busy_pct(busy).mean():.0f}%"
    assert "In the steps of the verdict, 25% of the time was waiting" in status_of(run)["sentences"]["waiting"]


def test_tables_have_the_numbers_of_the_figures(run: Path) -> None:
    tables = status_of(run)["tables"]
    assert tables["learning"]["rows"][0][0] == tables["spent"]["rows"][0][0] == "6"
    assert len(tables["spent"]["rows"]) == EPOCHS
    assert float(tables["waiting"]["rows"][0][1]) == pytest.approx(20, rel=0.15)
    assert ["GPU (%): busy", "90", "90", "90"] in tables["machine"]["rows"]
    assert [row[0] for row in tables["servers"]["rows"]] == [f"server {index}" for index in range(SERVERS)]


def test_the_time_left_for_the_queue_counts_only_the_steps_of_a_continued_training(tmp_path: Path) -> None:
    """After its first 15 steps, 485 are left, and 49 validations of 30 s. The verdict is about the first step, too."""
    training = continued_training(tmp_path, steps=15)
    end = 1e9 + 514 + 30 * 51
    (training / "verdict.json").write_text(json.dumps({"time": end, "seconds": 100, "sentence": "-"}))
    times = TimesLeft()
    times._heartbeats = Heartbeats(wall_clock=lambda: end)
    found = times.find(training)
    assert found is not None
    assert found.seconds == pytest.approx(485 * (9 + 14) / 15 + 49 * 30, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (48, "48 s"), (720, "12 min"), (12_000, "3 h 20 min"), (3599, "60 min"), (187_200, "2 d 4 h")],
)
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_exist_if_intervals_are_wider_than_that_of_the_verdict(tmp_path: Path) -> None:
    """After ten hours, an interval lasts 90 s, so none may end within the minute of a verdict."""
    (tmp_path / "run.json").write_text(
        json.dumps({"format": RUN_FORMAT, "settings": {"epochs": 9}, "steps_per_epoch": 9000})
    )
    overview, record = RecordSink(tmp_path / "overview"), RecordSink(tmp_path / "record")
    for number in range(1, 31):
        busy = {"sys/cpu_pct": 10.0 + number}
        overview.write(Row("samples", 1e9 + 90 * number, 100 * number, busy))
        times = {"input/wait_ms": 1.0, "step/time_ms": 9.0, "input/examples": 8}
        overview.write(Row("batches", 1e9 + 90 * number, 100 * number, times))
    record.write(Row("samples", 1e9 + 90 * 30, 3000, {"sys/cpu_pct": 40.0}))
    for sink in (overview, record):
        sink.close()
    verdict = {"sentence": "So.", "time": 1e9 + 90 * 29 - 10, "seconds": 60.0, "wait_ms": 10.0, "step_ms": 40.0}
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    tiles = dict(status_of(tmp_path)["tiles"])
    assert (tiles["data wait"], tiles["processor busy"]) == ("25%", "39%")


@pytest.mark.parametrize(
    ("limit", "age_s"), [("unknown", 5), ("compute", MAX_VERDICT_AGE_S + 1)], ids=["unknown", "old"]
)
def test_the_numbers_are_not_those_of_an_unknown_or_old_verdict(run: Path, limit: str, age_s: float) -> None:
    before = status_of(run)
    view = load_view(run, STEPS)
    ended = last_time(view.samples) - age_s
    verdict = {"sentence": "So.", "limit": limit, "time": ended, "seconds": 8.0, "steps": 0}
    (run / "verdict.json").write_text(json.dumps({**verdict, "wait_ms": 9000.0, "step_ms": 18_000.0}))
    found = status_of(run)
    assert found["verdict"].endswith(": So.")
    assert (found["tiles"], found["sentences"], found["tables"]) == (
        before["tiles"], before["sentences"], before["tables"],
    )  # fmt: skip


def test_the_first_step_is_in_no_number_if_there_are_others(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        json.dumps({"format": RUN_FORMAT, "settings": {"epochs": 9}, "steps_per_epoch": 100})
    )
    sink = Records(tmp_path)
    for step in range(5):
        times = {"input/wait_ms": 60.0, "step/time_ms": 21_000.0 if step == 0 else 6000.0, "input/examples": 8}
        sink.write(Row("batches", 1e9 + 21 + 6 * step, step + 1, times))
        sink.write(Row("samples", 1e9 + 21 + 6 * step, step + 1, {"sys/cpu_pct": 50.0}))
    sink.close()
    tiles = dict(status_of(tmp_path)["tiles"])
    assert (tiles["step time"], tiles["data wait"]) == ("6,000 ms", "1.0%")
    assert tiles["remaining, about"] == "1 h 30 min"


@pytest.fixture
def continued(tmp_path: Path) -> Path:
    """Return a training that continues another one: epochs 51 to 60 of 100."""
    return continued_training(tmp_path, steps=100)


def continued_training(tmp_path: Path, steps: int) -> Path:
    """Return a training that continues another one after epoch 50 of 100, with a long first step."""
    change = Change(CONTINUES, "prepare=resize", 1e9, "Ada", epoch=51)
    (tmp_path / CHANGES).write_text(json.dumps(asdict(change)) + "\n")
    content = {"format": RUN_FORMAT, "settings": {"epochs": 100}, "steps_per_epoch": 10}
    (tmp_path / "run.json").write_text(json.dumps(content))
    sink = Records(tmp_path)
    for step in range(500, 500 + steps):
        now = 1e9 + step + 30 * (step // 10)
        whole = 9000.0 if step == 500 else 1000.0
        times = {"input/wait_ms": 1.0, "step/compute_ms": whole - 1, "step/time_ms": whole, "input/examples": 8}
        times |= {"epoch": step // 10 + 1}
        sink.write(Row("batches", now, step + 1, times))
        sink.write(Row("samples", now, step + 1, {"sys/cpu_pct": 50.0}))
        if step % 10 == 9:
            sink.write(Row("epochs", now + 30, step // 10 + 1, {"epoch/validation_s": 30.0}))
    sink.close()
    return tmp_path


def test_the_validations_of_a_continued_training_are_not_left_for_the_one_after_it(continued: Path) -> None:
    """After epoch 60, 40 epochs of 10 s are left, and 40 validations of 30 s."""
    assert dict(status_of(continued)["tiles"])["remaining, about"] == "27 min"


def test_a_continued_training_has_only_its_own_epochs(continued: Path) -> None:
    data = page_data(continued, is_over=False)
    assert data["columns"]["spent"]["epoch"] == list(range(51, 61))
    assert sum(data["columns"]["spent"]["computing"]) == pytest.approx(108, rel=0.01)
    step_times = dict(row[:2] for row in data["status"]["tables"]["waiting"]["rows"])
    assert step_times["Time of a step (ms)"] == "1,080"


def test_the_wide_intervals_of_a_continued_training_count_only_its_own_steps(
    continued: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.watch.tables.MAX_INTERVALS", 10)
    rows = page_data(continued, is_over=False)["status"]["tables"]["waiting"]["rows"]
    assert dict(row[:2] for row in rows)["Time of a step (ms)"] == "1,080"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "1 min 29 s"), (720, "12 min 0 s"), (12_005, "3 h 20 min 5 s"), (-1, "0 s")],
)
def test_exact_durations_are_formatted(seconds: float, text: str) -> None:
    assert exact_duration(seconds) == text
