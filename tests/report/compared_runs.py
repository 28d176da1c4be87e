"""Small runs for the tests of comparisons."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pandas

from pipeline.evaluation.answers import Answers
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.report.compared_run import MEASURES, ComparedRun, Measured
from pipeline.runs.files import RunFiles

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def run_with(
    answers: Answers | None = None,
    rate: float = 0.0,
    settings: Mapping[str, Any] = NO_SETTINGS,
    version: str = "v1",
    other_cores: float = 0.0,
    compute_ms: float = 20.0,
) -> ComparedRun:
    """Return a run with these answers and settings.

    With a rate (in examples a second), its steps have 32 examples and take `compute_ms`; the rest is data wait.
    """
    measures = {}
    if rate:
        step = 32_000 / rate
        values = (rate, step, step - compute_ms, compute_ms, 100 * (1 - compute_ms / step))
        measures = {each: Measured(value, 0.001 * value, 100) for each, value in zip(MEASURES, values, strict=True)}
    return ComparedRun(
        files=RunFiles(run={"dataset_version": version, "settings": dict(settings)}, result={}, verdict={}),
        evaluation=evaluation_with(answers) if answers else {},
        answers=answers,
        epochs=pandas.DataFrame({"step": []}),
        steady_steps=100 if rate else 0,
        measures=measures,
        seconds={},
        quantiles={},
        speed=pandas.DataFrame({"seconds": [], "rate": [], "wait": []}),
        busy=None,
        cores=2.0,
        usable_cores=2.0,
        other_cores=other_cores,
        gpus=0,
    )


def evaluation_with(answers: Answers) -> dict[str, Any]:
    """Return what evaluation.json says of the figure that scores a model."""
    metric = answers.scored_by
    value, low, high = metric.estimator.estimate(answers, answers.blocks(seed=0))
    task = {"task": "regression"} if isinstance(answers, RegressionPredictions) else {"confusions": []}
    return {**task, "figures": {metric.key: {"value": value, "low": low, "high": high, "baseline": 0.5}}}
