"""The live verdict: when it is logged, and on which steps."""

import json
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
    interval = {"time": 1020, "seconds": 20, "steps": 19}  # The first row may be the first one of an epoch.
    judged = {"limit": "compute", "limits": ["compute"], "wait_fraction": 0.0, "sentence": "Compute-bound"}
    assert stored == {**interval, "step_ms": 200.0, "examples_per_s": 40.0, **nothing, **judged}


def slow_steps(seconds: float, until: float) -> list[Row]:
    """Return the rows of steps of so many seconds. The first one takes 21 s, because it compiles."""
    samples = [Row("samples", 1000.0 + second, 0, {"sys/cpu_pct": 50.0}) for second in range(int(until) + 1)]
    ends = np.arange(21.0, until, seconds)
    whole = {"step/time_ms": 1000 * seconds, "input/wait_ms": 70.0, "step/compute_ms": 1000 * seconds - 70, "epoch": 1}
    steps = [
        Row("batches", 1000.0 + end, step, {**whole, "input/examples": 8, "first": float(step == 1)})
        for step, end in enumerate(ends, start=1)
    ]
    steps[0] = replace(steps[0], values={**steps[0].values, "step/time_ms": 21_000.0})
    return sorted([*samples, *steps], key=lambda row: row.time)


def published(rows: list[Row], file: Path) -> list[dict[str, Any]]:
    """Return each verdict that is stored while the rows come."""
    live = LiveVerdict(lambda verdict: verdict.sentence, file, lambda: "computing a step")
    found: list[dict[str, Any]] = []
    for row in rows:
        live.write(row)
        if file.exists() and (stored := json.loads(file.read_text())) not in found:
            found.append(stored)
    return found


@pytest.mark.parametrize(
    ("seconds", "intervals"),
    [
        (7, [("unknown", 0, 20), ("unknown", 8, 59), ("compute", 16, 119), ("compute", 16, 120), ("compute", 17, 120)]),
        (40, [("unknown", 0, 20), ("unknown", 1, 59), ("unknown", 2, 119), ("unknown", 4, 179), ("unknown", 5, 239)]),
    ],
)
def test_slow_steps_are_kept_until_there_are_enough_for_a_verdict(
    seconds: float, intervals: list[tuple[str, int, float]], tmp_path: Path
) -> None:
    found = published(slow_steps(seconds, 281), tmp_path / "verdict.json")
    assert [(each["limit"], each["steps"], each["seconds"]) for each in found] == intervals


def test_a_verdict_on_slow_steps_is_renewed_each_minute(tmp_path: Path) -> None:
    *_, before, last = published(slow_steps(40, 1000), tmp_path / "verdict.json")
    assert last["time"] - before["time"] == 60
    assert (before["limit"], last["limit"]) == ("compute", "compute")
    assert 10 <= last["steps"] <= 11
    assert last["step_ms"] == 40_000  # without the first step


def test_a_step_of_two_minutes_is_no_silence(tmp_path: Path) -> None:
    found = published(slow_steps(120, 1500), tmp_path / "verdict.json")
    silent = [each["time"] for each in found if each["sentence"].startswith("No step has ended")]
    assert silent == [1020, 1140]  # The first step took 21 s, so the second one seems to be late.
    assert found[-1]["limit"] == "compute"


def test_a_training_that_stands_still_is_no_slow_step(tmp_path: Path) -> None:
    rows = [row for row in slow_steps(7, 600) if row.kind == "samples" or row.time < 1300]
    assert published(rows, tmp_path / "verdict.json")[-1]["sentence"] == (
        "No step has ended for 266 s: computing a step."
    )


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
    assert second == "the last 80 s: No step has ended for 80 s: compiling the first step."
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
