"""Ticks on a clock made by hand; sources that fail."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.monitor import gpu, system
from pipeline.monitor.sampler import Sampler, ticks


@dataclass
class FakeClock:
    """Time passes only by waiting, each wait late by the next of ``lateness``; stops after ``waits`` waits."""

    waits: int
    lateness: dict[int, float] = field(default_factory=dict)
    now: float = 100.0
    waited: int = 0

    def stopped(self, seconds: float) -> bool:
        self.now += seconds + self.lateness.get(self.waited, 0.0)
        self.waited += 1
        return self.waited > self.waits


def taken(clock: FakeClock) -> list[tuple[float, float, int]]:
    """(time, seconds late, dropped) of every tick at 5 Hz."""
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


def test_missed_ticks_are_counted_and_not_made_up_for() -> None:
    clock = FakeClock(waits=3, lateness={1: 0.5})
    assert taken(clock) == [(100.2, 0, 0), (100.9, 0.5, 2), (101.0, 0, 2)]


def sampled(sources: Mapping[str, Callable[[], Mapping[str, float]]], waits: int = 3) -> list[Mapping[str, float]]:
    clock = FakeClock(waits)
    rows: list[Mapping[str, float]] = []
    Sampler(sources, rows.append, 5.0, lambda: 7, lambda: clock.now, clock.stopped).run()
    return rows


def test_every_sample_says_how_late_it_was_and_what_was_lost() -> None:
    rows = sampled({"a": lambda: {"x": 1.0}})
    assert [sorted(row) for row in rows] == [["monitor/dropped", "monitor/tick_late_ms", "x"]] * 3
    assert [row["monitor/dropped"] for row in rows] == [7.0] * 3


def test_a_raising_source_is_noted_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    readings = iter([0.0, 1.0, None, None, 4.0])  # the first one only starts the rates

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
def test_rate_out_of_range_is_refused(hz: float) -> None:
    with pytest.raises(ValueError, match=r"hz must be between 0\.2 and 20, got"):
        Sampler({}, lambda values: None, hz)


def test_rates_are_by_second_and_start_with_nothing() -> None:
    counts, times = iter([1000.0, 1500.0, 100.0, 300.0]), iter([0.0, 2.0, 3.0, 4.0])
    rates = system.Rates(lambda: {"Bps": next(counts)}, lambda: next(times))
    assert [rates() for _ in range(4)] == [{}, {"Bps": 250.0}, {}, {"Bps": 200.0}]


def test_the_sources_of_this_machine_give_numbers() -> None:
    metrics = {name: value for source in system.sources().values() for name, value in source().items()}
    assert metrics["sys/mem_used_bytes"] > 1e7
    assert metrics["proc/rss_bytes"] > 1e7
    assert 0 <= metrics["sys/cpu_pct"] <= metrics["sys/cpu_max_core_pct"] <= 100
    assert 0 < metrics["sys/mem_pct"] <= 100


class NVMLError(Exception):
    pass


def fake_nvml(broken: set[str]) -> Any:
    """Two GPUs as NVML shows them (there is none here); functions named in ``broken`` raise."""

    def call(name: str, value: Any) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            if name in broken:
                raise NVMLError("Not Supported")
            return value

        return function

    values = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5e9, total=8e10),
        "nvmlDeviceGetPowerUsage": 312_500,
        "nvmlDeviceGetTemperature": 61,
    }
    functions = {name: call(name, value) for name, value in values.items()}
    return SimpleNamespace(NVMLError=NVMLError, NVML_TEMPERATURE_GPU=0, **functions)


def test_gpu_metrics() -> None:
    sources = gpu.sources(fake_nvml(set()))
    assert list(sources) == ["gpu 0", "gpu 1"]
    assert sources["gpu 1"]() == {
        "gpu/1/util_pct": 97.0,
        "gpu/1/mem_used_bytes": 5e9,
        "gpu/1/mem_total_bytes": 8e10,
        "gpu/1/power_w": 312.5,
        "gpu/1/temperature_c": 61.0,
    }


def test_an_unsupported_gpu_metric_is_said_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    source = gpu.sources(fake_nvml({"nvmlDeviceGetPowerUsage"}))["gpu 0"]
    assert all("gpu/0/power_w" not in row and "gpu/0/util_pct" in row for row in (source(), source()))
    assert [r.getMessage() for r in caplog.records] == ["monitor: power of GPU 0 is left out: Not Supported"]


def test_without_nvml_there_are_no_gpu_metrics_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert gpu.sources(fake_nvml({"nvmlInit"})) == {}
    assert [r.getMessage() for r in caplog.records] == ["monitor: no GPU metrics: Not Supported"]


def test_the_package_imports_nothing_heavy() -> None:
    heavy = ["numpy", "pandas", "psutil", "comet_ml", "pynvml", "tensorflow", "airflow"]
    code = f"import sys, pipeline.monitor; print([m for m in {heavy} if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_ticks_stop_at_once_when_told() -> None:
    assert list(islice(ticks(0.2, lambda: 0.0, lambda seconds: True), 1)) == []
