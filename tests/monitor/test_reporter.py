"""The writer thread keeps the order of rows, never blocks the training, and logs errors."""

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from pipeline import monitor
from pipeline.monitor.diagnosis import is_steady
from pipeline.monitor.load import during
from pipeline.monitor.record import RecordSink
from pipeline.monitor.reporter import Reporter
from pipeline.monitor.row import Row, steady_clock
from tests.waiting import simulated_work, until

FOREVER_S = 1e6
"""Longer than any test may take."""
PATIENCE_S = 300.0


class RecordingSink:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, row: Row) -> None:
        self.rows.append(row)


class BrokenSink:
    def write(self, row: Row) -> None:
        raise OSError("disk full")


class StuckSink:
    """A sink that blocks at the first row until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def write(self, row: Row) -> None:
        self.entered.set()
        self.release.wait()


def test_rows_have_the_time_and_values_of_the_report() -> None:
    stuck, sink = StuckSink(), RecordingSink()
    clock = iter([10.0, 11.0])
    reporter = Reporter([stuck, sink], clock=lambda: next(clock))
    values = {"x": 1.0}
    reporter.report("batches", 1, values)
    values["x"] = 2.0  # the caller may reuse its dictionary
    reporter.report("batches", 2, values)
    stuck.release.set()
    reporter.close()
    assert sink.rows == [Row("batches", 10.0, 1, {"x": 1.0}), Row("batches", 11.0, 2, {"x": 2.0})]


def test_flush_waits_until_all_rows_are_written() -> None:
    stuck, sink = StuckSink(), RecordingSink()
    reporter = Reporter([stuck, sink])
    assert reporter.flush()  # no row was reported yet
    for step in range(5):
        reporter.report("batches", step, {})
    assert not reporter.flush(timeout=0.01)
    assert sink.rows == []
    stuck.release.set()
    assert reporter.flush(PATIENCE_S)
    assert [row.step for row in sink.rows] == [*range(5)]
    reporter.close()


def test_a_full_queue_drops_and_counts_rows() -> None:
    stuck = StuckSink()
    reporter = Reporter([stuck], capacity=3)
    reporter.report("batches", 0, {})
    until(stuck.entered.is_set)
    for step in range(10):
        reporter.report("batches", step, {})
    assert reporter.dropped == 7
    stuck.release.set()
    reporter.close()


def test_close_has_a_timeout_if_a_sink_never_returns(caplog: pytest.LogCaptureFixture) -> None:
    stuck = StuckSink()
    reporter = Reporter([stuck])
    reporter.report("batches", 0, {})
    reporter.report("batches", 1, {})
    until(stuck.entered.is_set)
    reporter.close(timeout=0.05)
    stuck.release.set()
    assert [r.getMessage() for r in caplog.records] == [
        "monitor: 1 rows were not written, because the sinks were too slow"
    ]


def test_a_failing_sink_is_logged_and_the_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    sink = RecordingSink()
    reporter = Reporter([BrokenSink(), sink])
    for step in range(3):
        reporter.report("batches", step, {})
    reporter.close()
    assert [row.step for row in sink.rows] == [0, 1, 2]
    assert reporter.errors == {"BrokenSink": "OSError: disk full"}
    assert [record.getMessage() for record in caplog.records] == [
        "monitor: BrokenSink failed, and the other sinks continue: OSError: disk full",
        "monitor: BrokenSink did not take 3 rows. The first reason: OSError: disk full",
    ]


def test_the_steady_clock_ignores_a_jump_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = steady_clock()
    before = clock()
    monkeypatch.setattr("time.time", lambda: 0.0)  # a patch, because a test must not change the clock of the machine
    assert clock() >= before


def test_the_monitor_records_batches_epochs_and_samples(tmp_path: Path) -> None:
    sink = RecordingSink()
    sampled = threading.Event()

    class Waker:
        def write(self, row: Row) -> None:
            if row.kind == "samples" and row.step == 42:  # On a busy machine, an earlier row may be written late.
                sampled.set()

    with monitor.open_monitor(tmp_path, hz=20, sinks=[sink, Waker()]) as m:
        m.batch(step=41, epoch=3, times=monitor.StepTimes(0.25, 0.75), examples=32)
        m.batch(step=42, epoch=3, times=monitor.StepTimes(0.0, 0.5), examples=16)
        m.epoch(epoch=3, step=42, values={"loss": 0.5})
        until(sampled.is_set)

    batches = monitor.read(tmp_path / "record", "batches").drop(columns="time").to_dict("records")
    names = ("step", "input/wait_ms", "step/compute_ms", "step/time_ms", "input/examples", "epoch", "first")
    assert [tuple(row[name] for name in names) for row in batches] == [
        (41, 250, 750, 1000, 32, 3, 1),
        (42, 0, 500, 500, 16, 3, 0),
    ]
    epochs = monitor.read(tmp_path / "record", "epochs").drop(columns="time").to_dict("records")
    assert epochs == [{"step": 3, "loss": 0.5, "global_step": 42}]
    last = monitor.last_row(tmp_path / "record", "samples")
    assert last is not None
    assert last["step"] == 42
    assert last["proc/rss_bytes"] > 1e7
    assert last["monitor/dropped"] >= 0  # A busy machine misses ticks.
    assert m.comet_location is None
    assert len(sink.rows) == 3 + len(monitor.read(tmp_path / "record", "samples"))


def test_the_times_of_a_record_never_go_back_on_a_worker_whose_clock_is_behind(tmp_path: Path) -> None:
    ahead = time.time() + 600
    with closing(RecordSink(tmp_path / "record")) as record:
        for step in range(1, 21):
            values = {"step/time_ms": 1000.0, "epoch": 1.0, "first": float(step == 1)}
            record.write(Row("batches", ahead + step, step, values))
            record.write(Row("samples", ahead + step - 0.5, step - 1, {"sys/cpu_pct": 90.0}))
    with monitor.open_monitor(tmp_path, hz=20) as m:
        for step in range(21, 41):
            m.batch(step=step, epoch=1, times=monitor.StepTimes(0.25, 0.75), examples=32)
    batches, samples = (monitor.read(tmp_path / "record", kind) for kind in ("batches", "samples"))
    assert batches["time"].is_monotonic_increasing
    assert samples["time"].is_monotonic_increasing
    steady = is_steady(batches)
    assert during(samples, batches, steady)[:20].tolist() == steady[:20].tolist()


def test_the_monitor_closes_the_record_if_the_training_fails(tmp_path: Path) -> None:
    def train() -> None:
        with monitor.open_monitor(tmp_path) as m:
            m.batch(step=1, epoch=1, times=monitor.StepTimes(0.1, 0.1), examples=1)
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        train()
    assert len(monitor.read(tmp_path / "record", "batches")) == 1
    assert not [t for t in threading.enumerate() if t.name.startswith("monitor-")]


def test_single_rows_are_written_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row is a group. The others come while the thread gathers, which only the end of the reporter ends.

    The end may come before the thread gathers, or after it took the last row: then there are two more groups.
    """
    monkeypatch.setattr("pipeline.monitor.reporter.GATHER_S", FOREVER_S)
    sink, groups = RecordingSink(), []
    reporter = Reporter([sink], sync=lambda: groups.append(len(sink.rows)))
    reporter.report("batches", 0, {})
    until(lambda: groups)
    for step in range(1, 20):
        reporter.report("batches", step, {})
        simulated_work(0.005)
    reporter.close(PATIENCE_S)
    assert len(sink.rows) == 20
    assert len(groups) <= 3


def test_flush_does_not_wait_for_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.monitor.reporter.GATHER_S", FOREVER_S)
    reporter = Reporter([RecordingSink()])
    for step in range(50):
        reporter.report("batches", step, {})
        assert reporter.flush(PATIENCE_S)
    reporter.close()


def test_flush_does_not_wait_for_rows_that_come_during_a_sync() -> None:
    """The steps of a training go on while its checkpoint waits for the record."""
    is_training = threading.Event()
    is_training.set()
    synced: list[int] = []

    def sync() -> None:
        synced.append(len(sink.rows))
        if is_training.is_set():
            reporter.report("batches", len(sink.rows), {})

    sink = RecordingSink()
    reporter = Reporter([sink], sync=sync)
    for step in range(5):
        reporter.report("batches", step, {})
        assert reporter.flush(5.0)
        assert synced[-1] > step
    is_training.clear()
    reporter.close(PATIENCE_S)


def test_flush_syncs_the_record() -> None:
    sink, synced = RecordingSink(), []
    reporter = Reporter([sink], sync=lambda: synced.append(len(sink.rows)))
    for step in range(3):
        reporter.report("samples", step, {})
    assert reporter.flush()
    assert synced[-1] == 3
    reporter.close()


def test_a_failing_sync_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise OSError(5, "Input/output error")

    sink = RecordingSink()
    reporter = Reporter([sink], sync=fails)
    for step in range(3):
        reporter.report("samples", step, {})
        assert reporter.flush()
    reporter.close()
    assert len(sink.rows) == 3
    assert (
        caplog.text.count("the record cannot be synced, so a power loss could lose rows: [Errno 5] Input/output error")
        == 1
    )
