"""The verdict, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.monitor.diagnosis import Spread, summarize, verdict


def batches(steps: int, wait: float, compute: float, epochs: int = 1) -> dict[str, list[float]]:
    """``steps`` steady ones in all; the first of each epoch waits and computes a thousand times as long."""
    rows: list[tuple[float, float, int, int]] = []
    for epoch in range(epochs):
        rows.append((1000 * wait, 1000 * compute, epoch, int(epoch == 0)))
        rows += [(wait, compute, epoch, 0)] * (steps // epochs)
    columns: dict[str, Any] = {
        "input/wait_ms": [row[0] for row in rows],
        "step/compute_ms": [row[1] for row in rows],
        "step/time_ms": [row[0] + row[1] for row in rows],
        "epoch": [row[2] for row in rows],
        "first": [row[3] for row in rows],
    }
    return columns


def test_first_steps_are_apart() -> None:
    columns = batches(20, wait=2, compute=6, epochs=2)
    columns["input/wait_ms"][0] = 1e6  # belongs to the first step, not to the first batches
    summary = summarize(columns)
    assert summary.steps == 20
    assert summary.time_ms == Spread(8, 8, 0, 8)
    assert summary.wait_ms == Spread(2, 2, 0, 2)
    assert summary.wait_fraction == 0.25
    assert summary.first_step_ms == 8000
    assert summary.first_batch_wait_ms == 2000


def test_spread_is_over_the_steady_steps() -> None:
    columns = batches(4, wait=0, compute=1)
    columns["step/time_ms"] = [999, 1, 2, 3, 6]
    spread = summarize(columns).time_ms
    assert spread is not None
    assert (spread.mean, spread.median) == (3, 2.5)
    assert spread.std == pytest.approx(3.5**0.5)
    assert spread.p95 == pytest.approx(5.55)


@pytest.mark.parametrize(
    ("steps", "wait", "compute", "sentence"),
    [
        (0, 1, 1, "Not enough steps to say: 0 in the steady state, at least 10 are needed."),
        (9, 1, 1, "Not enough steps to say: 9 in the steady state, at least 10 are needed."),
        (10, 4, 96, "Not input-bound: 4.0% of the step time is waiting for data (4 of 100 ms a step, 10 steps)."),
        (10, 5, 95, "Waiting moderately: 5.0% of the step time is waiting for data (5 of 100 ms a step, 10 steps); "
         "without any wait a step would be at most 1.05 times faster."),
        (1200, 20, 80, "Waiting moderately: 20% of the step time is waiting for data (20 of 100 ms a step, "
         "1,200 steps); without any wait a step would be at most 1.25 times faster."),
        (10, 41, 59, "Input-bound: 41% of the step time is waiting for data (41 of 100 ms a step, 10 steps); "
         "without any wait a step would be at most 1.69 times faster."),
        (10, 100, 0, "Input-bound: 100% of the step time is waiting for data (100 of 100 ms a step, 10 steps); "
         "without any wait a step would be at most a hundred times or more faster."),
    ],
)  # fmt: skip
def test_verdict(steps: int, wait: float, compute: float, sentence: str) -> None:
    assert verdict(summarize(batches(steps, wait, compute))) == sentence


def test_nothing_recorded() -> None:
    empty: dict[str, list[float]] = {
        name: [] for name in ("input/wait_ms", "step/compute_ms", "step/time_ms", "epoch", "first")
    }
    assert verdict(summarize(empty)).startswith("Not enough steps to say: 0")
