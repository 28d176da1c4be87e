"""Steps with other settings are measured on the devices of a training that is over."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.advise import _measure_steps
from pipeline.config.automatic import training_settings
from pipeline.monitor.limits import Limit
from pipeline.monitor.load import Load
from pipeline.monitor.verdict import Verdict
from pipeline.runs.files import STEPS
from pipeline.runs.launch import prepare_run
from pipeline.runs.measured_steps import load_steps
from pipeline.runs.run import Run
from pipeline.system.process import run_module
from pipeline.training.step_times import measured
from tests.monitor.epoch_records import record_epochs


@pytest.fixture
def run(tmp_path: Path, published: Path) -> Run:
    values = {"workspace": str(tmp_path), "local_folder": str(tmp_path), "image_size": 32, "batch_size": 8}
    return prepare_run(training_settings(values), published, "run")


@pytest.mark.parametrize("stacked_bytes", [1, 1_000_000], ids=["one by one", "together"])
def test_a_change_that_cannot_be_measured_is_left_out(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, stacked_bytes: int
):
    """A model may have an operation that XLA does not know, for example."""
    monkeypatch.setattr("pipeline.training.inputs.STACKED_BYTES", stacked_bytes)
    with caplog.at_level(logging.WARNING):
        found = measured(run, [{"precision": "float7"}, {"batch_size": 8}])
    assert "steps with precision=float7 cannot be measured" in caplog.text
    assert 0 < found.us.low <= found.us.value <= found.us.high
    assert found.cpu_us.value > 0
    [same] = found.ratios
    assert same.change == {"batch_size": 8}
    assert same.ratio.low < same.ratio.value < same.ratio.high
    assert 0.3 < same.ratio.value < 3  # The same steps, beside other tests.
    assert same.start_s > 0


@pytest.mark.parametrize("is_running", [False, True])
def test_the_command_measures_steps_once_the_training_is_over(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_running: bool
):
    monkeypatch.setattr(
        "pipeline.monitor.verdict.diagnose_run", lambda _: Verdict((Limit.COMPUTE,), "It is so.", Load())
    )
    monkeypatch.setattr("pipeline.runs.run.is_running", lambda _: is_running)
    started: list[Any] = []
    monkeypatch.setattr("pipeline.system.process.run_module", lambda *of, output: started.append(of))
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    _measure_steps(run)
    of_process = ("pipeline.training.step_times", str(run.folder), str(os.getpid()))
    assert started == ([] if is_running else [of_process])
    assert ("ask again when it is over" in caplog.text) == is_running
    (run.folder / STEPS).write_text("{}")
    _measure_steps(run)
    assert len(started) < 2


@pytest.mark.long
def test_the_process_measures_what_its_record_asks_for(run: Run):
    """Its steps limit it: it has no wait for data."""
    record_epochs(run.folder / "record", [(5.0, 5.0)] * 3)
    code = run_module("pipeline.training.step_times", str(run.folder), str(os.getpid()), output=sys.__stderr__.fileno())
    assert code == 0
    steps = load_steps(run.folder)
    assert steps is not None
    assert [each.change for each in steps.ratios] == [{"xla": True}]
