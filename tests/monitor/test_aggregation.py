"""Intervals: the number of values stays below the limits of a tracker, and stalls stay visible."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas
import pytest

from pipeline.monitor.aggregation import Interval, Intervals, aggregate_table, widen
from pipeline.monitor.row import Row

HOST = [
    *(f"sys/{name}" for name in ("cpu_pct", "cpu_max_core_pct", "cpu_iowait_pct", "load_1min", "mem_used_bytes")),
    *(f"sys/{name}" for name in ("mem_pct", "disk_read_Bps", "disk_write_Bps", "disk_busy_pct")),
    *(f"sys/{name}" for name in ("net_recv_Bps", "net_sent_Bps")),
    *(f"pressure/{name}_pct" for name in ("cpu_some", "io_some", "io_full", "memory_some", "memory_full")),
    *(f"cgroup/{name}" for name in ("cpu_limit_cores", "cpu_used_cores", "cpu_pct", "cpu_throttled_pct")),
    *(f"cgroup/{name}" for name in ("mem_used_bytes", "mem_limit_bytes", "mem_pct")),
    *(f"proc/{name}" for name in ("cpu_pct", "rss_bytes", "read_Bps", "children", "children_cpu_pct")),
    "proc/children_rss_bytes",
    *(f"monitor/{name}" for name in ("tick_late_ms", "dropped", "sample_ms")),
]
OF_A_GPU = (
    *("util_pct", "mem_used_bytes", "mem_total_bytes", "power_w", "power_limit_w", "temperature_c", "sm_clock_mhz"),
    *("mem_clock_mhz", "throttled_power", "throttled_thermal", "pcie_rx_Bps", "pcie_tx_Bps", "compute_capability"),
)
OF_A_BATCH = {
    **{f"step/{part}_ms": 1.0 for part in ("compute", "host", "checkpoint", "time")},
    "input/wait_ms": 1.0,
    "input/examples": 32.0,
    "epoch": 1.0,
    "first": 0.0,
}


def test_an_interval_has_means_maxima_and_the_time_and_step_of_its_last_row():
    interval = Interval()
    assert interval.add(Row("samples", 100.0, 1, {"x": 1.0})) is None
    assert interval.add(Row("samples", 101.9, 2, {"x": 5.0, "y": float("nan")})) is None
    assert interval.add(Row("samples", 102.1, 3, {"x": 9.0})) == Row("samples", 101.9, 2, {"x": 3.0, "x/max": 5.0})
    assert interval.take() == Row("samples", 102.1, 3, {"x": 9.0, "x/max": 9.0})
    assert interval.take() is None


@pytest.mark.parametrize(
    ("gpus", "hours", "batches_a_s"), [pytest.param(8, 10, 2, marks=pytest.mark.long), (64, 1, 2), (0, 1, 50)]
)
def test_aggregated_values_stay_below_the_limits_of_comet(gpus: int, hours: int, batches_a_s: int):
    """Comet accepts 12,000 values per minute and 15,000 per metric. An epoch takes 30 seconds here."""
    sample = dict.fromkeys([*HOST, *(f"gpu/{i}/{name}" for i in range(gpus) for name in OF_A_GPU)], 1.0)
    intervals = Intervals()
    by_minute: Counter[int] = Counter()
    by_metric: Counter[str] = Counter()
    for tick in range(hours * 3600 * 2):  # 2 Hz, because the rate within an interval does not change the counts
        time = 1e9 + tick / 2
        of_now = [Row("samples", time, tick, sample)]
        of_now += [Row("batches", time, tick, OF_A_BATCH)] * (batches_a_s // 2)
        of_now += [Row("epochs", time, tick, dict.fromkeys("abcdefghij", 1.0))] if tick % 60 == 0 else []
        for row in (ended for each in of_now for ended in intervals.add(each)):
            by_minute[int(time // 60)] += len(row.values)
            by_metric.update(row.values.keys())
    assert max(by_minute.values()) < 12_000
    assert 100 < max(by_metric.values()) < 15_000
    assert by_metric.keys() > sample.keys()


def test_retries_stay_below_the_limits_of_comet():
    """Eleven hours in 20 attempts, each of 2000 s. Such attempts have the shortest intervals all the time."""
    by_metric: Counter[str] = Counter()
    for attempt in range(20):
        intervals = Intervals(all_epochs=False, before_s=2000.0 * attempt)
        for tick in range(2000 * attempt, 2000 * (attempt + 1)):
            time = 1e9 + tick
            of_now = Row("samples", time, tick, {"x": 1.0}), Row("epochs", time, tick, {"loss": 1.0})
            for row in (ended for each in of_now for ended in intervals.add(each)):
                by_metric.update(row.values.keys())
    assert by_metric.keys() == {"x", "x/max", "loss"}
    assert 3000 < min(by_metric.values()) <= max(by_metric.values()) < 4500


@pytest.mark.parametrize("hours", [0.5, pytest.param(10, marks=pytest.mark.long)])
def test_epochs_of_one_step_stay_below_the_limits_of_comet(hours: float):
    """An epoch takes 50 ms, and has 20 metrics."""
    intervals = Intervals(all_epochs=False)
    epochs = [Row("epochs", 1e9 + n / 20, n, dict.fromkeys("abcdefghijklmnopqrst", float(n))) for n in range(36_000)]
    repeated = [replace(row, time=row.time + 1800 * half) for half in range(round(2 * hours)) for row in epochs]
    passed = [row for each in repeated for row in intervals.add(each)] + intervals.take()
    by_minute = Counter(int(row.time // 60) for row in passed)
    assert 20 * max(by_minute.values()) < 6_000  # samples and batches send as many
    assert 800 < len(passed) < 15_000
    assert (passed[0], passed[-1]) == (repeated[0], repeated[-1])


def test_epochs_of_a_usual_length_are_all_passed_on():
    intervals = Intervals(all_epochs=False)
    epochs = [Row("epochs", 1e9 + 60.0 * n, n, {"loss": 1.0}) for n in range(1000)]
    assert [row for each in epochs for row in intervals.add(each)] == epochs
    assert intervals.take() == []


def test_one_slow_batch_is_visible_in_ten_hours():
    interval = Interval()
    ended = [interval.add(Row("batches", 1e9 + s, s, {"x": 900.0 if s == 35_990 else 1.0})) for s in range(36_100)]
    [stalled] = [row for row in ended if row and row.values["x/max"] > 1]
    assert stalled.values["x/max"] == 900.0
    assert 20 < stalled.values["x"] < 30  # The interval has 36 s by then, so the mean alone would hide the stall.


def test_batches_are_reduced_to_times_and_epochs_are_unchanged():
    intervals = Intervals()
    epoch = Row("epochs", 5.0, 1, {"loss": 0.5})
    assert intervals.add(Row("batches", 1.0, 7, OF_A_BATCH)) == []
    assert intervals.add(epoch) == [epoch]
    [row] = intervals.take()
    assert (row.kind, row.step) == ("batches", 7)
    assert {name for name in row.values if not name.endswith("/max")} == {
        *("input/wait_ms", "step/compute_ms", "step/host_ms", "step/checkpoint_ms", "step/time_ms")
    }


def test_wider_intervals_have_weighted_means_and_all_maxima():
    narrow = pandas.DataFrame(
        {"time": [1.0, 3.0, 5.0], "step": [1, 4, 5], "x": [2.0, 6.0, np.nan], "x/max": [3.0, 9.0, np.nan]}
    )
    means, highest = widen(narrow, 4.0, np.array([1.0, 3.0, 1.0]))
    assert means["time"].tolist() == highest["time"].tolist() == [3.0, 5.0]
    assert means["x"].tolist()[:1] == [(2.0 + 3 * 6.0) / 4]
    assert highest["x"].tolist()[:1] == [9.0]
    assert means["x"].isna().tolist() == highest["x"].isna().tolist() == [False, True]


def test_a_table_is_aggregated_like_single_rows():
    times = [100.0, 101.5, 102.0, 103.5]
    rows = pandas.DataFrame({"time": times, "step": [1, 2, 3, 4], "x": [1.0, 5.0, 9.0, 11.0]})
    means, highest = aggregate_table(rows, 2.0)
    intervals = Intervals()
    complete = [
        row
        for time, step, x in rows.itertuples(index=False)
        for row in intervals.add(Row("samples", time, step, {"x": x}))
    ]
    complete += intervals.take(["samples"])
    assert [row.time for row in complete] == means["time"].tolist()
    assert [row.values["x"] for row in complete] == means["x"].tolist()
    assert [row.values["x/max"] for row in complete] == highest["x"].tolist()
