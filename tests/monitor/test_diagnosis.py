"""The time of each part of a training."""

from typing import Any

import pandas
import pytest

from pipeline.monitor.diagnosis import Spread, percent, range_text, seconds_by_part, summarize


def batches(steps: int, wait: float, compute: float, epochs: int = 1) -> dict[str, list[float]]:
    """Return columns of `steps` steady steps. The first step of each epoch takes a thousand times as long."""
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


def test_first_steps_are_summarized_separately() -> None:
    columns = batches(20, wait=2, compute=6, epochs=2)
    columns["input/wait_ms"][0] = 1e6  # counts as first step, not as first batch of an epoch
    summary = summarize(columns)
    assert summary.steps == 20
    assert summary.time_ms == Spread(8, 8, 0, 8)
    assert summary.wait_ms == Spread(2, 2, 0, 2)
    assert summary.wait_fraction == 0.25
    assert summary.first_step_ms == 8000
    assert summary.first_batch_wait_ms == 2000


def test_the_spread_covers_only_steady_steps() -> None:
    columns = batches(4, wait=0, compute=1)
    columns["step/time_ms"] = [999, 1, 2, 3, 6]
    spread = summarize(columns).time_ms
    assert spread is not None
    assert (spread.mean, spread.median) == (3, 2.5)
    assert spread.std == pytest.approx(3.5**0.5)
    assert spread.p95 == pytest.approx(5.55)


def test_an_empty_record_has_no_steps() -> None:
    empty: dict[str, list[float]] = {
        name: [] for name in ("input/wait_ms", "step/compute_ms", "step/time_ms", "epoch", "first")
    }
    assert summarize(empty).steps == 0


def test_time_without_wait_and_compute_counts_as_host_time() -> None:
    columns = batches(20, wait=2, compute=6)
    columns["step/time_ms"] = [time + 2 for time in columns["step/time_ms"]]
    summary = summarize(columns)
    assert (summary.wait_fraction, summary.host_fraction) == (0.2, 0.2)


def test_seconds_are_summed_for_each_part() -> None:
    columns = {"input/wait_ms": [1, 2], "step/compute_ms": [10, 20], "step/host_ms": [100, 200]}
    epochs = pandas.DataFrame({"epoch/validation_s": [3.0, 4.0]})
    assert seconds_by_part(pandas.DataFrame(columns), epochs) == {
        "waiting for data": 0.003,
        "computing": 0.03,
        "host": 0.3,
        "checkpoints": 0,
        "validation": 7,
        "callbacks": 0,
    }


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        *((0.0, "0%"), (0.0003, "under 0.1%"), (0.0006, "0.1%"), (0.042, "4.2%"), (0.41, "41%")),
        *((0.994, "99%"), (0.996, "99.6%"), (0.9996, "100%"), (1.0, "100%")),
    ],
)
def test_a_percentage_never_rounds_something_to_nothing_or_to_all(fraction: float, text: str) -> None:
    assert percent(fraction) == text


def test_a_range_of_one_value_is_this_value():
    assert [range_text("5.0%", "5.1%"), range_text("5.0%", "5.0%")] == ["5.0% to 5.1%", "5.0%"]
