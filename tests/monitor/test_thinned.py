"""Samples of any length fit into memory: evenly spread rows, and the peaks of all of them."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from pipeline.monitor import read, thinned
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row


@pytest.mark.parametrize(
    ("lengths", "every"),
    [([3, 3], 1), ([7, 4], 2), ([5, 5, 5, 5], 4), ([1] * 30, 4), ([100], 16), ([], 1)],
)
def test_thinned_rows_are_evenly_spread(lengths: list[int], every: int) -> None:
    numbers = pandas.DataFrame({"number": np.arange(sum(lengths))})
    ends = np.cumsum(lengths)
    tables = [numbers.iloc[:0], *(numbers[end - length : end] for end, length in zip(ends, lengths, strict=True))]
    rows, count = thinned.thinned(tables, max_rows=8)
    kept = rows["number"].to_numpy()
    # One row of each whole block. The last block may end before its row.
    assert (kept // every).tolist() == [*range(len(kept))]
    assert len(kept) >= count // every
    assert count == sum(lengths)


@pytest.mark.parametrize("period", [2, 5, 6, 8, 10, 16, 32])
def test_a_metric_that_is_measured_in_every_few_samples_is_kept(period: int) -> None:
    rows = pandas.DataFrame({"phase": np.arange(100_000) % period})
    kept, _ = thinned.thinned([rows[:30_000], rows[30_000:]], max_rows=10_000)
    shares = np.bincount(kept["phase"], minlength=period) / len(kept)
    assert shares == pytest.approx(1 / period, rel=0.3)


def test_the_samples_of_a_short_record_are_all_in_memory(tmp_path: Path) -> None:
    written(tmp_path, 300)
    samples = thinned.read_samples(tmp_path)
    pandas.testing.assert_frame_equal(samples.rows, read(tmp_path, "samples"))
    assert samples.extremes["gpu/util_pct"].tolist() == [50.0] * 300
    assert samples.count == 300


def test_no_peak_of_a_long_record_is_lost(tmp_path: Path) -> None:
    written(tmp_path, 1000)
    samples = thinned.read_samples(tmp_path, lambda name: name != "unused", max_rows=100)
    assert samples.count == 1000
    assert (samples.rows["step"] // 16).tolist() == [*range(len(samples.rows))]
    assert [*samples.extremes] == ["time", "step", "sys/cpu_pct", "gpu/util_pct"]
    assert samples.extremes["time"].tolist() == [1000, 1249, 1250, 1499, 1500, 1749, 1750, 1999]
    assert samples.extremes["sys/cpu_pct"].tolist() == [40, 40, 5, 40, 40, 99, 40, 40]
    assert samples.extremes["gpu/util_pct"].tolist() == [50.0] * 8


def written(folder: Path, count: int) -> None:
    """Write samples in which one is low and one is high."""
    peaks = {333: 5.0, 555: 99.0}
    sink = RecordSink(folder, segment_bytes=5000)
    for step in range(count):
        values = {"sys/cpu_pct": peaks.get(step, 40.0), "gpu/0/util_pct": 0.0, "gpu/1/util_pct": 100.0, "unused": 1.0}
        sink.write(Row("samples", 1000.0 + step, step, values))
    sink.close()
