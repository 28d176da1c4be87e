"""Ticks on a fake clock, and failing sources."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import pytest

from pipeline.monitor.sampler import Sampler, ticks


@dataclass
class FakeClock:
    """A clock that only waiting advances. Wait number N is late by `lateness[N]`. It stops after `waits` waits."""

    waits: int
    lateness: dict[int, float] = field(default_factory=dict)
    now: float = 100.0
    waited: int = 0

    def stopped(self, seconds: float) -> bool:
        self.now += seconds + self.lateness.get(self.waited, 0.0)
        self.waited += 1
        return self.waited > self.waits


def taken(clock: FakeClock) -> list[tuple[float, float, int]]:
    """Return (time, seconds late, dropped) of every tick at 5 Hz."""
    return [
        (round(clock.now, 6), round(late, 6), dropped) for late, dropped in ticks(0.2, lambda: clock.now, clock.stopped)
    ]


def test_ticks_do_not_drift() -> None:
    clock = FakeClock(waits=10_000, lateness=dict.fromkeys(range(10_000), 0.003))
    times = taken(clock)
    assert times[0] == (100.203, 0.003, 0)
    assert times[-1] == (2100.003, 0.003, 0)  # 3 ms late, not 10,000 times 3 ms


def test_a_late_tick_delays_no_other() -> None:
    assert taken(FakeClock(waits=3, lateness={1: 0.15})) == [(100.2, 0, 0), (100.55, 0.15, 0), (100.6, 0, 0)]


def test_missed_ticks_are_counted_and_not_repeated() -> None:
    clock = FakeClock(waits=3, lateness={1: 0.5})
    assert taken(clock) == [(100.2, 0, 0), (100.9, 0.5, 2), (101.0, 0, 2)]


def sampled(sources: Mapping[str, Callable[[], Mapping[str, float]]], waits: int = 3) -> list[Mapping[str, float]]:
    clock = FakeClock(waits)
    rows: list[Mapping[str, float]] = []
    Sampler(sources, rows.append, 5.0, lambda: 7, lambda: clock.now, clock.stopped).run()
    return rows


def test_every_sample_reports_its_lateness_and_dropped_rows() -> None:
    rows = sampled({"a": lambda: {"x": 1.0}})
    own = ["monitor/dropped", "monitor/sample_ms", "monitor/tick_late_ms"]
    assert [sorted(row) for row in rows] == [[*own, "x"]] * 3
    assert [row["monitor/dropped"] for row in rows] == [7.0] * 3


def test_a_sample_reports_its_duration() -> None:
    clock = FakeClock(waits=2)
    rows: list[Mapping[str, float]] = []

    def slow() -> dict[str, float]:
        clock.now += 0.03
        return {}

    Sampler({"slow": slow, "slow too": slow}, rows.append, 5.0, lambda: 0, lambda: clock.now, clock.stopped).run()
    assert [round(row["monitor/sample_ms"], 6) for row in rows] == [60.0, 60.0]
    assert [round(row["monitor/tick_late_ms"], 6) for row in rows] == [0.0, 0.0]  # slow samples are not late


def test_a_failing_source_is_logged_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    readings = iter([0.0, 1.0, None, None, 4.0])  # the first reading only initializes the rates

    def flaky() -> dict[str, float]:
        value = next(readings)
        if value is None:
            raise OSError("sensor gone")
        return {"flaky": value}

    rows = sampled({"flaky": flaky, "other": lambda: {"other": 5.0}}, waits=4)

    assert [row.get("flaky") for row in rows] == [1.0, None, None, 4.0]
    assert [row["other"] for row in rows] == [5.0] * 4
    assert [r.getMessage() for r in caplog.records] == ["monitor: flaky is left out: OSError: sensor gone"]


@pytest.mark.parametrize("hz", [0.1, 21, float("nan")])
def test_a_rate_out_of_range_is_refused(hz: float) -> None:
    with pytest.raises(ValueError, match=r"hz must be between 0\.2 and 20, got"):
        Sampler({}, lambda values: None, hz)


def test_the_package_imports_no_heavy_library() -> None:
    heavy = ["numpy", "pandas", "psutil", "comet_ml", "pynvml", "tensorflow", "airflow"]
    code = f"import sys, pipeline.monitor; print([m for m in {heavy} if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_ticks_stop_at_once_on_request() -> None:
    assert list(islice(ticks(0.2, lambda: 0.0, lambda seconds: True), 1)) == []
