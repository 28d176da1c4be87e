"""The advice on a real training: its stages are measured on request, and its changes have predictions."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.advise import advise
from pipeline.config.automatic import training_settings
from pipeline.dataset.manifest import load
from pipeline.errors import SettingsError
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import load_result, load_run
from pipeline.training.advise import measure_missing
from pipeline.training.job import run_job
from pipeline.tuning.predictions import PREPARED


def advised(run: Path, **options: Any) -> dict[str, Any]:
    """Return what the command says without measuring."""
    given = {"cores": None, "step_ms": None, "gigabytes_per_second": None, "from_record": True, **options}
    return advise.run(argparse.Namespace(run=str(run), **given))


@pytest.fixture
def trained(tmp_path: Path, published: Path) -> Path:
    """A training whose steps of 150 ms hide its input."""
    values = {"workspace": str(tmp_path), "local_folder": str(tmp_path), "batch_size": 2, "simulated_step_ms": 150}
    settings = training_settings({**values, "image_size": 32, "epochs": 3, "cache": "off", "promote": "never"})
    run = prepare_run(settings, published, "run")
    run_job(run, lambda: False)
    return run.folder


@pytest.mark.long
def test_a_training_is_advised_from_its_record_and_from_measured_stages(trained: Path, published: Path):
    result = load_result(trained)
    assert result is not None
    assert result["verdict"].endswith("No setting makes it faster: the limit is Compute-bound.")
    before = advised(trained)
    assert [[*each["change"]] for each in before["predictions"]] == [["cores"]]
    assert "were not measured" in before["sentence"]

    measure_missing(load_run(trained), load(published), max_cpu_s=6.0)
    found = advised(trained)
    changes = [json.dumps(each["change"]) for each in found["predictions"]]
    assert {'{"prepare": "resize", "prepare_size": 37}', '{"prepare": "raw", "prepare_size": 37}'} <= {*changes}
    # The simulated accelerator limits it, so nothing gains.
    assert all(each["factor"]["value"] == pytest.approx(1, abs=0.05) for each in found["predictions"])
    assert found["advice"] == "No setting makes it faster: the limit is Compute-bound."
    assert "the limit is Compute-bound." in advise.printer(found)
    measured = (trained / PREPARED).stat().st_mtime_ns
    measure_missing(load_run(trained), load(published), max_cpu_s=6.0)
    assert (trained / PREPARED).stat().st_mtime_ns == measured  # once

    fast = advised(trained, step_ms=0.01)
    assert fast["limit"] != "compute"
    assert fast["examples_per_s"]["low"] > 10 * found["examples_per_s"]["high"]
    assert max(each["factor"]["value"] for each in fast["predictions"]) > 1.2


def test_hardware_must_be_some(tmp_path: Path):
    with pytest.raises(SettingsError, match="--step-ms must be more than 0, got -1"):
        advised(tmp_path, step_ms=-1.0)
