"""The verdict of the last minute: how often, on what, and when not."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from pipeline.monitor.live import LiveVerdict
from pipeline.monitor.row import Row


def batch(time: float, wait_ms: float) -> Row:
    values = {"input/wait_ms": wait_ms, "step/compute_ms": 100.0, "step/time_ms": 100.0 + wait_ms, "epoch": 1}
    return Row("batches", time, int(time), {**values, "first": 0})


def told(rows: list[Row], caplog: pytest.LogCaptureFixture) -> list[str]:
    live = LiveVerdict(lambda verdict: f"{verdict.limit.value}: {verdict.sentence}")
    with caplog.at_level(logging.INFO):
        for row in rows:
            live.write(row)
    return caplog.messages


def test_each_minute_is_judged_by_itself_and_the_first_seconds_too(caplog: pytest.LogCaptureFixture) -> None:
    batches = [batch(1000 + second, 300.0 if 20 <= second < 80 else 0.0) for second in range(141)]
    samples = [Row("samples", 1000.5 + second, 1, {"sys/cpu_pct": 95.0}) for second in range(141)]
    rows = sorted([*batches, *samples], key=lambda row: row.time)
    begin, first, second = told([*rows, Row("epochs", 1141.0, 1, {"loss": 1.0})], caplog)
    assert begin.startswith("the last 20 s: compute: Compute-bound")
    assert first.startswith("the last 60 s: decoding: Input-bound by decoding: 75% of the step time is waiting")
    assert second.startswith("the last 60 s: compute: Compute-bound")


def test_the_last_one_is_kept_for_those_who_look_on(tmp_path: Path) -> None:
    live = LiveVerdict(lambda verdict: verdict.sentence.split(":")[0], tmp_path / "verdict.json")
    for second in range(21):
        live.write(batch(1000 + second, 0.0))
    kept = json.loads((tmp_path / "verdict.json").read_text())
    told = {"limit": "compute", "wait_fraction": 0.0, "sentence": "Compute-bound"}
    assert kept == {"time": 1020, "seconds": 20, **told}


def test_too_few_steps_are_nothing_to_talk_about(caplog: pytest.LogCaptureFixture) -> None:
    assert told([batch(1000 + 20 * step, 300.0) for step in range(20)], caplog) == []
