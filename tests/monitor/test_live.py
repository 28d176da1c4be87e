"""The live verdict: when it is logged, and on which steps."""

import json
import logging
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.monitor.live import LiveVerdict
from pipeline.monitor.row import Row
from pipeline.monitor.verdict import Verdict


def batch(time: float, wait_ms: float) -> Row:
    values = {"input/wait_ms": wait_ms, "step/compute_ms": 200.0, "step/time_ms": 200.0 + wait_ms, "epoch": 1}
    return Row("batches", time, int(time), {**values, "input/examples": 8, "first": 0})


def messages_of(rows: list[Row], caplog: pytest.LogCaptureFixture) -> list[str]:
    live = LiveVerdict(lambda verdict: f"{verdict.limit.value}: {verdict.sentence}")
    with caplog.at_level(logging.INFO):
        for row in rows:
            live.write(row)
    return caplog.messages


def test_a_verdict_is_logged_after_20_seconds_and_for_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    batches = [batch(1000 + second, 600.0 if 20 <= second < 80 else 0.0) for second in range(141)]
    samples = [Row("samples", 1000.5 + second, 1, {"sys/cpu_pct": 95.0}) for second in range(141)]
    rows = sorted([*batches, *samples], key=lambda row: row.time)
    begin, first, second = messages_of([*rows, Row("epochs", 1141.0, 1, {"loss": 1.0})], caplog)
    assert begin.startswith("the last 20 s: compute: Compute-bound")
    assert first.startswith("the last 60 s: decoding: Input-bound (decoding): 75% of the step time is waiting")
    assert second.startswith("the last 60 s: compute: Compute-bound")


def test_the_latest_verdict_is_stored_in_a_file(tmp_path: Path) -> None:
    live = LiveVerdict(lambda verdict: verdict.sentence.split(":")[0], tmp_path / "verdict.json")
    for second in range(21):
        live.write(batch(1000 + second, 0.0))
    stored = json.loads((tmp_path / "verdict.json").read_text())
    nothing = {"wait_ms": 0.0, "gpu_pct": None, "cpu_pct": None}
    judged = {"limit": "compute", "limits": ["compute"], "wait_fraction": 0.0, "sentence": "Compute-bound"}
    assert stored == {"time": 1020, "seconds": 20, "step_ms": 200.0, "examples_per_s": 40.0, **nothing, **judged}


def test_too_few_steps_have_no_live_verdict(caplog: pytest.LogCaptureFixture) -> None:
    assert messages_of([batch(1000 + 20 * step, 300.0) for step in range(20)], caplog) == []


def test_before_the_first_step_the_verdict_reports_the_activity(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    doing = iter(["waiting for the first batch", "compiling the first step"])
    live = LiveVerdict(lambda verdict: verdict.sentence, tmp_path / "verdict.json", lambda: next(doing))
    caplog.set_level(logging.INFO)
    for second in range(145):
        live.write(Row("samples", 1000.0 + second, 0, {"sys/cpu_pct": 95.0}))
        if second >= 85:
            live.write(batch(1000 + second, 0.0))
        if second == 81:
            stored = json.loads((tmp_path / "verdict.json").read_text())
    first, second, verdict = caplog.messages
    assert first == "the last 20 s: No step has ended for 20 s: waiting for the first batch."
    assert second == "the last 60 s: No step has ended for 80 s: compiling the first step."
    assert (stored["limit"], stored["sentence"]) == ("unknown", "No step has ended for 80 s: compiling the first step.")
    assert verdict.startswith("the last 60 s: Compute-bound")


def test_a_failed_verdict_is_retried_only_after_a_minute() -> None:
    failed = []

    def fails(_: Verdict) -> str:
        failed.append(1)
        raise OSError(28, "No space left on device")

    live = LiveVerdict(fails)
    for second in range(100):
        with suppress(OSError):
            live.write(batch(1000 + second, 0.0))
    assert len(failed) == 2  # after 20 s, and one minute later
