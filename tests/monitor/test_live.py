"""The verdict of the last minute: how often, on what, and when not."""

from __future__ import annotations

import logging

import pytest

from pipeline.monitor.live import LiveVerdict
from pipeline.monitor.row import Row


def batch(time: float, wait_ms: float) -> Row:
    values = {"input/wait_ms": wait_ms, "step/compute_ms": 100.0, "step/time_ms": 100.0 + wait_ms, "epoch": 1}
    return Row("batches", time, int(time), {**values, "first": 0})


def told(rows: list[Row], caplog: pytest.LogCaptureFixture) -> list[str]:
    live = LiveVerdict(lambda verdict: f"{verdict.limit.value}: {verdict.sentence}", seconds=60)
    with caplog.at_level(logging.INFO):
        for row in rows:
            live.write(row)
    return caplog.messages


def test_each_minute_is_judged_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    minutes = [batch(1000 + second, 300.0 if second < 60 else 0.0) for second in range(121)]
    samples = [Row("samples", 1000.5 + second, 1, {"sys/cpu_pct": 95.0}) for second in range(121)]
    rows = sorted([*minutes, *samples], key=lambda row: row.time)
    first, second = told([*rows, Row("epochs", 1121.0, 1, {"loss": 1.0})], caplog)
    assert first.startswith("the last 60 s: decoding: Input-bound by decoding: 75% of the step time is waiting")
    assert second.startswith("the last 60 s: compute: Compute-bound")


def test_too_few_steps_are_nothing_to_talk_about(caplog: pytest.LogCaptureFixture) -> None:
    assert told([batch(1000 + 20 * step, 300.0) for step in range(20)], caplog) == []
