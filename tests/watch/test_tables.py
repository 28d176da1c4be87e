"""Intervals of a record: from the overview, from newer rows, and all rows of a selected span."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from pipeline.monitor import record
from pipeline.monitor.aggregation import MIN_INTERVAL_S, ROWS, Intervals
from pipeline.monitor.overview import OverviewSink
from pipeline.monitor.record import RecordSink, segments
from pipeline.monitor.row import Row
from pipeline.watch import tables
from pipeline.watch.tables import (
    MAX_INTERVALS,
    MAX_ROWS,
    Span,
    even_width,
    gaps,
    intervals,
    segments_of_span,
)

BEGIN = 1e9


def written(folder: Path, seconds: int, segment_bytes: int = 2000, hz: int = 5) -> Path:
    """Write the record of a training server. The CPU usage is the second of the sample, and each sample has a step."""
    whole, overview = RecordSink(folder / "record", segment_bytes), RecordSink(folder / "overview")
    ended = Intervals()
    for number in range(seconds * hz):
        time = BEGIN + number / hz
        for row in (
            Row("samples", time, number, {"sys/cpu_pct": float(number // hz)}),
            Row("batches", time, number + 1, {"input/wait_ms": 1.0, "step/time_ms": 10.0, "input/examples": 8}),
        ):
            whole.write(row)
            for interval in ended.add(row):  # the open interval is not written, as in a running training
                overview.write(interval)
    whole.close()
    overview.close()
    return folder


def test_the_latest_seconds_follow_the_overview(tmp_path: Path) -> None:
    found = intervals(written(tmp_path, seconds=61), "samples")
    settled = found.means["time"] <= found.settled
    assert BEGIN + 56 < found.settled < BEGIN + 60
    assert settled.sum() == pytest.approx(29, abs=1)  # intervals of two seconds
    assert found.means["time"].is_monotonic_increasing
    assert found.means["time"].iloc[-1] == pytest.approx(BEGIN + 60.8)
    assert found.highest["sys/cpu_pct"].iloc[-1] == 60
    assert list(found.highest) == ["time", "step", "sys/cpu_pct"]
    assert {*found.means} == {*found.highest, ROWS}


def test_a_record_without_an_overview_has_only_latest_rows(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path / "record")
    sink.write(Row("samples", BEGIN, 0, {"sys/cpu_pct": 5.0}))
    sink.close()
    found = intervals(tmp_path, "samples")
    assert (found.settled, found.means["sys/cpu_pct"].tolist()) == (0.0, [5.0])


def test_a_missing_record_is_an_empty_table(tmp_path: Path) -> None:
    found = intervals(tmp_path, "batches")
    assert (len(found.means), found.settled) == (0, 0.0)
    assert list(found.means) == ["time", "step", ROWS, "steps"]


def test_a_span_has_all_rows_and_the_rest_is_unchanged(tmp_path: Path) -> None:
    folder = written(tmp_path, seconds=61)
    closely = intervals(folder, "samples", Span(BEGIN + 20, BEGIN + 30)).means
    inside = closely["time"].between(BEGIN + 20, BEGIN + 30)
    assert inside.sum() == 51
    assert closely[~inside]["time"].tolist() == [
        time for time in intervals(folder, "samples").means["time"] if not BEGIN + 20 <= time <= BEGIN + 30
    ]
    assert closely["time"].is_monotonic_increasing


def test_a_long_span_keeps_its_peaks(tmp_path: Path) -> None:
    folder = written(tmp_path, seconds=1000)
    found = intervals(folder, "samples", Span(BEGIN, BEGIN + 1000))
    assert MAX_ROWS * 0.9 < len(found.means) <= MAX_ROWS + 1
    assert found.highest["sys/cpu_pct"].max() == 999


def test_only_a_few_segments_are_read_for_a_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path, seconds=1000)
    assert len(segments(folder / "record", "samples")) > 50
    read: list[Path] = []
    monkeypatch.setattr(tables, "read_segment", lambda path, _: read.append(path) or record.read_segment(path))
    intervals(folder, "samples", Span(BEGIN + 500, BEGIN + 510))
    assert 0 < len([path for path in read if path.parent.name == "record"]) < 6


@pytest.mark.parametrize(
    ("seconds", "width"), [(0, 2), (3000, 2), (3001, 4), (6000, 4), (6001, 8), (36_000, 32), (1e7, 8192)]
)
def test_the_width_of_intervals_doubles_during_a_training(seconds: float, width: float) -> None:
    assert even_width(seconds) == width
    assert width == MIN_INTERVAL_S or MAX_INTERVALS / 2 < seconds / width <= MAX_INTERVALS


def overview_of(folder: Path, stalled: int, count: int) -> None:
    """Write intervals of two seconds with 100 steps of 20 ms. The interval `stalled` has one step of 2,000 ms."""
    sink, step = RecordSink(folder / "overview"), 0
    for number in range(count):
        steps, milliseconds = (1, 2000.0) if number == stalled else (100, 20.0)
        step += steps
        values = {"step/time_ms": milliseconds, "step/time_ms/max": milliseconds}
        sink.write(Row("batches", BEGIN + 2 * number + 1, step, values))
    sink.close()


def test_intervals_of_a_long_training_have_equal_widths_and_are_weighted_by_steps(tmp_path: Path) -> None:
    overview_of(tmp_path, stalled=1000, count=3600)
    means, highest, _ = intervals(tmp_path, "batches")
    assert len(means) == len(highest) == 900
    assert np.diff(means["time"]).tolist() == [8.0] * 899
    assert means["steps"].sum() == means["step"].iloc[-1] == 3599 * 100 + 1
    assert np.flatnonzero(means["step/time_ms"] != 20).tolist() == [250]
    assert means["step/time_ms"][250] == pytest.approx((2000 + 300 * 20) / 301)
    assert (highest["step/time_ms"][250], highest["step/time_ms"].drop(250).max()) == (2000, 20)


def test_settled_intervals_do_not_change_during_a_training(tmp_path: Path) -> None:
    before, after = (tmp_path / f"{count}" for count in (3601, 3607))
    for folder in (before, after):
        overview_of(folder, stalled=5, count=int(folder.name))
    first, second = (intervals(folder, "batches") for folder in (before, after))
    is_settled = first.means["time"] <= first.settled
    assert (len(first.means), is_settled.sum()) == (901, 900)
    pandas.testing.assert_frame_equal(second.means[: is_settled.sum()], first.means[is_settled])


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((0, 5), []),
        ((5, 15), ["a"]),
        ((10, 20), ["a", "b"]),
        ((25, 26), ["b"]),
        ((35, 99), ["c"]),
        ((0, 99), list("abc")),
    ],
)
def test_segments_of_span_selects_overlapping_segments(span: tuple[float, float], expected: list[str]) -> None:
    begins = {"a": 10.0, "b": 20.0, "c": 30.0, "d": None}  # segment d has no row yet
    assert segments_of_span(list("abcd"), Span(*span), begins.__getitem__) == expected


def test_repeated_steps_count_once(tmp_path: Path) -> None:
    for steps, begin in ((range(1, 101), BEGIN), (range(41, 81), BEGIN + 300)):
        sink = OverviewSink(tmp_path / "overview")
        for step in steps:
            sink.write(Row("batches", begin + step, step, {"step/time_ms": 1.0}))
        sink.close()
    found = intervals(tmp_path, "batches").means
    assert found["step"].is_monotonic_increasing
    assert found["step"].iloc[-1] == 80


@pytest.mark.parametrize(
    ("times", "expected"),
    [([0, 2, 4, 6], []), ([0, 2, 4, 60, 62], [2]), ([0, 30, 61, 93], []), ([], []), ([1], []), ([0, 1, 4, 5], [])],
)
def test_a_gap_is_a_long_time_without_measurements(times: list[float], expected: list[int]) -> None:
    assert gaps(np.array(times, dtype=float)) == expected


def test_a_closed_segment_is_read_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = OverviewSink(tmp_path / "overview")
    sink.write(Row("epochs", BEGIN, 1, {"loss": 1.0}))
    sink.close()
    first = tables.epochs(tmp_path)
    monkeypatch.setattr(tables, "read_segment", lambda *_: pytest.fail("a closed segment was read again"))
    pandas.testing.assert_frame_equal(tables.epochs(tmp_path), first)
