"""Which steps are worth measuring with other settings, and the file of what was measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.automatic import training_settings
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.limits import Limit
from pipeline.monitor.load import Load
from pipeline.monitor.verdict import Verdict
from pipeline.runs.files import STEPS
from pipeline.runs.measured_steps import (
    MeasuredSteps,
    StepRatio,
    are_worth_measuring,
    faster_precision,
    load_steps,
    save_steps,
    step_changes,
)

BFLOAT16, FLOAT16, XLA = {"precision": "mixed_bfloat16"}, {"precision": "mixed_float16"}, {"xla": True}
COMPUTE = Verdict((Limit.COMPUTE,), "It is so.", Load())


@pytest.mark.parametrize(
    ("capability", "precision"),
    [(None, "mixed_bfloat16"), (9.0, "mixed_bfloat16"), (8.0, "mixed_bfloat16"), (7.5, "mixed_float16"), (6.1, "")],
)
def test_a_gpu_has_tensor_cores_for_a_precision(capability: float | None, precision: str):
    assert faster_precision(capability) == precision


@pytest.mark.parametrize(
    ("load", "values", "changes"),
    [
        (Load(), {}, [XLA]),
        (Load(), {"xla": True}, []),
        (Load(gpu=95.0, gpu_capability=9.0), {}, [BFLOAT16, XLA, BFLOAT16 | XLA]),
        (Load(gpu=95.0, gpu_capability=7.5), {}, [FLOAT16, XLA, FLOAT16 | XLA]),
        (Load(gpu=95.0, gpu_capability=6.1), {}, [XLA]),
        (Load(gpu=95.0, gpu_capability=9.0), {"xla": True}, [BFLOAT16]),
        (Load(gpu=95.0, gpu_capability=9.0), {"precision": "mixed_float16"}, [XLA]),
    ],
)
def test_what_makes_steps_faster_on_this_accelerator_is_measured(load: Load, values: dict[str, Any], changes: Any):
    assert step_changes(replace(COMPUTE, load=load), training_settings(values)) == changes


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (replace(COMPUTE, limits=(Limit.DECODING,)), {}),
        (replace(COMPUTE, is_simulated=True), {}),
        (COMPUTE, {"num_training_servers": 2}),
    ],
    ids=["the input is the limit", "simulated", "two servers"],
)
def test_steps_that_say_nothing_are_not_measured(of: Verdict, values: dict[str, Any]):
    assert step_changes(of, training_settings(values)) == []


def test_what_was_measured_is_stored(tmp_path: Path):
    ratios = [StepRatio(BFLOAT16 | XLA, Estimate(0.5, 0.4, 0.6), 12.0)]
    steps = MeasuredSteps(Estimate(300.0, 290.0, 310.0), Estimate(400.0, 390.0, 410.0), ratios)
    assert load_steps(tmp_path) is None
    save_steps(tmp_path, steps)
    assert load_steps(tmp_path) == steps


@pytest.mark.parametrize(
    "damage",
    [
        {"us": ["a", 1, 1]},
        {"us": [1, 1]},
        {"cpu_us": [float("nan")] * 3},
        {"ratios": 5},
        {"ratios": [{"change": {}, "ratio": [1, 1, 1], "start_s": 1}]},
        {"ratios": [{"change": {"epochs": 3}, "ratio": [1, 1, 1], "start_s": 1}]},
        {"ratios": [{"change": {"xla": []}, "ratio": [1, 1, 1], "start_s": 1}]},
        {"ratios": [{"change": {"xla": True}, "ratio": [0, 1, 1], "start_s": 1}]},
    ],
)
def test_what_another_user_of_the_folder_damaged_was_not_measured(tmp_path: Path, damage: dict[str, Any]):
    sound = {"us": [1, 1, 1], "cpu_us": [1, 1, 1], "ratios": []}
    (tmp_path / STEPS).write_text(json.dumps(sound))
    assert load_steps(tmp_path) is not None
    (tmp_path / STEPS).write_text(json.dumps({**sound, **damage}))
    assert load_steps(tmp_path) is None


@pytest.mark.parametrize(
    ("of", "values", "are_worth"),
    [
        (replace(COMPUTE, limits=(Limit.DECODING,)), {}, True),
        (replace(COMPUTE, limits=(Limit.UNKNOWN,)), {}, False),
        (replace(COMPUTE, limits=(Limit.DECODING,), load=Load(gpu=50.0)), {}, False),
        (replace(COMPUTE, load=Load(gpu=50.0)), {}, True),
        (replace(COMPUTE, is_simulated=True), {}, False),
        (COMPUTE, {"num_training_servers": 2}, False),
    ],
    ids=[
        "cores shared with the input",
        "unknown",
        "a GPU that waits",
        "a GPU that computes",
        "simulated",
        "two servers",
    ],
)
def test_steps_are_measured_if_a_prediction_uses_them(of: Verdict, values: dict[str, Any], are_worth: bool):
    assert are_worth_measuring(of, training_settings(values)) == are_worth
